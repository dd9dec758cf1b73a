// Random connections of HTTP/2: http2_fuzzing.h says what must hold.
#include <cstddef>
#include <random>
#include <string>

#include "flare/base/sanitizer.h"
#include "flare/rpc/grpc/http2_fuzzing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
constexpr int kHttp2Rounds = 300;
#else
constexpr int kHttp2Rounds = 1500;
#endif
constexpr std::size_t kMaxHttp2Script = 400;

TEST(Http2Mutation, FramesInAnyOrder) {
  std::mt19937 rng(20261129);
  for (int i = 0; i != kHttp2Rounds; ++i) {
    std::string script(rng() % kMaxHttp2Script, '\0');
    for (char& c : script) c = static_cast<char>(rng());
    SCOPED_TRACE(i);
    testing::CheckHttp2Connection(script);
  }
}

}  // namespace
}  // namespace flare::rpc

// Random peers of TLS sessions: testing/tls_fuzzing.h says what must hold.
#include <cstddef>
#include <random>
#include <string>

#include "flare/base/sanitizer.h"
#include "flare/io/testing/tls_fuzzing.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
constexpr int kTlsRounds = 100;
#else
constexpr int kTlsRounds = 400;
#endif
constexpr std::size_t kMaxTlsScript = 120;

TEST(TlsMutation, DamagedRecordsInPieces) {
  std::mt19937 rng(20261129);
  for (int i = 0; i != kTlsRounds; ++i) {
    std::string script(rng() % kMaxTlsScript + 1, '\0');
    for (char& c : script) c = static_cast<char>(rng());
    SCOPED_TRACE(i);
    testing::CheckTlsSession(script);
  }
}

// Steps that damage nothing.
TEST(TlsMutation, WholeRecordsInPieces) {
  constexpr char kSteps[] = {0, 1, 2, 3, 4, 9, 10, 15};
  std::mt19937 rng(1129);
  for (int i = 0; i != kTlsRounds; ++i) {
    std::string script(1, static_cast<char>(rng()));
    for (int step = 0; step != 20; ++step) {
      script += kSteps[rng() % sizeof(kSteps)];
      // A step reads at most two more bytes, or takes them for steps.
      script += kSteps[rng() % sizeof(kSteps)];
      script += kSteps[rng() % sizeof(kSteps)];
    }
    SCOPED_TRACE(i);
    testing::CheckTlsSession(script);
  }
}

}  // namespace
}  // namespace flare::io

// libFuzzer: replies of a memcached server. They come in pieces whose size the
// first byte chooses, and as a whole: both must give the same answers. Build
// with
//   bazel build --config=fuzzer //rpc:memcached_reader_fuzzer
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/memcached/memcached_reader.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxValue = 1024;

struct Outcome {
  std::vector<MemcachedAnswer> answers;
  std::string failure;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome Read(std::string_view bytes, std::size_t piece) {
  using Result = MemcachedReader::Result;
  MemcachedReader reader(kMaxValue);
  Outcome outcome;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    Buffer in = CreateBufferSlow(bytes.substr(0, piece));
    Result result = Result::kAnswer;
    while (!in.empty() && result != Result::kFailed) {
      MemcachedAnswer answer;
      result = reader.Read(&in, &answer);
      if (answer.reply.value.size() > kMaxValue) std::abort();
      if (result == Result::kAnswer) outcome.answers.push_back(answer);
    }
    if (result == Result::kFailed) break;
  }
  outcome.failure = reader.failure();
  return outcome;
}

}  // namespace
}  // namespace flare::rpc

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1,
                               size - 1);
  using flare::rpc::Read;
  if (Read(bytes, 1 + data[0] % 16) != Read(bytes, size)) std::abort();
  return 0;
}

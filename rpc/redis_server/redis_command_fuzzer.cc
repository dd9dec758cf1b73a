// libFuzzer: input of a Redis server. It comes in pieces whose size the first
// byte chooses, and as a whole: both must give the same commands. Build with
//   bazel build --config=fuzzer //rpc:redis_command_fuzzer
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/redis_server/redis_command_reader.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxSize = 4096;

struct Outcome {
  std::vector<std::vector<std::string>> commands;
  std::string failure;
  bool within = false;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Takes each command out before the next one is read.
Outcome Read(std::string_view bytes, std::size_t piece) {
  using Result = RedisCommandReader::Result;
  RedisCommandReader reader(kMaxSize);
  RedisCommands commands;
  Outcome outcome;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    Buffer in = CreateBufferSlow(bytes.substr(0, piece));
    Result result = Result::kCommand;
    while (!in.empty() && result != Result::kFailed) {
      result = reader.Read(&in, &commands);
      if (commands.memory() > kMaxSize) std::abort();
      if (result != Result::kCommand) continue;
      std::vector<std::string_view> words;
      if (commands.size() != 1) std::abort();
      commands.Get(0, &words);
      if (words.empty()) std::abort();
      outcome.commands.emplace_back(words.begin(), words.end());
      RedisCommands next;
      commands.MoveRest(&next);
      if (!next.empty()) std::abort();
      commands.Clear();
    }
    if (result == Result::kFailed) break;
  }
  outcome.failure = reader.failure();
  outcome.within = reader.within();
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

// Reads commands of a Redis client as their bytes come: arrays of strings, as
// libraries send them, and lines, as people type them into telnet.
//
//   switch (reader.Read(&in, &commands)) {
//     case RedisCommandReader::Result::kCommand: ...   // `in` may have more.
//     case RedisCommandReader::Result::kNeedMore: ...  // `in` is empty.
//     case RedisCommandReader::Result::kFailed: ...    // failure(); for good.
//   }
//
// Takes each byte once, however the bytes are split. A length or a count takes
// no memory before its bytes have come. Not thread-safe.
#ifndef FLARE_RPC_REDIS_SERVER_REDIS_COMMAND_READER_H_
#define FLARE_RPC_REDIS_SERVER_REDIS_COMMAND_READER_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/rpc/redis_server/redis_commands.h"

namespace flare::rpc {

class RedisCommandReader {
 public:
  enum class Result { kNeedMore, kCommand, kFailed };

  // A line: a command of a person, a count or a length.
  static constexpr std::size_t kMaxLine = 64 << 10;
  // Words of a command.
  static constexpr std::size_t kMaxWords = 1 << 20;

  // `max_size`: of one command, as RedisCommands::memory() counts it.
  explicit RedisCommandReader(std::size_t max_size) : max_size_(max_size) {}

  // Adds at most one command to *out, or a part of one: the next call must have
  // that, too, if only by MoveRest().
  Result Read(Buffer* in, RedisCommands* out);

  // A part of a command was taken off the input, and the rest may yet come.
  bool within() const {
    return failure_.empty() && (words_left_ != 0 || !line_.empty());
  }
  // Bytes that the reader itself keeps of it.
  std::size_t kept() const { return line_.size(); }
  // Why Read() has failed, as Redis puts it: "Protocol error: ...".
  const std::string& failure() const { return failure_; }

 private:
  std::size_t Consume(std::string_view bytes, RedisCommands* out);
  std::size_t ConsumeWord(std::string_view bytes, RedisCommands* out);
  std::size_t ConsumeLine(std::string_view bytes, RedisCommands* out);
  void TakeLine(std::string_view line, RedisCommands* out);
  void TakeTyped(std::string_view line, RedisCommands* out);
  void BeginCommand(std::string_view count);
  void BeginWord(std::string_view line);
  [[nodiscard]] bool Charge(std::size_t bytes);
  void Fail(std::string_view what);

  const std::size_t max_size_;
  std::string line_;            // The begin of a line.
  std::size_t words_left_ = 0;  // The command under way lacks them.
  std::size_t bytes_left_ = 0;  // Its word lacks them, line end included.
  std::size_t charged_ = 0;     // Memory of the command.
  bool in_word_ = false;
  bool complete_ = false;
  std::string failure_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_SERVER_REDIS_COMMAND_READER_H_

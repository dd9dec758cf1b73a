// Reads replies of a Redis server, RESP2 and RESP3, as their bytes come.
//
//   switch (reader.Read(&in, &reply)) {
//     case RespReader::Result::kReply: ...     // `in` may have more of them.
//     case RespReader::Result::kNeedMore: ...  // All of `in` has been taken.
//     case RespReader::Result::kFailed: ...    // reader.failure(); for good.
//   }
//
// Takes each byte once, however the bytes are split. The server is trusted in
// nothing: a length or a count takes no memory before it has been compared with
// the limits. Attributes of RESP3 are skipped; strings and aggregates of
// unknown length, which no Redis sends, are malformed. Not thread-safe.
#ifndef FLARE_RPC_REDIS_RESP_READER_H_
#define FLARE_RPC_REDIS_RESP_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/pipeline/crlf_reader.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

class RespReader {
 public:
  struct Limits {
    // Memory of one reply: its bytes, and sizeof(RedisReply) for each element.
    std::size_t max_size = std::size_t{64} << 20;
    // Arrays within arrays.
    std::size_t max_depth = 32;
  };
  enum class Result { kNeedMore, kReply, kFailed };

  // Lines are texts of errors and statuses, numbers and lengths.
  static constexpr std::size_t kMaxLine = CrLfReader::kMaxLine;

  explicit RespReader(const Limits& limits) : limits_(limits) {}

  Result Read(Buffer* in, RedisReply* out);

  // Bytes that the string under way lacks; 0: unknown. After kNeedMore.
  std::size_t expected() const noexcept { return crlf_.left(); }
  // Memory of the last reply, as max_size counts it.
  std::size_t reply_size() const noexcept { return reply_size_; }
  // Why Read() has failed, for people.
  const std::string& failure() const noexcept { return failure_; }
  // It failed as a limit was exceeded.
  bool too_large() const noexcept { return too_large_; }

 private:
  // An aggregate whose elements are coming.
  struct Level {
    RedisReply reply;
    std::uint64_t left;  // Elements.
    bool attribute;      // To be dropped.
  };

  std::size_t Consume(std::string_view bytes);
  std::size_t ConsumeString(std::string_view bytes);
  std::size_t ConsumeLine(std::string_view bytes);
  void TakeLine(std::string_view line);
  void BeginString(char type, std::string_view length);
  void EndString();
  void BeginAggregate(char type, std::string_view count);
  void TakeValue(RedisReply value);
  [[nodiscard]] bool Charge(std::uint64_t bytes);
  void FailTooLarge();
  void Fail(std::string_view what);
  void FailOf(std::string_view what, std::string_view line);

  const Limits limits_;
  std::vector<Level> levels_;  // The innermost last.
  RedisReply value_;           // The string under way, or the whole reply.
  CrLfReader crlf_;
  std::size_t charged_ = 0;  // For the reply under way; up to max_size.
  std::size_t reply_size_ = 0;
  char string_type_ = 0;
  bool complete_ = false;
  bool too_large_ = false;
  std::string failure_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_RESP_READER_H_

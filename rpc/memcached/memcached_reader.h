// Reads replies of a memcached server to meta commands, as their bytes come.
//
//   switch (reader.Read(&in, &answer)) {
//     case MemcachedReader::Result::kAnswer: ...    // `in` may have more.
//     case MemcachedReader::Result::kNeedMore: ...  // All of `in` was taken.
//     case MemcachedReader::Result::kFailed: ...    // failure(); for good.
//   }
//
// Takes each byte once, however the bytes are split. A length takes no memory
// before it has been compared with the limit. Not thread-safe.
#ifndef FLARE_RPC_MEMCACHED_MEMCACHED_READER_H_
#define FLARE_RPC_MEMCACHED_MEMCACHED_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/rpc/memcached_reply.h"
#include "flare/rpc/pipeline/crlf_reader.h"

namespace flare::rpc {

struct MemcachedAnswer {
  enum class Code : std::uint8_t {
    kDone,           // HD
    kValue,          // VA
    kMiss,           // EN
    kNotFound,       // NF
    kNotStored,      // NS
    kExists,         // EX
    kNothing,        // MN
    kAuthenticated,  // STORED
    kError,          // CLIENT_ERROR, SERVER_ERROR
    kUnknownCommand  // ERROR, ERROR Too many open connections
  };

  Code code = Code::kDone;
  MemcachedReply reply = {};  // Its outcome fits the code.
  std::string error = {};     // The line of the last two.

  friend bool operator==(const MemcachedAnswer&,
                         const MemcachedAnswer&) = default;
};

class MemcachedReader {
 public:
  enum class Result { kNeedMore, kAnswer, kFailed };

  explicit MemcachedReader(std::size_t max_value_size)
      : max_value_size_(std::min(max_value_size, kMostBytes)) {}

  Result Read(Buffer* in, MemcachedAnswer* out);

  // Bytes that the value under way lacks; 0: unknown. After kNeedMore.
  std::size_t expected() const noexcept { return crlf_.left(); }
  // Why Read() has failed, for people.
  const std::string& failure() const noexcept { return failure_; }

 private:
  // More than servers send.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 31;

  // Returns how many of `bytes` were taken.
  std::size_t Consume(std::string_view bytes);
  void TakeLine(std::string_view line);
  void BeginValue(std::string_view size);
  [[nodiscard]] bool TakeFlag(std::string_view flag);

  const std::size_t max_value_size_;
  CrLfReader crlf_;
  MemcachedAnswer answer_;
  bool complete_ = false;
  std::string failure_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_MEMCACHED_MEMCACHED_READER_H_

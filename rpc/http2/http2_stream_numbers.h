// The numbers of a client's streams (RFC 9113, section 5.1.1), which only grow:
// the last one that was opened, and some of those that have ended.
//
// Not thread-safe; nothing allocates or blocks.
#ifndef FLARE_RPC_HTTP2_HTTP2_STREAM_NUMBERS_H_
#define FLARE_RPC_HTTP2_HTTP2_STREAM_NUMBERS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace flare::rpc {

class Http2StreamNumbers {
 public:
  // 0: none was opened yet.
  std::int32_t last() const { return last_; }
  // Nobody has opened a stream of that number yet, or can.
  bool IsIdle(std::int32_t id) const { return id > last_ || (id & 1) == 0; }
  // Whether the client may open it now.
  bool IsNext(std::int32_t id) const { return id > last_ && (id & 1) != 0; }

  // On clients.
  bool AnyLeft() const {
    return last_ < std::numeric_limits<std::int32_t>::max() - 1;
  }
  // ... the next one, if any is left.
  std::int32_t Take() { return last_ += last_ == 0 ? 1 : 2; }

  // On servers: the client has opened that one, and passed those between it and
  // the last one over.
  void NoteOpened(std::int32_t id) {
    first_skipped_ = last_ + 1;
    last_ = id;
  }
  // Whether it was passed over by the last one that was opened.
  bool WasSkipped(std::int32_t id) const {
    return id >= first_skipped_ && id < last_;
  }

  // The stream is closed, and the peer has ended it.
  void NoteEnded(std::int32_t id) { ended_[next_++ % ended_.size()] = id; }
  // ... not long ago.
  bool HasEnded(std::int32_t id) const {
    return std::find(ended_.begin(), ended_.end(), id) != ended_.end();
  }

 private:
  std::int32_t last_ = 0;
  std::int32_t first_skipped_ = 0;
  std::array<std::int32_t, 8> ended_ = {};  // The latest.
  std::size_t next_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_STREAM_NUMBERS_H_

// Numbers of streams that wait for their turns, of which many may close
// meanwhile: the time for each is constant.
//
//   line.Add(id);
//   while (!line.empty() && ...) Serve(table.Find(line.Pop()));  // May be
//   null.
//
// Not thread-safe; nothing blocks.
#ifndef FLARE_RPC_HTTP2_HTTP2_STREAM_LINE_H_
#define FLARE_RPC_HTTP2_HTTP2_STREAM_LINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace flare::rpc {

class Http2StreamLine {
 public:
  // Streams that have closed may be left.
  bool empty() const { return next_ == ids_.size(); }

  void Add(std::int32_t id) { ids_.push_back(id); }

  // The one whose turn it is. It may have closed.
  std::int32_t Pop() {
    const std::int32_t id = ids_[next_++];
    if (2 * next_ > ids_.size()) DropServed();
    return id;
  }

  // A stream in line has closed. `is_open(id)`: whether one is open.
  template <class IsOpen>
  void NoteClosed(IsOpen&& is_open) {
    if (2 * ++closed_ <= ids_.size() - next_) return;
    DropServed();
    std::erase_if(ids_, [&](std::int32_t id) { return !is_open(id); });
    closed_ = 0;
  }

 private:
  // The caller waits until they are half of all.
  void DropServed() {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
  }

  std::vector<std::int32_t> ids_;
  std::size_t next_ = 0;    // Those before it have had their turns.
  std::size_t closed_ = 0;  // At most so many of the others have closed.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_STREAM_LINE_H_

// Bounds frames that belong to streams which have ended: their sender may not
// know of the end yet, but a peer that sends nothing else at full speed takes a
// CPU.
//
//   if (table.Find(id) == nullptr && !late.Admit(NowNs(), &table)) Close();
//
// Used by the connection's reader alone; nothing blocks.
#ifndef FLARE_RPC_WIRE_LATE_FRAMES_H_
#define FLARE_RPC_WIRE_LATE_FRAMES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "flare/rpc/stream_table.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/flood_guard.h"

namespace flare::rpc {

class LateFrames {
 public:
  // One more has come. False: there are more than the streams that have ended
  // account for, and too many within a second.
  [[nodiscard]] bool Admit(std::int64_t now_ns, StreamTable* table) {
    if (accounted_ == 0) {
      accounted_ = std::min(table->TakeRemoved(), kMostStreams) * kPerStream;
    }
    if (accounted_ == 0) return guard_.Admit(now_ns);
    --accounted_;
    return true;
  }

 private:
  // As many of the smallest messages as fill both windows of a stream.
  static constexpr std::size_t kPerStream =
      2 * StreamWindow::kMax / StreamWindow::kPerMessage;
  static constexpr std::size_t kMostStreams = 100'000;

  std::size_t accounted_ = 0;
  FloodGuard guard_{FloodGuard::kMaxNotices};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_LATE_FRAMES_H_

// Bounds what an HTTP/2 peer may send that is harmless once and costs a CPU at
// full speed: frames that are no messages, and resets of streams.
//
//   Http2Floods floods(frames_per_second, resets_per_second, open_streams);
//   floods.NoteMessageFrame();
//   if (!floods.AdmitControlFrame()) ...   // The session ends.
//
// Not thread-safe; nothing allocates or blocks.
#ifndef FLARE_RPC_HTTP2_HTTP2_FLOODS_H_
#define FLARE_RPC_HTTP2_HTTP2_FLOODS_H_

#include <algorithm>
#include <cstdint>

#include "flare/base/clock.h"
#include "flare/rpc/wire/flood_guard.h"

namespace flare::rpc {

class Http2Floods {
 public:
  // See NoteMessageFrame().
  static constexpr int kMaxFreeControlFrames = 1 << 15;

  // `max_streams`: as many as may be open at a time.
  Http2Floods(int max_control_frames_per_second, int max_resets_per_second,
              std::uint32_t max_streams)
      : max_streams_(max_streams),
        control_frames_(max_control_frames_per_second),
        resets_(max_resets_per_second) {}

  // A frame of a message, which asks for updates of windows, and for answers to
  // pings. Some clients answer each by an update of the stream's window and one
  // of the connection's, and thousands of frames with small messages may be
  // under way to a client that is slow to read.
  void NoteMessageFrame() {
    free_control_frames_ =
        std::min(free_control_frames_ + 4, kMaxFreeControlFrames);
  }
  // A stream was answered.
  void NoteAnswer() {
    if (free_resets_ < max_streams_) ++free_resets_;
  }

  // A frame that is no message has come. False: too many, as below.
  [[nodiscard]] bool AdmitControlFrame() {
    if (free_control_frames_ == 0) return control_frames_.Admit(NowNs());
    --free_control_frames_;
    return true;
  }
  // We reset a stream for a fault of the peer.
  [[nodiscard]] bool AdmitReset() { return resets_.Admit(NowNs()); }

  enum class Verdict { kFine, kTooManyFrames, kTooManyResets };
  // The peer resets a stream that it opened then. A flood opens streams to
  // reset them. A client whose calls time out may reset thousands at once, too,
  // but it has waited for them: they count as control frames. None is free, or
  // the heads that open streams would pay for it. Where timeouts are shorter
  // than kYoungNs, or resets are read late, other calls have been answered, and
  // each of those pays for a reset.
  [[nodiscard]] Verdict AdmitPeersReset(std::int64_t opened_at_ns,
                                        std::int64_t now_ns) {
    if (now_ns - opened_at_ns >= kYoungNs) {
      return control_frames_.Admit(now_ns) ? Verdict::kFine
                                           : Verdict::kTooManyFrames;
    }
    if (free_resets_ == 0) {
      return AdmitReset() ? Verdict::kFine : Verdict::kTooManyResets;
    }
    --free_resets_;
    return Verdict::kFine;
  }

  // The peer changes the initial window, which concerns all streams.
  [[nodiscard]] bool AdmitWindowChange() {
    return window_changes_.Admit(NowNs());
  }

 private:
  // A peer that resets a stream sooner hasn't waited for an answer.
  static constexpr std::int64_t kYoungNs = 10 * kNsPerMs;
  // Within a second. Peers that fit the window to the network change it now and
  // then.
  static constexpr int kMaxWindowChanges = 100;

  const std::uint32_t max_streams_;
  int free_control_frames_ = 0;    // Exempt ones, see NoteMessageFrame().
  std::uint32_t free_resets_ = 0;  // For streams that were answered.
  FloodGuard control_frames_;
  FloodGuard resets_;
  FloodGuard window_changes_{kMaxWindowChanges};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_FLOODS_H_

// Bounds messages that are harmless each and ask for no call, such as
// heartbeats: a peer that sends nothing else at full speed takes a CPU.
//
//   FloodGuard guard_{FloodGuard::kMaxNotices};
//   if (!guard_.Admit(NowNs())) return Fail("too many heartbeats");
//
// Used by one task at a time; nothing blocks.
#ifndef FLARE_RPC_WIRE_FLOOD_GUARD_H_
#define FLARE_RPC_WIRE_FLOOD_GUARD_H_

#include <cstdint>

#include "flare/base/clock.h"

namespace flare::rpc {

class FloodGuard {
 public:
  // Frames other than calls within a second. Far beyond any peer's needs, and
  // little to a CPU.
  static constexpr int kMaxNotices = 20'000;
  // ... of replies that nobody asked for.
  static constexpr int kMaxReplies = 1000;

  explicit FloodGuard(int max_per_second) : max_per_second_(max_per_second) {}

  // One more has come. False: too many within a second.
  bool Admit(std::int64_t now_ns) {
    if (now_ns - since_ns_ >= 1000 * kNsPerMs) {
      since_ns_ = now_ns;
      count_ = 0;
    }
    return ++count_ <= max_per_second_;
  }

 private:
  const int max_per_second_;
  std::int64_t since_ns_ = 0;
  int count_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_FLOOD_GUARD_H_

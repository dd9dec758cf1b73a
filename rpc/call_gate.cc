// Rules:
//  [CG1] Each call reads one word: how long it may have waited without being
//        asked about. All other state is read and written by calls that waited
//        longer. kAskAll has all calls asked, for as long as the server stops.
//  [CG2] All is relaxed: the words are limits that order no other memory. A
//        call that reads an old one is begun as if it had come a moment sooner.
#include "flare/rpc/call_gate.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kAskAll = -1;

}  // namespace

void CallGate::SetUp(std::chrono::nanoseconds max_wait) {
  if (max_wait.count() != 0) max_wait_ns_ = max_wait.count();
  // relaxed, here and below: [CG2].
  look_beyond_ns_.store(max_wait_ns_, std::memory_order_relaxed);
}

CallGate::Verdict CallGate::Ask(std::int64_t now_ns,
                                std::int64_t waited_ns) const {
  if (now_ns > closed_at_ns_.load(std::memory_order_relaxed)) {
    return Verdict::kStopping;
  }
  return waited_ns > max_wait_ns_ ? Verdict::kOverloaded : Verdict::kBegin;
}

void CallGate::CloseAt(std::int64_t at_ns) {
  std::int64_t before = closed_at_ns_.load(std::memory_order_relaxed);
  while (at_ns < before && !closed_at_ns_.compare_exchange_weak(
                               before, at_ns, std::memory_order_relaxed)) {
  }
  look_beyond_ns_.store(kAskAll, std::memory_order_relaxed);
}

}  // namespace flare::rpc

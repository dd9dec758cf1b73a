#include "flare/rpc/balance/pace.h"

#include <algorithm>

namespace flare::rpc {

void Pace::Note(const CallTotals& totals, std::int64_t now_ns,
                std::int64_t slow_ns) {
  const std::uint64_t calls = totals.calls - noted_.calls;
  const std::uint64_t failures = totals.failures - noted_.failures;
  const std::uint64_t slow = totals.slow - noted_.slow;
  // So many of these were counted while they were under way.
  const std::uint64_t known = std::min({counted_unended_, slow, calls});
  window_.calls += calls - known;
  window_.slow += slow - known;
  // Those that ended without saying anything may have been, too.
  const std::uint64_t ended = totals.ended - noted_.ended;
  const std::uint64_t neutral = ended - std::min(calls, ended);
  counted_unended_ -= std::min(counted_unended_, known + neutral);
  counted_unended_ = std::min(counted_unended_, totals.under_way);
  window_.answered += calls - std::min(failures, calls);
  window_.latency_sum_ns += totals.latency_sum_ns - noted_.latency_sum_ns;
  noted_ = totals;
  NoteUnended(totals, now_ns, slow_ns);
}

// When calls began isn't known one by one. But of those that had begun at the
// mark at most as many have ended since as have ended at all. Their ends don't
// count again.
void Pace::NoteUnended(const CallTotals& totals, std::int64_t now_ns,
                       std::int64_t slow_ns) {
  if (now_ns - marked_at_ns_ < slow_ns) return;
  const std::uint64_t unended =
      std::min(begun_at_mark_ - std::min(begun_at_mark_, totals.ended),
               totals.under_way);
  if (unended > counted_unended_) {
    window_.calls += unended - counted_unended_;
    window_.slow += unended - counted_unended_;
    counted_unended_ = unended;
  }
  marked_at_ns_ = now_ns;
  begun_at_mark_ = totals.ended + totals.under_way;
}

void Pace::CloseWindow() {
  if (window_.answered != 0) {
    mean_ns_ = static_cast<double>(window_.latency_sum_ns) /
               static_cast<double>(window_.answered);
  }
  before_ = window_;
  window_ = {};
}

void Pace::Forget() { window_ = before_ = {}; }

double Pace::LatestSlowShare() const {
  return ShareOf({.calls = window_.calls + before_.calls,
                  .slow = window_.slow + before_.slow});
}

double Pace::ShareOf(const Window& window) {
  return window.calls == 0 ? 0
                           : static_cast<double>(window.slow) /
                                 static_cast<double>(window.calls);
}

}  // namespace flare::rpc

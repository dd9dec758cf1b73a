// A server is
//
//   well        every call is admitted
//   ejected     no call is admitted until retry_at_ns_; the first one after
//               that moves retry_at_ns_ on, by which it is the only one, and is
//               the probe. Its end leads to "recovering", or to a longer
//               ejection. A probe without a verdict is followed by another one
//               when retry_at_ns_ has come again. If it is ejected because of
//               its health checks, that time never comes
//   recovering  a share of the calls is admitted that grows from a tenth to the
//               whole over the slow start; then the server is well
//
// Changes of the mode are made by the group under its lock, except the last
// one, from recovering to well, which any pick makes. That one is by compare
// and exchange, so it doesn't undo an ejection. All else are counters, of which
// none orders anything: all memory orders are relaxed, since each reader makes
// do with a value that is a moment old.
#include "flare/rpc/balance/backend_state.h"

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kAveragedOverNs = 500 * kNsPerMs;

// Until a probe's end is given up.
constexpr std::int64_t kProbeNs = 2 * kNsPerSecond;

constexpr double kFirstShare = 0.1;

}  // namespace

const char* ToString(EjectionReason reason) {
  switch (reason) {
    case EjectionReason::kSilent:
      return "timeouts";
    case EjectionReason::kErrors:
      return "errors";
    case EjectionReason::kSlow:
      return "latency";
    case EjectionReason::kChecks:
      return "health checks";
    case EjectionReason::kNone:
      break;
  }
  return "-";
}

Admission BackendState::AdmitSlowly(std::uint64_t random,
                                    std::int64_t slow_start_ns) {
  const std::int64_t now = NowNs();
  Mode mode = this->mode();
  if (mode == Mode::kEjected) {
    std::int64_t retry_at = retry_at_ns();
    if (now < retry_at) return Admission::kRefused;
    // relaxed: decides only who is the probe.
    return retry_at_ns_.compare_exchange_strong(retry_at, now + kProbeNs,
                                                std::memory_order_relaxed)
               ? Admission::kProbe
               : Admission::kRefused;
  }
  const std::int64_t since =
      now - recovered_at_ns_.load(std::memory_order_relaxed);
  if (since >= slow_start_ns) {
    if (mode == Mode::kRecovering) {
      mode_.compare_exchange_strong(mode, Mode::kWell,
                                    std::memory_order_relaxed);
    }
    return Admission::kAdmitted;
  }
  const double share =
      std::max(kFirstShare,
               static_cast<double>(since) / static_cast<double>(slow_start_ns));
  return static_cast<double>(random >> 11) * 0x1p-53 < share
             ? Admission::kAdmitted
             : Admission::kRefused;
}

std::size_t BackendState::End(Verdict verdict, std::int64_t latency_ns,
                              std::int64_t now_ns) {
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  if (verdict == Verdict::kNeutral) {
    neutral_.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  if (verdict == Verdict::kAnswered) {
    latency_sum_ns_.fetch_add(static_cast<std::uint64_t>(latency_ns),
                              std::memory_order_relaxed);
    if (failed_in_row_.load(std::memory_order_relaxed) != 0) EndRow();
    NoteLatency(latency_ns, now_ns, /*only_if_longer=*/false);
    return 0;
  }
  failures_.fetch_add(1, std::memory_order_relaxed);
  // A server that fails at once is not a fast one.
  NoteLatency(latency_ns, now_ns, /*only_if_longer=*/true);
  return CountFailure(verdict, latency_ns, now_ns);
}

std::size_t BackendState::CountStream(Verdict verdict, std::int64_t took_ns,
                                      std::int64_t now_ns) {
  if (verdict == Verdict::kNeutral) return 0;
  judged_streams_.fetch_add(1, std::memory_order_relaxed);
  if (verdict == Verdict::kAnswered) {
    if (failed_in_row_.load(std::memory_order_relaxed) != 0) EndRow();
    return 0;
  }
  failed_streams_.fetch_add(1, std::memory_order_relaxed);
  return CountFailure(verdict, took_ns, now_ns);
}

// Returns how many have failed in a row.
std::size_t BackendState::CountFailure(Verdict verdict, std::int64_t latency_ns,
                                       std::int64_t now_ns) {
  // An overloaded server refuses some calls and answers others, by chance.
  if (verdict == Verdict::kRefused) return 0;
  if (verdict == Verdict::kFailed && FailedWithAnother(latency_ns, now_ns)) {
    return 0;
  }
  return failed_in_row_.fetch_add(1, std::memory_order_relaxed) + 1;
}

// A failure that begins the next row meanwhile may lose its time. Then another
// call that failed with it counts, too.
void BackendState::EndRow() {
  failed_in_row_.store(0, std::memory_order_relaxed);
  failed_at_ns_.store(0, std::memory_order_relaxed);
}

// Whether the call was under way when the one before it failed: a connection
// that breaks takes all of its calls with it, and says no more by that than if
// it had one.
bool BackendState::FailedWithAnother(std::int64_t latency_ns,
                                     std::int64_t now_ns) {
  std::int64_t before = failed_at_ns_.load(std::memory_order_relaxed);
  return now_ns - latency_ns < before ||
         !failed_at_ns_.compare_exchange_strong(before, now_ns,
                                                std::memory_order_relaxed);
}

// Calls that end at the same time may overwrite each other's contribution.
void BackendState::NoteLatency(std::int64_t latency_ns, std::int64_t now_ns,
                               bool only_if_longer) {
  const std::int64_t old = this->latency_ns();
  std::int64_t average = std::max<std::int64_t>(latency_ns, 1);
  if (old != 0) {
    if (only_if_longer && latency_ns <= old) return;
    const std::int64_t passed = std::max<std::int64_t>(
        now_ns - latency_at_ns_.load(std::memory_order_relaxed), 0);
    // Close to exp(-passed / kAveragedOverNs), and cheaper. At least a little
    // of each call, as many may end at once.
    const double weight =
        std::max(0.01, static_cast<double>(passed) /
                           static_cast<double>(passed + kAveragedOverNs));
    average = std::max<std::int64_t>(
        1, old + static_cast<std::int64_t>(
                     static_cast<double>(latency_ns - old) * weight));
  }
  latency_ns_.store(average, std::memory_order_relaxed);
  latency_at_ns_.store(now_ns, std::memory_order_relaxed);
}

std::int64_t BackendState::DecayedLatencyNs(std::int64_t now_ns) const {
  const std::int64_t idle =
      now_ns - latency_at_ns_.load(std::memory_order_relaxed);
  const std::int64_t halvings =
      std::clamp<std::int64_t>(idle / kAveragedOverNs, 0, 40);
  return latency_ns() >> halvings;
}

void BackendState::Eject(EjectionReason reason, std::int64_t retry_at_ns) {
  retry_at_ns_.store(retry_at_ns, std::memory_order_relaxed);
  reason_.store(reason, std::memory_order_relaxed);
  EndRow();
  mode_.store(Mode::kEjected, std::memory_order_relaxed);
  CloseWindow();
  ejections_.fetch_add(1, std::memory_order_relaxed);
}

void BackendState::Recover(std::int64_t now_ns) {
  recovered_at_ns_.store(now_ns, std::memory_order_relaxed);
  EndRow();
  reason_.store(EjectionReason::kNone, std::memory_order_relaxed);
  // It begins anew: its latency before the ejection would keep a balancer that
  // looks at latencies away.
  latency_ns_.store(0, std::memory_order_relaxed);
  mode_.store(Mode::kRecovering, std::memory_order_relaxed);
}

void BackendState::SetWell() {
  reason_.store(EjectionReason::kNone, std::memory_order_relaxed);
  mode_.store(Mode::kWell, std::memory_order_relaxed);
}

void BackendState::AllowProbe(std::int64_t now_ns) {
  if (retry_at_ns() > now_ns) {
    retry_at_ns_.store(now_ns, std::memory_order_relaxed);
  }
}

BackendState::Window BackendState::Since(const Window& then) const {
  return {calls() - then.calls, failures() - then.failures};
}

void BackendState::CloseWindow() {
  closed_before_ = std::exchange(closed_, {calls(), failures()});
}

CallTotals BackendState::totals() const {
  const std::uint64_t streams = streams_.load(std::memory_order_relaxed);
  const std::uint64_t in_flight = this->in_flight();
  const std::uint64_t calls = calls_.load(std::memory_order_relaxed);
  return {.ended = calls + neutral_.load(std::memory_order_relaxed),
          .calls = calls,
          .failures = failures_.load(std::memory_order_relaxed),
          .slow = slow_.load(std::memory_order_relaxed),
          .latency_sum_ns = latency_sum_ns_.load(std::memory_order_relaxed),
          .under_way = in_flight - std::min(streams, in_flight)};
}

}  // namespace flare::rpc

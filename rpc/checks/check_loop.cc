#include "flare/rpc/checks/check_loop.h"

#include <cerrno>
#include <mutex>
#include <random>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/checks/probe.h"

namespace flare::rpc {
namespace {

flare::Status CheckInTurn(const ServerCheck& check, const std::stop_token& stop,
                          fiber::Mutex* turn, std::int64_t* began_ns)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<fiber::Mutex> held;
  if (turn != nullptr) {
    if (!turn->lock(stop)) return flare::Status(ECANCELED);
    held = std::unique_lock(*turn, std::adopt_lock);
  }
  *began_ns = NowNs();
  return CheckServer(check, stop);
}

}  // namespace

bool CheckVerdict::Note(const flare::Status& outcome,
                        const HealthCheckOptions& options) {
  if (IsShortage(outcome.code())) return false;
  const bool good = outcome.ok();
  if (!decided_) {
    decided_ = true;
    healthy_ = good;
    return true;
  }
  if (good == healthy_) {
    against_ = 0;
    return false;
  }
  if (++against_ < (good ? options.rise : options.fall)) return false;
  against_ = 0;
  healthy_ = good;
  return true;
}

CheckPauses::CheckPauses(const HealthCheckOptions& options)
    : interval_(options.interval),
      span_(options.interval / 100 * options.jitter_percent),
      seed_(MixBits(std::random_device{}())) {}

std::chrono::nanoseconds CheckPauses::Next() {
  const auto random = static_cast<double>(MixBits(++seed_) >> 11) * 0x1p-52;
  // From interval - span to interval + span.
  return interval_ + std::chrono::nanoseconds(static_cast<std::int64_t>(
                         static_cast<double>(span_.count()) * (random - 1)));
}

void RepeatChecks(
    const ServerCheck& check, const std::stop_token& stop, fiber::Mutex* turn,
    const std::function<void(const flare::Status&, std::int64_t)>& on_outcome) {
  this_fiber::SetName("health_check");
  CheckPauses pauses(check.options);
  do {
    std::int64_t began_ns = 0;
    const flare::Status status = CheckInTurn(check, stop, turn, &began_ns);
    if (status.code() == ECANCELED) return;
    on_outcome(status, began_ns);
  } while (this_fiber::SleepFor(stop, pauses.Next()));
}

}  // namespace flare::rpc

// Repeated checks of one server, and their verdict.
//
//   CheckVerdict verdict;
//   RepeatChecks(check, stop, nullptr, [&](const Status& status, auto) {
//     if (verdict.Note(status, check.options)) Tell(verdict.healthy());
//   });

#ifndef FLARE_RPC_CHECKS_CHECK_LOOP_H_
#define FLARE_RPC_CHECKS_CHECK_LOOP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>

#include "flare/base/status.h"
#include "flare/fiber/mutex.h"
#include "flare/rpc/checks/server_check.h"
#include "flare/rpc/health_check_options.h"

namespace flare::rpc {

// The verdict of a row of checks on a server. The first check decides alone.
// After that `rise` passed checks in a row make the server healthy, and `fall`
// failed ones unhealthy. A plain value.
class CheckVerdict {
 public:
  // Adds the outcome of a check. True: healthy() has changed, or was decided
  // for the first time. A shortage on our side (IsShortage()) doesn't count.
  [[nodiscard]] bool Note(const flare::Status& outcome,
                          const HealthCheckOptions& options);

  bool decided() const { return decided_; }
  bool healthy() const { return healthy_; }

 private:
  bool decided_ = false;
  bool healthy_ = true;
  int against_ = 0;  // Checks in a row that contradict healthy_.
};

// The pauses between one server's checks: `options.interval` each, longer or
// shorter by up to `options.jitter_percent`. Each object draws its own random
// numbers, so that checks of other processes and of other servers don't keep in
// step. A plain value.
class CheckPauses {
 public:
  explicit CheckPauses(const HealthCheckOptions& options);

  std::chrono::nanoseconds Next();

 private:
  std::chrono::nanoseconds interval_;
  std::chrono::nanoseconds span_;
  std::uint64_t seed_;
};

// Checks at once, and after each pause, until a stop is requested. Holds `turn`
// (null: none) during each check, so that loops that share it check one at a
// time. Calls `on_outcome` after each check, with the time at which the check
// began. Blocks the fiber.
void RepeatChecks(const ServerCheck& check, const std::stop_token& stop,
                  fiber::Mutex* turn,
                  const std::function<void(const flare::Status&,
                                           std::int64_t began_ns)>& on_outcome);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CHECKS_CHECK_LOOP_H_

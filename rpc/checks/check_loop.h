// Checks of one server, again and again, and what they say together.
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

// What a row of checks says about a server. The first check decides alone;
// after that `rise` good ones in a row make it healthy, `fall` bad ones
// unhealthy. A plain value.
class CheckVerdict {
 public:
  // One more check, with this outcome. True: healthy() is another one than
  // before, or was decided for the first time. A shortage of ours counts for
  // nothing.
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
// shorter by up to `options.jitter_percent`. Each object draws others, so that
// neither other processes nor the checks of other servers keep in step with
// these. A plain value.
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
// (null: none) during each check, so that it is the only one of those who share
// it. Calls `on_outcome` after each, with the time at which it began. Blocks
// the fiber.
void RepeatChecks(const ServerCheck& check, const std::stop_token& stop,
                  fiber::Mutex* turn,
                  const std::function<void(const flare::Status&,
                                           std::int64_t began_ns)>& on_outcome);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CHECKS_CHECK_LOOP_H_

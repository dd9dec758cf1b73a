// Asks the upstreams again and again how they are, and tells the upstream set.
//
//   HealthChecker checker;
//   checker.Update(config, proxy->upstreams());    // also after each reload
//   ...
//   checker.Stop();

#ifndef EXAMPLE_PROXY_HEALTH_CHECKER_H_
#define EXAMPLE_PROXY_HEALTH_CHECKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "example/proxy/config.h"
#include "example/proxy/upstream.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/fiber.h"
#include "flare/rpc/checks/check_loop.h"
#include "flare/rpc/checks/server_check.h"

namespace example::proxy {

// The checks of `config` that an upstream of this name and address gets.
flare::rpc::ServerCheck CheckOf(const ProxyConfig& config,
                                const std::string& name,
                                const flare::Endpoint& address);

class HealthChecker {
 public:
  // `on_silent` is called, on a fiber, when Upstream::silent_since_ns() of an
  // upstream has been set. Must not block for long.
  explicit HealthChecker(std::function<void()> on_silent = {})
      : on_silent_(std::move(on_silent)) {}
  // Does Stop().
  ~HealthChecker() { Stop(); }

  HealthChecker(const HealthChecker&) = delete;
  HealthChecker& operator=(const HealthChecker&) = delete;

  // From now on checks these, each by a fiber of its own, as `config` says. The
  // results of those that were checked before are kept. With Type::kNone
  // nothing is checked, and all count as healthy. Not thread-safe with itself
  // and Stop(); blocks the fiber until running checks are broken off.
  void Update(const ProxyConfig& config,
              const std::vector<flare::RefPtr<Upstream>>& upstreams);

  // Ends all checks; verdicts stay. Blocks like Update().
  void Stop();

  struct Statistics {
    std::uint64_t checks = 0;
    std::uint64_t failures = 0;
    std::string last_error;  // The last check's; empty if it was good.
  };
  // All zero for those that aren't checked. Thread-safe; doesn't block.
  Statistics StatisticsOf(const Upstream& upstream) const;

 private:
  // One upstream under observation.
  struct Patient {
    explicit Patient(flare::RefPtr<Upstream> u) : upstream(std::move(u)) {}

    const flare::RefPtr<Upstream> upstream;
    // Its fiber's own.
    flare::rpc::CheckVerdict verdict;
    std::int64_t silent_from_ns = 0;  // The first of a row without an answer.
    std::int64_t silent_for_ns = 0;   // The silence that made it unhealthy.
    mutable flare::Spinlock lock;
    Statistics statistics FLARE_GUARDED_BY(lock);
  };

  static void Note(const flare::rpc::ServerCheck& check,
                   const flare::Status& status, Patient* patient);
  void NoteSilence(const flare::Status& status, std::int64_t began_ns,
                   Patient* patient);

  std::shared_ptr<Patient> Find(const Upstream& upstream) const;

  const std::function<void()> on_silent_;
  mutable flare::Spinlock lock_;
  std::vector<std::shared_ptr<Patient>> patients_ FLARE_GUARDED_BY(lock_);
  std::stop_source stop_;
  std::vector<flare::Fiber> fibers_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_HEALTH_CHECKER_H_

// A whole proxy with all that belongs to it: the data path, health checks,
// access log, statistics and their pages; started, reloaded and drained.
//
//   Supervisor supervisor(ConfigSourceFromFlags());
//   if (Status s = supervisor.Start(config); !s.ok()) { LOG(ERROR) << s; ... }
//   return supervisor.ServeUntilQuitSignal();

#ifndef EXAMPLE_PROXY_SUPERVISOR_H_
#define EXAMPLE_PROXY_SUPERVISOR_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "example/proxy/access_log.h"
#include "example/proxy/config.h"
#include "example/proxy/hangup_signal.h"
#include "example/proxy/health_checker.h"
#include "example/proxy/proxy.h"
#include "example/proxy/statistics.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/server.h"

namespace example::proxy {

class Supervisor {
 public:
  // Reload() reads `source`.
  explicit Supervisor(ConfigSource source);
  // Ends everything, cutting the remaining sessions. Blocks the fiber.
  ~Supervisor();

  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Opens the access log and the pages, begins to listen and to check; SIGHUP
  // means Reload() from here on. Once, on a fiber. The error names the
  // impossible setting, and the remedy; EAGAIN: there are too few threads;
  // EMFILE, ENFILE, ENOBUFS, ENOMEM: too few descriptors or too little memory
  // (EIO where the pages can't be opened, whatever they lack).
  flare::Status Start(const ProxyConfig& config);

  // Blocks the fiber until the process is told to quit, then drains. Returns
  // the program's exit status: 0 if all sessions came to their own end, 1 if
  // some had to be cut.
  int ServeUntilQuitSignal();

  // Reads the configuration again and applies it; opens the access log anew. A
  // failure is logged and counted, and all stays as it was. Blocks the fiber.
  // Thread-safe; no effect while draining, which breaks it off.
  void Reload();

  // Stops accepting and waits for the sessions, at most `drain_deadline`; cuts
  // the rest. Returns like ServeUntilQuitSignal().
  int Drain();

  // Thread-safe, once started.
  Snapshot TakeSnapshot() const;

 private:
  flare::Status Apply(std::shared_ptr<const ProxyConfig> config);
  flare::Status StartAdmin(const ProxyConfig& config);
  void OnSessionEnd(const SessionReport& report);
  // Has statistics logged every `interval`; 0: no more.
  void KeepTicking(std::chrono::nanoseconds interval);
  // Logs a last line, about the time since the one before it.
  void StopTicker();

  const ConfigSource source_;
  const std::int64_t started_ns_;
  AccessLog access_log_;
  std::unique_ptr<Proxy> proxy_;
  HealthChecker health_{[this] { proxy_->CutSilent(); }};
  std::unique_ptr<flare::Server> admin_;

  // One of Start, Reload and Drain at a time.
  flare::fiber::Mutex control_;
  std::unique_ptr<HangupSignal> hangup_;
  std::stop_source quit_;  // No reload may begin any more.
  std::chrono::nanoseconds ticker_interval_{0};
  std::stop_source ticker_stop_;
  flare::Fiber ticker_;
  Snapshot last_line_;  // The snapshot of the last line; the ticker's.

  std::atomic<bool> draining_{false};
  std::atomic<std::uint64_t> generation_{1};
  mutable flare::Spinlock reload_lock_;
  std::uint64_t reloads_refused_ FLARE_GUARDED_BY(reload_lock_) = 0;
  std::string last_reload_error_ FLARE_GUARDED_BY(reload_lock_);
  flare::rpc::LogThrottle session_log_;
};

// Checks that each upstream can be connected to, and logs those that can't be
// as warnings with their place in the configuration. Returns how many those
// are. Blocks the fiber until all have answered or timed out.
int CountUnreachable(const ProxyConfig& config);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_SUPERVISOR_H_

// All sessions: their number in each scheduling group, their statistics, and a
// way to reach all of them.

#ifndef EXAMPLE_PROXY_SESSION_REGISTRY_H_
#define EXAMPLE_PROXY_SESSION_REGISTRY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "example/proxy/session_report.h"
#include "flare/base/cpu.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/mutex.h"

namespace example::proxy {

class Session;

// Thread-safe. Nothing blocks but WaitUntilEmpty().
class SessionRegistry {
 public:
  // For the scheduling groups of the runtime that runs now.
  explicit SessionRegistry(OnSessionEnd on_end);
  ~SessionRegistry();

  // Counts a client that was accepted in `group`. False: there are `max`
  // already, and it must be refused. Else Leave() or
  // LeaveUnbegun() must follow; `*home` is the
  // group where its session is to live: `group`, unless another one has fewer.
  [[nodiscard]] bool Enter(std::size_t max, std::size_t group,
                           std::size_t* home);

  // Between Enter() and Leave(): makes the session known to CutAll().
  void Add(Session* session, std::size_t home);

  // The session is over: reports it and forgets it.
  void Leave(Session* session, std::size_t home, const SessionReport& report);

  // In place of Leave(), where there was no memory for the session.
  void LeaveUnbegun(std::size_t home);

  // A client that was not let in.
  void ReportRefused(const SessionReport& report);

  // Calls Cut() of all sessions.
  void CutAll();

  // Calls LookAtUpstream() of all sessions.
  void LookAtUpstreams();

  // True: there are none. False: NowNs() has reached the deadline. Blocks the
  // fiber.
  bool WaitUntilEmpty(std::int64_t deadline_ns);

  void CountConnectFailure() noexcept;
  void CountRetry() noexcept;
  void CountBytes(std::uint64_t to_upstream, std::uint64_t to_client) noexcept;

  ProxyStatistics statistics() const;
  std::vector<std::uint64_t> sizes() const;  // By group.

 private:
  // Each on cache lines of its own: groups don't meet here.
  struct alignas(flare::kCacheLine) Group {
    std::atomic<std::uint64_t> size{0};
    flare::Spinlock lock;
    flare::IntrusiveList<Session> sessions FLARE_GUARDED_BY(lock);
  };

  void CountEnd(const SessionReport& report) noexcept;
  void CountLeft(Group& group);

  const OnSessionEnd on_end_;
  std::vector<Group> groups_;
  std::atomic<std::uint64_t> active_{0};
  std::atomic<std::uint64_t> accepted_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::uint64_t> connect_failures_{0};
  std::atomic<std::uint64_t> retries_{0};
  std::atomic<std::uint64_t> unserved_{0};
  std::atomic<std::uint64_t> idle_{0};
  std::atomic<std::uint64_t> aborted_{0};
  std::atomic<std::uint64_t> bytes_to_upstream_{0};
  std::atomic<std::uint64_t> bytes_to_client_{0};

  flare::fiber::Mutex empty_lock_;
  flare::fiber::ConditionVariable empty_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_SESSION_REGISTRY_H_

// The servers of one channel and their health: which of them are ejected, and
// when they may come back (health_options.h). All balancers share them.

#ifndef FLARE_RPC_BALANCE_BACKEND_GROUP_H_
#define FLARE_RPC_BALANCE_BACKEND_GROUP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/balance/backend_state.h"
#include "flare/rpc/health_options.h"
#include "flare/rpc/load_balancer.h"

namespace flare::rpc {

// Thread-safe. Nothing blocks for longer than another thread takes to look at
// all servers.
class BackendGroup {
 public:
  explicit BackendGroup(const HealthOptions& options);

  // From now on the group is these. Those that it had before keep their states.
  Backends Update(std::vector<Peer> peers);

  // --- For each call ---

  Admission Admit(BackendState* state, std::uint64_t random) const {
    // relaxed: a hint.
    if (panic_.load(std::memory_order_relaxed)) [[unlikely]] {
      return Admission::kAdmitted;
    }
    return state->Admit(random, slow_start_ns_);
  }
  // A call has ended on the server. `probe`: it was admitted as one.
  void End(BackendState* state, Verdict verdict, std::int64_t latency_ns,
           std::int64_t now_ns, bool probe);
  // The first message of a stream has come. Its end is neutral then.
  void AnswerStream(BackendState* state, std::int64_t now_ns, bool probe);
  // A stream has ended on the server, `took_ns` after its begin.
  void EndStream(BackendState* state, Verdict verdict, std::int64_t took_ns,
                 std::int64_t now_ns, bool probe);

  // --- From time to time ---

  // Notes the verdict of health checks (health_check_options.h). An unhealthy
  // server gets no calls until it is healthy, whatever share is ejected
  // already.
  void NoteChecks(BackendState* state, bool healthy);

  // Some times in each interval.
  bool ReviewIsDue(std::int64_t now_ns);
  // Compares the servers' latest calls, and ejects.
  void Review(std::int64_t now_ns);
  // So many of all servers can be connected to and aren't ejected.
  void NoteUsable(std::size_t usable, std::size_t all);
  bool panic() const { return panic_.load(std::memory_order_relaxed); }

  std::size_t ejected() const;

 private:
  using State = std::shared_ptr<BackendState>;
  struct Member {
    Peer peer;
    State state;
  };

  void Heed(BackendState* state, Verdict verdict, std::size_t failed, bool slow,
            std::int64_t now_ns, bool probe);
  void FailedInRow(BackendState* state, Verdict latest, std::int64_t now_ns);
  void ProbeEnded(BackendState* state, Verdict verdict, bool slow,
                  std::int64_t now_ns);
  void Readmit(BackendState* state, std::int64_t now_ns) FLARE_REQUIRES(mutex_);
  bool FailsMoreThanOthers(const BackendState* state) const
      FLARE_REQUIRES(mutex_);
  void ReviewErrors(std::int64_t now_ns) FLARE_REQUIRES(mutex_);
  std::size_t MinCalls(const BackendState& state) const;
  void ReviewLatencies(std::int64_t now_ns) FLARE_REQUIRES(mutex_);
  std::size_t CallsOfWindow(const BackendState& state) const;
  bool OthersAreSlow(const BackendState* state) const FLARE_REQUIRES(mutex_);
  std::int64_t SlowFrom() const FLARE_REQUIRES(mutex_);
  bool TryToEject(BackendState* state, EjectionReason reason,
                  std::int64_t now_ns) FLARE_REQUIRES(mutex_);
  void Prolong(BackendState* state, EjectionReason reason, std::int64_t now_ns)
      FLARE_REQUIRES(mutex_);
  std::size_t EjectedLocked() const FLARE_REQUIRES(mutex_);

  const HealthOptions options_;
  const std::int64_t slow_start_ns_;
  std::atomic<bool> panic_{false};
  std::atomic<std::int64_t> next_review_ns_{0};
  // Calls that take as long are slow.
  std::atomic<std::int64_t> slow_ns_{std::numeric_limits<std::int64_t>::max()};
  mutable ThreadMutex mutex_;
  std::vector<Member> members_ FLARE_GUARDED_BY(mutex_);
  std::int64_t interval_ends_ns_ FLARE_GUARDED_BY(mutex_) = 0;
  std::int64_t errors_due_ns_ FLARE_GUARDED_BY(mutex_) = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_BALANCE_BACKEND_GROUP_H_

// Whether a call that comes to its worker is begun: not if it has waited for
// too long, nor once its server has stopped for it.
//
//   if (!gate->IsOpen(waited_ns)) {
//     switch (gate->Ask(call)) { ... }
//   }
//
// A server that is offered more calls than it can do has a queue that grows
// until callers give up, and then works on calls that nobody waits for. So, by
// default, a call is refused once it has waited so long that its reply would
// come late. From then on others are refused after some milliseconds, until the
// queue has been short for a while: calls that are begun are answered quickly.
// A server whose calls wait, but not for too long, refuses none: many callers
// that wait for their replies before they call again are no overload.
//
// A server has one gate for each scheduling group. Any thread, except SetUp();
// nothing blocks. Rules in call_gate.cc.
#ifndef FLARE_RPC_SERVER_CALL_GATE_H_
#define FLARE_RPC_SERVER_CALL_GATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"

namespace flare::rpc {

class alignas(kCacheLine) CallGate {
 public:
  enum class Verdict { kBegin, kOverloaded, kStopping };

  struct Call {
    std::int64_t now_ns = 0;     // NowNs()
    std::int64_t waited_ns = 0;  // By then.
    // The caller waits for so long; 0: it hasn't said.
    std::int64_t timeout_ns = 0;
    // Calls of its method have taken so long lately; 0: not known.
    std::int64_t usual_ns = 0;
    // Its method has a limit of its own.
    bool limited = false;
  };

  // By default: calls that waited no longer are begun.
  static constexpr std::int64_t kNeverLongNs = 5 * kNsPerMs;
  // By default: callers that don't say how long they wait are taken to accept
  // so long a wait, or twice the method's usual time.
  static constexpr std::int64_t kUsualPatienceNs = kNsPerSecond;
  // While it sheds: calls may also wait while so many arrive.
  static constexpr std::int64_t kShedCalls = 4;

  // Rules that the caller has of its own.
  enum class OtherRules {
    kNone,
    kSome,        // Each call is asked about.
    kKeepItShort  // ... and they keep the queue short: by default calls are
                  // only refused if their replies would come late.
  };

  // Before anything else. Calls that waited longer than `max_wait` are refused;
  // 0: none are; negative: the default described at the top.
  void SetUp(std::chrono::nanoseconds max_wait,
             OtherRules others = OtherRules::kNone);

  // True: a call that waited for so long is begun. False: ask.
  bool IsOpen(std::int64_t waited_ns) const {
    // relaxed: a limit, nothing is ordered by it.
    return waited_ns <= look_beyond_ns_.load(std::memory_order_relaxed);
  }
  Verdict Ask(const Call& call);

  // Calls that come to their workers after `at_ns` (NowNs()) are refused:
  // kStopping. A second time the earlier moment holds.
  void CloseAt(std::int64_t at_ns);

  // By default: how long a call may wait while there is no overload.
  static std::int64_t LongestWait(const Call& call);

 private:
  static constexpr std::int64_t kNever =
      std::numeric_limits<std::int64_t>::max();

  Verdict AskQueue(const Call& call);
  void NoteLate(std::int64_t longest_ns, std::int64_t now_ns);
  void BeginShedding(std::int64_t bound_ns, std::int64_t now_ns);
  void EndShedding();
  std::int64_t ShedWait(std::int64_t longest_ns) const;
  void FollowTime(const Call& call);
  void CloseInterval(std::int64_t length_ns, const Call& next);

  std::atomic<std::int64_t> look_beyond_ns_{kNever};  // [CG1]
  std::atomic<std::int64_t> closed_at_ns_{kNever};
  std::int64_t max_wait_ns_ = kNever;           // Constant once set up.
  bool automatic_ = false;                      // Follows the load.
  bool may_shed_ = true;                        // Constant once set up.
  std::atomic<std::int64_t> late_since_ns_{0};  // [CG3]
  std::atomic<std::int64_t> last_late_ns_{0};
  std::atomic<std::int64_t> shed_bound_ns_{0};  // [CG3]; 0: doesn't shed.
  std::atomic<std::int64_t> shed_since_ns_{0};
  std::atomic<std::int64_t> shed_wait_ns_{0};     // [CG4]
  std::atomic<std::int64_t> interval_end_ns_{0};  // [CG4]
  std::atomic<std::int64_t> asked_{0};      // Calls of the interval so far.
  std::atomic<std::int64_t> long_{0};       // ... that waited for long [CG5].
  std::atomic<std::int64_t> begun_{0};      // ... that were begun.
  std::atomic<std::int64_t> full_rate_{0};  // [CG5]
  std::atomic<std::int64_t> last_waited_ns_{0};  // [CG5]
  std::atomic<std::int64_t> last_useful_ns_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_GATE_H_

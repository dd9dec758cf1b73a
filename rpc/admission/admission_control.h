// The rules of AdmissionOptions for one server: they decide whether a worker
// begins a call. docs/admission.md explains them.
//
//   if (!control->Admit(call)) return Refuse();
//   ...
//   control->Leave(ended);
//
// Any thread, after SetUp(); nothing blocks, allocates or takes a lock.
#ifndef FLARE_RPC_ADMISSION_ADMISSION_CONTROL_H_
#define FLARE_RPC_ADMISSION_ADMISSION_CONTROL_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "flare/base/cpu.h"
#include "flare/rpc/admission/adaptive_limit.h"
#include "flare/rpc/admission/priority.h"
#include "flare/rpc/admission/queue_watch.h"
#include "flare/rpc/admission_options.h"
#include "flare/rpc/server_statistics.h"

namespace flare::rpc {

// The state of one method.
struct MethodAdmission {
  bool limited = false;  // Uses `limit`. Constant after SetUp().
  AdaptiveLimit limit;
  alignas(kCacheLine) std::atomic<std::uint64_t> running{0};
  // When the next late call is begun all the same.
  std::atomic<std::int64_t> late_call_ns{0};
};

class AdmissionControl {
 public:
  struct Call {
    std::size_t group = 0;       // The scheduling group that serves it.
    std::int64_t now_ns = 0;     // NowNs()
    std::int64_t waited_ns = 0;  // Time in queue until then.
    // How long the caller waits, counted from when the call was read; 0: not
    // known.
    std::int64_t timeout_ns = 0;
    // How long calls of its method have taken lately; 0: not known.
    std::int64_t usual_ns = 0;
    // Queued and running calls, this one included.
    std::uint64_t under_way = 0;
    // Null for a request that isn't a call of a method.
    MethodAdmission* method = nullptr;
    bool streaming = false;
    std::size_t priority = kDefaultPriority;  // Used if there is a key.
  };

  // A call that Admit() has let in.
  struct Ended {
    MethodAdmission* method = nullptr;  // That of its Call.
    bool streaming = false;             // That of its Call.
    // Its method was called, so that its duration tells how long calls take.
    bool timed = true;
    std::int64_t received_ns = 0;
    std::int64_t dispatched_ns = 0;  // When a worker took it.
    std::int64_t now_ns = 0;
  };

  // Limits never exceed `most_calls`.
  AdmissionControl(const AdmissionOptions& options, std::size_t groups,
                   std::uint64_t most_calls);

  // Call it before the method's first call.
  void SetUp(MethodAdmission* method) const {
    method->limited = options_.method_limits != Mode::kOff;
    method->limit.SetUp(most_);
  }

  // True: the call may begin, and Leave() must follow. False: it is refused.
  [[nodiscard]] bool Admit(const Call& call);

  void Leave(const Ended& call);

  // Empty if calls have no priorities.
  const std::string& priority_key() const { return options_.priority_key; }

  AdmissionStatistics statistics() const;

 private:
  using Mode = AdmissionOptions::Mode;
  using Rule = AdmissionRule;

  bool has_priorities() const { return !options_.priority_key.empty(); }
  bool IsRefused(const Call& call, double share);
  bool IsLate(const Call& call) const;
  bool IsBeyondLimit(const Call& call, double share);
  bool IsBeyondMethodLimit(MethodAdmission* method, double share);
  // Counts a call that exceeds the rule. Returns whether to refuse it.
  bool Judge(Rule rule, Mode mode, bool exceeds);

  const AdmissionOptions options_;
  const std::uint64_t most_;
  std::vector<QueueWatch> queues_;  // One for each scheduling group.
  AdaptiveLimit limit_;
  std::atomic<std::uint64_t> streams_{0};
  // The counters of one rule.
  struct alignas(kCacheLine) Counters {
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> would_refuse{0};
  };
  std::array<Counters, kAdmissionRules> counters_;
  // Used only with priorities.
  PriorityMix mix_;
  std::atomic<std::uint64_t> running_{0};  // Begun calls, except streams.
  std::array<std::atomic<std::uint64_t>, kPriorities> refused_by_priority_{};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_ADMISSION_CONTROL_H_

// The rules of AdmissionOptions for one server: whether a call that comes to
// its worker is begun. docs/admission.md has their meaning.
//
//   if (!control->Admit(call)) return Refuse();
//   ...
//   control->Leave(ended);
//
// Any thread once set up; nothing blocks, allocates or takes a lock.
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

// State of one method.
struct MethodAdmission {
  bool limited = false;  // By `limit`. Constant once set up.
  AdaptiveLimit limit;
  alignas(kCacheLine) std::atomic<std::uint64_t> running{0};
  // When a call is begun next whose caller waits for too short a time.
  std::atomic<std::int64_t> late_call_ns{0};
};

class AdmissionControl {
 public:
  struct Call {
    std::size_t group = 0;       // The scheduling group that serves it.
    std::int64_t now_ns = 0;     // NowNs()
    std::int64_t waited_ns = 0;  // By then.
    // The caller waits for so long, from when the call was read; 0: it hasn't
    // said.
    std::int64_t timeout_ns = 0;
    // Calls of its method have taken so long lately; 0: not known.
    std::int64_t usual_ns = 0;
    // Calls in queue and running, this one included.
    std::uint64_t under_way = 0;
    // Null for a request that isn't a call of a method.
    MethodAdmission* method = nullptr;
    bool streaming = false;
    std::size_t priority = kDefaultPriority;  // If there are priorities.
  };

  // A call that was let in.
  struct Ended {
    MethodAdmission* method = nullptr;  // As of its Call.
    bool streaming = false;             // Likewise.
    // Its method was called, so that its duration tells how long calls take.
    bool timed = true;
    std::int64_t received_ns = 0;
    std::int64_t dispatched_ns = 0;  // To its worker.
    std::int64_t now_ns = 0;
  };

  // Limits never exceed `most_calls`.
  AdmissionControl(const AdmissionOptions& options, std::size_t groups,
                   std::uint64_t most_calls);

  // Before the first call.
  void SetUp(MethodAdmission* method) const {
    method->limited = options_.method_limits != Mode::kOff;
    method->limit.SetUp(most_);
  }

  // True: the call begins, and Leave() is to follow. False: it is refused.
  [[nodiscard]] bool Admit(const Call& call);

  void Leave(const Ended& call);

  // Empty: there are no priorities.
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
  // Whether that refuses the call.
  bool Judge(Rule rule, Mode mode, bool exceeds);

  const AdmissionOptions options_;
  const std::uint64_t most_;
  std::vector<QueueWatch> queues_;  // One for each scheduling group.
  AdaptiveLimit limit_;
  std::atomic<std::uint64_t> streams_{0};
  // Of each rule.
  struct alignas(kCacheLine) Counters {
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> would_refuse{0};
  };
  std::array<Counters, kAdmissionRules> counters_;
  // Only with priorities.
  PriorityMix mix_;
  std::atomic<std::uint64_t> running_{0};  // That have begun; no streams.
  std::array<std::atomic<std::uint64_t>, kPriorities> refused_by_priority_{};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_ADMISSION_CONTROL_H_

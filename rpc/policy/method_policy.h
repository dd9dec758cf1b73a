// A policy (call_policy.h) as calls use it.
#ifndef FLARE_RPC_POLICY_METHOD_POLICY_H_
#define FLARE_RPC_POLICY_METHOD_POLICY_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/policy/call_policy.h"

namespace flare::rpc {

// Thread-safe; nothing blocks.
class MethodPolicy {
 public:
  explicit MethodPolicy(CallPolicy policy) : policy_(std::move(policy)) {}
  MethodPolicy(const MethodPolicy&) = delete;
  MethodPolicy& operator=(const MethodPolicy&) = delete;

  const CallPolicy& policy() const { return policy_; }

  // Finds contradictions, with a text.
  static flare::Status Check(const CallPolicy& policy);

  // How long a call waits before its next hedged attempt.
  std::int64_t HedgingDelayNs() const;
  // A call has been answered in so long.
  void NoteLatency(std::int64_t ns);

 private:
  static constexpr std::size_t kSamples = 256;
  static constexpr std::size_t kBetweenUpdates = 64;

  const CallPolicy policy_;
  // The delay of the last calls; 0: too few yet. Relaxed: a number by itself.
  std::atomic<std::int64_t> delay_ns_{0};
  Spinlock lock_;
  std::size_t noted_ FLARE_GUARDED_BY(lock_) = 0;
  std::array<std::int64_t, kSamples> samples_ FLARE_GUARDED_BY(lock_) = {};
};

// How long a call waits before its n-th retry, n from 1: `random` is any
// number.
std::int64_t BackoffNs(const RetryPolicy& policy, std::size_t retry,
                       std::uint64_t random);

// A server's answer in kRetryPushback: when a call may be repeated.
enum class Pushback { kNever, kAfter };
Pushback ParsePushback(std::string_view text, std::int64_t* ns);

// Whether a call that failed with `code` may be repeated. `statuses` are those
// of the policy; `twice`: the method may run twice.
bool IsRepeated(const std::vector<int>& statuses, int code, bool twice);

}  // namespace flare::rpc

#endif  // FLARE_RPC_POLICY_METHOD_POLICY_H_

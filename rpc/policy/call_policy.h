// The policy of a method for calls that fail or are slow (call_policies.h).
#ifndef FLARE_RPC_POLICY_CALL_POLICY_H_
#define FLARE_RPC_POLICY_CALL_POLICY_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

namespace flare {

// One attempt after the other. The next one goes to another server, if there is
// one. Before it the call waits: between nothing and `initial_backoff`, the
// second time up to `multiplier` times that, and so on, at random.
struct RetryPolicy {
  std::size_t max_attempts = 3;  // The first one is one of them.
  std::chrono::nanoseconds initial_backoff = std::chrono::milliseconds(20);
  std::chrono::nanoseconds max_backoff = std::chrono::seconds(1);
  double multiplier = 2;
  // An attempt that takes longer has failed; its server isn't blamed for it.
  // 0: it has all the time that the call has.
  std::chrono::nanoseconds attempt_timeout{0};
  // Codes (rpc_status.h) after which a call is repeated. Empty: those that say
  // that no server has run it, or that its connection broke (repeatable.h).
  // It is repeated in any case after an attempt that took too long.
  std::vector<int> statuses = {};
};

// Attempts side by side: the first good reply is the call's, and the others are
// cancelled.
struct HedgingPolicy {
  std::size_t max_attempts = 2;  // The first one is one of them.
  // How long the call waits for those under way before it begins another one.
  std::chrono::nanoseconds delay = std::chrono::milliseconds(10);
  // Above 0: in place of `delay` the time in which this share of the last calls
  // under this policy was answered, such as 0.95. `delay` holds for the first
  // 64 of them.
  double percentile = 0;
  // Codes after which the next attempt begins at once. Others end the call.
  // Empty: as RetryPolicy::statuses.
  std::vector<int> non_fatal_statuses = {};
};

struct CallPolicy {
  // The call takes no longer, whatever its controller says.
  std::optional<std::chrono::nanoseconds> timeout = {};
  // For controllers that don't say.
  std::optional<bool> wait_for_ready = {};
  // One of the two at most.
  std::optional<RetryPolicy> retry = {};
  std::optional<HedgingPolicy> hedging = {};
};

}  // namespace flare

#endif  // FLARE_RPC_POLICY_CALL_POLICY_H_

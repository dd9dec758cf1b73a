// How many calls may be made more than callers have asked for: retries by
// RetryPolicy and second attempts by HedgingPolicy (call_policy.h). Servers
// that are overloaded, or down, would otherwise get several times the calls of
// a good day.
//
// A bucket of tokens. Each call with a policy puts in a fifth
// (--flare_rpc_retry_budget_percent), each second ten
// (--flare_rpc_retry_budget_per_second); a further attempt takes one. It holds
// 100 at most, or as many as ten seconds put in. So in the long run a fifth of
// the calls is made twice, and a few calls a second in any case.
//
// Thread-safe; nothing blocks.
#ifndef FLARE_RPC_POLICY_RETRY_BUDGET_H_
#define FLARE_RPC_POLICY_RETRY_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace flare {

class RetryBudget {
 public:
  struct Options {
    double per_call = 0.2;
    double per_second = 10;
  };
  // Since the start.
  struct Counters {
    std::uint64_t calls = 0;    // With a policy.
    std::uint64_t retries = 0;  // Attempts after the first of a call.
    std::uint64_t hedges = 0;   // Attempts beside another one.
    std::uint64_t refused =
        0;  // Attempts that weren't made for want of tokens.
  };
  enum class Use { kRetry, kHedge };

  // Begins full.
  explicit RetryBudget(const Options& options, std::int64_t now_ns);
  RetryBudget(const RetryBudget&) = delete;
  RetryBudget& operator=(const RetryBudget&) = delete;

  // The one of the process, by the flags.
  static RetryBudget& Default();

  void OnCall();
  // Takes a token. False: there is none.
  [[nodiscard]] bool Take(Use use, std::int64_t now_ns);

  Counters counters() const;
  // Tokens that are left.
  double left() const;

 private:
  void Add(std::int64_t parts);

  // In thousandths of a token.
  const std::int64_t per_call_;
  const std::int64_t per_second_;
  const std::int64_t most_;
  std::atomic<std::int64_t> parts_;
  std::atomic<std::int64_t> filled_ns_;  // Up to when seconds were counted.
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> retries_{0};
  std::atomic<std::uint64_t> hedges_{0};
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace flare

#endif  // FLARE_RPC_POLICY_RETRY_BUDGET_H_

#include "flare/rpc/policy/method_policy.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <string>
#include <system_error>

#include "flare/base/clock.h"
#include "flare/rpc/repeatable.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxPolicyAttempts = 100;

flare::Status BadPolicy(const std::string& text) {
  return flare::Status(EINVAL, text);
}

flare::Status CheckAttempts(std::size_t attempts) {
  if (attempts >= 2 && attempts <= kMaxPolicyAttempts) return flare::Status();
  return BadPolicy("max_attempts must be from 2 to " +
                   std::to_string(kMaxPolicyAttempts) + ", not " +
                   std::to_string(attempts));
}

flare::Status CheckRetry(const RetryPolicy& retry) {
  using std::chrono::nanoseconds;
  if (retry.initial_backoff < nanoseconds(0)) {
    return BadPolicy("initial_backoff must not be negative");
  }
  if (retry.max_backoff < retry.initial_backoff) {
    return BadPolicy("max_backoff must be at least initial_backoff");
  }
  if (!(retry.multiplier >= 1) || !std::isfinite(retry.multiplier)) {
    return BadPolicy("multiplier must be at least 1");
  }
  if (retry.attempt_timeout < nanoseconds(0)) {
    return BadPolicy("attempt_timeout must not be negative");
  }
  return CheckAttempts(retry.max_attempts);
}

flare::Status CheckHedging(const HedgingPolicy& hedging) {
  if (hedging.delay < std::chrono::nanoseconds(0)) {
    return BadPolicy("delay must not be negative");
  }
  if (!(hedging.percentile >= 0 && hedging.percentile < 1)) {
    return BadPolicy("percentile must be at least 0 and below 1");
  }
  return CheckAttempts(hedging.max_attempts);
}

}  // namespace

flare::Status MethodPolicy::Check(const CallPolicy& policy) {
  if (policy.retry && policy.hedging) {
    return BadPolicy(
        "a method can have a retry policy or a hedging policy, not both");
  }
  if (policy.timeout && *policy.timeout <= std::chrono::nanoseconds(0)) {
    return BadPolicy("timeout must be positive");
  }
  if (policy.retry) return CheckRetry(*policy.retry);
  if (policy.hedging) return CheckHedging(*policy.hedging);
  return flare::Status();
}

std::int64_t MethodPolicy::HedgingDelayNs() const {
  const std::int64_t learned = delay_ns_.load(std::memory_order_relaxed);
  return learned != 0 ? learned : ToNs(policy_.hedging->delay);
}

void MethodPolicy::NoteLatency(std::int64_t ns) {
  if (policy_.hedging->percentile <= 0) return;
  std::array<std::int64_t, kSamples> sorted;
  std::size_t count;
  {
    ScopedLock guard(lock_);
    samples_[noted_++ % kSamples] = std::max<std::int64_t>(ns, 1);
    if (noted_ % kBetweenUpdates != 0) return;
    count = std::min(noted_, kSamples);
    sorted = samples_;
  }
  const auto rank = static_cast<std::ptrdiff_t>(policy_.hedging->percentile *
                                                static_cast<double>(count));
  std::nth_element(sorted.begin(), sorted.begin() + rank,
                   sorted.begin() + static_cast<std::ptrdiff_t>(count));
  delay_ns_.store(sorted[static_cast<std::size_t>(rank)],
                  std::memory_order_relaxed);
}

std::int64_t BackoffNs(const RetryPolicy& policy, std::size_t retry,
                       std::uint64_t random) {
  const auto most = static_cast<double>(ToNs(policy.max_backoff));
  const double bound = std::min(
      most, static_cast<double>(ToNs(policy.initial_backoff)) *
                std::pow(policy.multiplier, static_cast<double>(retry - 1)));
  // 53 random bits: a number from 0 to 1.
  return static_cast<std::int64_t>(
      bound * (static_cast<double>(random >> 11) * 0x1p-53));
}

Pushback ParsePushback(std::string_view text, std::int64_t* ns) {
  std::int64_t ms = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), ms);
  // As gRPC says: an unreadable value forbids it, too.
  if (error != std::errc() || end != text.data() + text.size() || ms < 0) {
    return Pushback::kNever;
  }
  *ns = std::min<std::int64_t>(ms, 1'000'000'000) * 1'000'000;
  return Pushback::kAfter;
}

bool IsRepeated(const std::vector<int>& statuses, int code, bool twice) {
  if (!statuses.empty() &&
      std::find(statuses.begin(), statuses.end(), code) == statuses.end()) {
    return false;
  }
  if (WasNotRun(code)) return true;
  return twice && (!statuses.empty() || MayHaveRun(code));
}

}  // namespace flare::rpc

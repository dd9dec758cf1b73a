#include "flare/rpc/policy/retry_budget.h"

#include <algorithm>

#include "flare/base/clock.h"
#include "flare/rpc/start/flags.h"

namespace flare {
namespace {

constexpr std::int64_t kPartsOfToken = 1000;
constexpr std::int64_t kLeastCapacity = 100 * kPartsOfToken;
constexpr std::int64_t kBudgetSecondNs = 1'000'000'000;

}  // namespace

// All atomics are relaxed: they are counters, and order nothing.

RetryBudget::RetryBudget(const Options& options, std::int64_t now_ns)
    : per_call_(static_cast<std::int64_t>(options.per_call * kPartsOfToken)),
      per_second_(
          static_cast<std::int64_t>(options.per_second * kPartsOfToken)),
      most_(std::max(kLeastCapacity, 10 * per_second_)),
      parts_(most_),
      filled_ns_(now_ns) {}

RetryBudget& RetryBudget::Default() {
  // Never destroyed: calls may end while the process does.
  static RetryBudget* const budget = [] {
    const rpc::RetryBudgetDefaults flags = rpc::RetryBudgetFromFlags();
    return new RetryBudget(
        {.per_call = flags.percent / 100.0,
         .per_second = static_cast<double>(flags.per_second)},
        NowNs());
  }();
  return *budget;
}

void RetryBudget::Add(std::int64_t parts) {
  std::int64_t before = parts_.load(std::memory_order_relaxed);
  while (before < most_ &&
         !parts_.compare_exchange_weak(before, std::min(most_, before + parts),
                                       std::memory_order_relaxed)) {
  }
}

void RetryBudget::OnCall() {
  calls_.fetch_add(1, std::memory_order_relaxed);
  Add(per_call_);
}

bool RetryBudget::Take(Use use, std::int64_t now_ns) {
  std::int64_t filled = filled_ns_.load(std::memory_order_relaxed);
  // At most the time that fills it, so that the product doesn't overflow.
  const std::int64_t passed = std::min(now_ns - filled, 100 * kBudgetSecondNs);
  // In steps that are worth a part. One of several takers puts it in.
  if (passed > kBudgetSecondNs / 100 &&
      filled_ns_.compare_exchange_strong(filled, now_ns,
                                         std::memory_order_relaxed)) {
    Add(passed / 1'000'000 * per_second_ / 1000);
  }
  std::int64_t before = parts_.load(std::memory_order_relaxed);
  do {
    if (before < kPartsOfToken) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  } while (!parts_.compare_exchange_weak(before, before - kPartsOfToken,
                                         std::memory_order_relaxed));
  (use == Use::kRetry ? retries_ : hedges_)
      .fetch_add(1, std::memory_order_relaxed);
  return true;
}

RetryBudget::Counters RetryBudget::counters() const {
  return {calls_.load(std::memory_order_relaxed),
          retries_.load(std::memory_order_relaxed),
          hedges_.load(std::memory_order_relaxed),
          refused_.load(std::memory_order_relaxed)};
}

double RetryBudget::left() const {
  return static_cast<double>(parts_.load(std::memory_order_relaxed)) /
         kPartsOfToken;
}

}  // namespace flare

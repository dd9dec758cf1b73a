// Priorities of calls, from 0, which is shed first, to 9.
//
// Any thread; nothing blocks.
#ifndef FLARE_RPC_ADMISSION_PRIORITY_H_
#define FLARE_RPC_ADMISSION_PRIORITY_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/rpc/server_statistics.h"

namespace flare::rpc {

inline constexpr std::size_t kHighestPriority = kPriorities - 1;
inline constexpr std::size_t kDefaultPriority = 5;

// "critical", "default", "sheddable", or a digit; kDefaultPriority for all
// other texts.
constexpr std::size_t PriorityOf(std::string_view text) {
  if (text == "critical") return kHighestPriority;
  if (text == "sheddable") return 1;
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '9') {
    return static_cast<std::size_t>(text[0] - '0');
  }
  return kDefaultPriority;
}

// The share of a limit that calls of a priority may use: 0.55 to 1.
constexpr double ShareOf(std::size_t priority) {
  return static_cast<double>(priority + 1 + kPriorities) / (2 * kPriorities);
}

// The shares of the priorities among the calls that come.
//
// All orders are relaxed: the words are counts and shares that order no other
// memory. A call that is counted while a window closes may be missing in a
// share.
class alignas(kCacheLine) PriorityMix {
 public:
  static constexpr std::int64_t kWindowNs = 100 * kNsPerMs;
  static constexpr std::uint64_t kSamples = 50;

  PriorityMix() {
    for (auto& share : at_least_) share.store(1, std::memory_order_relaxed);
  }

  // Counts a call of that priority, which has come at `now_ns` (NowNs()).
  void Count(std::size_t priority, std::int64_t now_ns) {
    counts_[priority].fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t all = all_.fetch_add(1, std::memory_order_relaxed) + 1;
    std::int64_t end_ns = end_ns_.load(std::memory_order_relaxed);
    if (all >= kSamples && now_ns >= end_ns &&
        end_ns_.compare_exchange_strong(end_ns, now_ns + kWindowNs,
                                        std::memory_order_relaxed)) {
      Close();
    }
  }

  // The recent share of calls with that priority or a higher one; 1 before the
  // first window has closed.
  double AtLeast(std::size_t priority) const {
    return at_least_[priority].load(std::memory_order_relaxed);
  }

 private:
  [[gnu::noinline]] void Close() {
    std::array<std::uint64_t, kPriorities> counts;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i != kPriorities; ++i) {
      sum += counts[i] = counts_[i].exchange(0, std::memory_order_relaxed);
    }
    all_.store(0, std::memory_order_relaxed);
    std::uint64_t higher = 0;
    for (std::size_t i = kPriorities; i-- != 0;) {
      higher += counts[i];
      at_least_[i].store(
          static_cast<double>(higher) /
              static_cast<double>(std::max<std::uint64_t>(sum, 1)),
          std::memory_order_relaxed);
    }
  }

  std::array<std::atomic<double>, kPriorities> at_least_;
  std::array<std::atomic<std::uint64_t>, kPriorities> counts_{};
  std::atomic<std::uint64_t> all_{0};
  std::atomic<std::int64_t> end_ns_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_PRIORITY_H_

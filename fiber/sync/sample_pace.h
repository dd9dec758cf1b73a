// Thins out the samples of frequent events, so that they cost little, without
// losing those of rare ones: all events are sampled until they are many, then
// one in a period that doubles as long as they are too many, and halves with
// each window in which they aren't.
//
//   const std::uint64_t period = pace.Period(now_ns);
//   if (MixBits(seed) % period != 0) return;
//   ... count the event as `period` events ...
//   pace.CountSample(now_ns);
//
// Any thread or fiber may call Period(); calls of the others need a lock.

#ifndef FLARE_FIBER_SAMPLE_PACE_H_
#define FLARE_FIBER_SAMPLE_PACE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace flare::fiber {

class SamplePace {
 public:
  static constexpr std::int64_t kWindowNs = 10'000'000;
  static constexpr int kMostInWindow = 20;  // 2,000 a second.

  // One in how many events is sampled now.
  std::uint64_t Period(std::int64_t now_ns) const {
    // relaxed, both: a period that is half or twice the best one does.
    const std::int64_t began_ns = began_ns_.load(std::memory_order_relaxed);
    const std::uint64_t period = period_.load(std::memory_order_relaxed);
    const std::int64_t windows = (now_ns - began_ns) / kWindowNs;
    if (windows >= 64) return 1;
    return std::max<std::uint64_t>(period >> std::max<std::int64_t>(windows, 0),
                                   1);
  }

  // Samples all events again, until they are many.
  void Restart(std::int64_t now_ns) { StartWindow(1, now_ns); }

  void CountSample(std::int64_t now_ns) {
    // relaxed, here and below: as in Period.
    if (now_ns - began_ns_.load(std::memory_order_relaxed) >= kWindowNs) {
      StartWindow(Period(now_ns), now_ns);
    }
    if (++in_window_ < kMostInWindow) return;
    const auto period = period_.load(std::memory_order_relaxed);
    StartWindow(std::min(2 * period, kMostPeriod), now_ns);
  }

 private:
  static constexpr std::uint64_t kMostPeriod = std::uint64_t{1} << 30;

  void StartWindow(std::uint64_t period, std::int64_t now_ns) {
    // relaxed: as in Period.
    period_.store(period, std::memory_order_relaxed);
    began_ns_.store(now_ns, std::memory_order_relaxed);
    in_window_ = 0;
  }

  std::atomic<std::uint64_t> period_{1};
  std::atomic<std::int64_t> began_ns_{0};
  int in_window_ = 0;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SAMPLE_PACE_H_

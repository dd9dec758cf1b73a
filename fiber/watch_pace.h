// How often the watch looks: once a period, less often after a while in which
// nobody needed help, and where it gets no CPU to look by.

#ifndef FLARE_FIBER_WATCH_PACE_H_
#define FLARE_FIBER_WATCH_PACE_H_

#include <algorithm>
#include <cstdint>

namespace flare::fiber {

// What one look has found.
struct LookResult {
  bool need = false;         // Somebody has to be helped.
  bool partly_idle = false;  // Of some group's workers some run, some sleep.
  std::int64_t late_ns = 0;  // By so much it came later than it should.
};

// Not thread-safe: the watch's own.
class WatchPace {
 public:
  // Looks in a row that find nobody to help, before the time doubles.
  static constexpr int kCalmLooks = 100;
  // It doubles up to so many periods; while all workers that may run do there
  // is less to find.
  static constexpr int kMostStretched = 8;
  static constexpr int kMostStretchedBusy = 32;
  // A look that is so late found no CPU that had nothing to run for so long,
  // nor would have whoever it wakes. The next one is far off at once.
  static constexpr std::int64_t kCrowdedNs = 1'000'000;

  explicit WatchPace(std::int64_t period_ns) : period_ns_(period_ns) {}

  // How long until the next look.
  std::int64_t After(const LookResult& look) {
    if (look.need) {
      stretched_ = 1;
      calm_looks_ = 0;
    } else if (look.late_ns > kCrowdedNs) {
      stretched_ = kMostStretchedBusy;
      return stretched_ * period_ns_;
    } else if (++calm_looks_ == kCalmLooks) {
      stretched_ *= 2;
      calm_looks_ = 0;
    }
    stretched_ = std::min(
        stretched_, look.partly_idle ? kMostStretched : kMostStretchedBusy);
    return stretched_ * period_ns_;
  }

 private:
  const std::int64_t period_ns_;  // The short one.
  int stretched_ = 1;             // How many times that it is now.
  int calm_looks_ = 0;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WATCH_PACE_H_

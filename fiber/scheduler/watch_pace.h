// How often the watch looks: once a period, less often while nobody can have
// come to need help, after a while in which nobody has, and where it gets no
// CPU to look by.

#ifndef FLARE_FIBER_WATCH_PACE_H_
#define FLARE_FIBER_WATCH_PACE_H_

#include <algorithm>
#include <cstdint>

namespace flare::fiber {

// The findings of one look.
struct LookResult {
  bool need = false;         // Somebody has to be helped.
  bool partly_idle = false;  // Some workers of a group run while others sleep.
  // Some group is busy, or one of its workers runs another task than at the
  // last look, or has to be helped.
  bool unsettled = false;
  // In some group no standby (scheduling_group.cc [SB1]) is wanted, or none can
  // be, as all workers run.
  bool unguarded = false;
  // In some group tasks or events wait, if not for long yet; or a standby is
  // wanted, and nobody would notice the next event.
  bool exposed = false;
  std::int64_t late_ns = 0;  // How much later than planned the look came.
};

// Used by the watch alone: not thread-safe.
class WatchPace {
 public:
  // Looks in a row that find nobody to help, before the time doubles.
  static constexpr int kCalmLooks = 100;
  // It doubles up to so many periods; while all workers that may run do there
  // is less to find.
  static constexpr int kMostStretched = 8;
  static constexpr int kMostStretchedBusy = 32;
  // So many periods at least while all is settled: tasks that have their
  // threads hold up nobody, and others have begun none. One that begins now and
  // holds up somebody is found that much later.
  // docs/decisions/0026-settled-groups.md
  static constexpr int kWhileSettled = 4;
  // So many periods where somebody stands by, regardless of earlier needs: then
  // others find out at once that tasks hold up the ones behind them. The watch
  // is left with two such tasks in a row and with lone tasks; if it sees a
  // candidate it comes back soon.
  // docs/decisions/0031-who-takes-the-place-of-the-standby.md
  static constexpr int kGuarded = 16;
  // Looks that are so late on the mean find no CPU that has nothing to run, nor
  // would the workers they wake: a worker that seems held up waits for a CPU,
  // most likely. Then the next one is so many times as far off as they are
  // late. (With a weight of 1 in 32: single late ones are everyday.) None
  // counts for more than kMostLateNs: a few that wait for the next tick of the
  // CPU where a long task runs, 4 ms each, don't make a crowd; that task calls
  // for help. docs/decisions/0024-late-looks.md
  static constexpr std::int64_t kCrowdedNs = 100'000;
  static constexpr std::int64_t kMostLateNs = 500'000;
  static constexpr int kTimesTheDelay = 16;

  // Whatever is longer is as good as never, and stays so times all of these.
  static constexpr std::int64_t kLongestNs = std::int64_t{1} << 57;

  explicit WatchPace(std::int64_t period_ns)
      : period_ns_(std::min(period_ns, kLongestNs)) {}

  // How long until the next look.
  std::int64_t After(const LookResult& look) {
    const std::int64_t late_ns = std::min(look.late_ns, kMostLateNs);
    mean_late_ns_ += (late_ns - mean_late_ns_) / 32;
    if (mean_late_ns_ > kCrowdedNs) {
      return kTimesTheDelay * mean_late_ns_;
    }
    if (look.need) {
      stretched_ = 1;
      calm_looks_ = 0;
    } else if (++calm_looks_ == kCalmLooks) {
      stretched_ *= 2;
      calm_looks_ = 0;
    }
    stretched_ = std::min(
        stretched_, look.partly_idle ? kMostStretched : kMostStretchedBusy);
    if (!look.unguarded) {
      return (look.need || look.exposed ? 1 : kGuarded) * period_ns_;
    }
    const int least = look.partly_idle && !look.unsettled ? kWhileSettled : 1;
    return std::max(stretched_, least) * period_ns_;
  }

 private:
  const std::int64_t period_ns_;  // The short one.
  int stretched_ = 1;             // How many times that it is now.
  int calm_looks_ = 0;
  std::int64_t mean_late_ns_ = 0;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_WATCH_PACE_H_

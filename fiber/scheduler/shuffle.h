// Shuffled schedules: workers take their tasks in random order, give some away
// to others, and dawdle at random moments. Finds code that relies on the order
// in which tasks are run, and makes windows of races wider. Runs are not
// repeatable, as threads aren't, but a seed makes a failure likelier to come
// back; use testing/deterministic.h for repeatable runs.
//
//   FLARE_SHUFFLE_SEED=random bazel-bin/fiber/mutex_test
//   bazel test --config=shuffle //fiber/...

#ifndef FLARE_FIBER_SHUFFLE_H_
#define FLARE_FIBER_SHUFFLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/scheduler/schedule.h"

namespace flare::fiber {

class ShuffledSchedule : public Schedule {
 public:
  explicit ShuffledSchedule(std::uint64_t seed) : seed_(seed) {}

  void BeforeTask(std::int64_t next_deadline_ns) override;
  std::size_t ChooseTask(std::size_t queued) override;
  bool GiveAway() override;
  bool OnIdle(std::int64_t) override { return false; }

 private:
  std::uint64_t Random();

  const std::uint64_t seed_;
  std::atomic<std::uint64_t> drawn_{0};
};

// Returns the schedule that $FLARE_SHUFFLE_SEED asks for: nullptr if it is not
// set or empty; a seed of its own for "random". The seed is logged.
// StartRuntime() calls it if it is given no schedule. Error: the value is
// neither a number nor "random".
Expected<std::shared_ptr<Schedule>, Status> ScheduleFromEnvironment();

// Does $FLARE_SHUFFLE_SEED ask for shuffled schedules? For tests that check an
// order that only ordinary schedules keep.
bool IsShuffleRequested();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SHUFFLE_H_

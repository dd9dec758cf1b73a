// Decides a worker's next step where the runtime leaves it open: for tests that
// explore orders of events. There is none in ordinary operation: workers take
// their oldest task, and no call of this interface is made.
//
//   RuntimeOptions options;
//   options.schedule = std::make_shared<ShuffledSchedule>(seed);  // shuffle.h
//
// Tests use testing/deterministic.h, or $FLARE_SHUFFLE_SEED (shuffle.h).
//
// With a schedule given, workers take tasks one by one, never several at a
// time, and look at timers, the shared queue and IO before each.

#ifndef FLARE_FIBER_SCHEDULE_H_
#define FLARE_FIBER_SCHEDULE_H_

#include <cstddef>
#include <cstdint>

namespace flare::fiber {

// All functions are called on worker threads, outside fibers, by all workers at
// once, and must not block for long.
class Schedule {
 public:
  virtual ~Schedule() = default;

  // Whether all runs must be the same. Then the runtime leaves out its
  // occasional own work: sampling delays.
  virtual bool deterministic() const { return false; }

  // On the thread that creates a group, before it does, and on the group's
  // workers' threads before anything else there.
  virtual void OnThreadStart() {}

  // Before a worker takes a task. The next timer of its group is due at
  // `next_deadline_ns`; kNoDeadline: there is none.
  virtual void BeforeTask(std::int64_t next_deadline_ns) = 0;

  // Which of the `queued` tasks (2 or more) of a worker is next: 0, the oldest,
  // to queued - 1.
  virtual std::size_t ChooseTask(std::size_t queued) = 0;

  // Whether the worker's next task goes to the group's shared queue instead,
  // for another worker to take. Asked if there is another worker.
  virtual bool GiveAway() { return false; }

  // A worker found nothing to run. True: time has been moved on, look again;
  // false: sleep. `next_deadline_ns`: see BeforeTask().
  virtual bool OnIdle(std::int64_t next_deadline_ns) = 0;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SCHEDULE_H_

// Reports tasks that hold their worker for long: that compute without end, or
// block the thread with a lock, a sleep or a system call, instead of the fiber.
// The fibers behind such a task wait (or cost another worker's time), so it is
// a mistake that deserves a line in the log, with the place.
//
// A thread of its own looks at all workers twice per threshold while any of
// them runs, or has woken since the last look, and sleeps without limit while
// none does. A task is reported once, after between one and one and a half
// thresholds.
//
// The backtrace is taken by the worker's own thread, in the handler of a signal
// sent to it: SIGURG, which programs have next to no use for, whose default is
// to be ignored (so a late one does no harm), and which debuggers let pass
// unseen. A handler that the program had for it is still called for signals
// that come from elsewhere. System calls are restarted (SA_RESTART); those that
// never are (poll, epoll_wait, nanosleep, ...) fail with EINTR in the stuck
// task, once. A worker that doesn't take the signal within 0.2 s is reported
// without backtrace.

#ifndef FLARE_FIBER_STUCK_REPORT_H_
#define FLARE_FIBER_STUCK_REPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flare/base/backtrace.h"
#include "flare/fiber/scheduler/poked_thread.h"

namespace flare::fiber {

class SchedulingGroup;
class WorkerState;

struct StuckReport {
  std::size_t group = 0;
  std::size_t worker = 0;       // Within the group.
  std::int64_t held_ns = 0;     // So far.
  std::uint64_t fiber_id = 0;   // this_fiber::GetId(), 0 if never called.
  std::string name;             // this_fiber::SetName(); may be empty.
  const void* entry = nullptr;  // Function of the task: EntryName() in
                                // fiber_list.h.
  Backtrace backtrace;          // May be empty, see above.

  // The text for the log.
  std::string ToString() const;
};

class StuckWatch {
 public:
  struct Options {
    std::int64_t threshold_ns = 1'000'000'000;  // Positive.
    // Called in the watch's thread for each report; must not wait for the
    // stuck task. Empty: logged, at most ten in ten seconds.
    std::function<void(const StuckReport&)> on_report;
  };

  StuckWatch(const std::vector<SchedulingGroup*>& groups, Options options);
  ~StuckWatch();  // Stop() first.

  StuckWatch(const StuckWatch&) = delete;
  StuckWatch& operator=(const StuckWatch&) = delete;

  // Throws std::system_error if there is no thread, and is as before then.
  void Start();
  void Stop();

  // For workers to poke: one has woken, and there may be something to watch
  // [SW1].
  PokedThread* thread() noexcept { return &thread_; }

  // Tasks reported so far, logged or not.
  std::uint64_t reports() const noexcept {
    return reports_.load(std::memory_order_relaxed);  // A counter.
  }
  // Does it sleep without limit? For tests.
  bool asleep() const noexcept { return thread_.asleep(); }

 private:
  // The last known activity of a worker.
  struct Sample {
    bool valid = false;
    bool reported = false;
    std::uint64_t steps = 0;
    std::int64_t since_ns = 0;
  };
  struct Watched {
    SchedulingGroup* group;
    std::vector<Sample> samples;  // One per worker.
  };

  void Main();
  // True: some worker runs, or has woken since the last look.
  bool Look(std::int64_t now_ns);
  bool AnyRuns() const;
  bool IsStuck(const WorkerState& worker, std::int64_t now_ns,
               Sample* sample) const;
  void Report(const SchedulingGroup& group, const WorkerState& worker,
              std::int64_t held_ns);
  void Log(const StuckReport& report);

  const Options options_;
  std::vector<Watched> groups_;
  std::uint64_t rouses_seen_ = 0;  // The sum of all groups.
  std::int64_t log_window_ns_ = 0;
  int logged_ = 0;  // Since then.
  std::atomic<std::uint64_t> reports_{0};
  PokedThread thread_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_STUCK_REPORT_H_

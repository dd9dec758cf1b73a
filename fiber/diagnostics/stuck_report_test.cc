#include "flare/fiber/diagnostics/stuck_report.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/shutdown.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::fiber {

// Outside the anonymous namespace: tests look for the names.
namespace stuck_report_test {

struct InitialiserFailed {};

[[gnu::noinline]] void ComputeUntil(const std::atomic<bool>* stop) {
  // relaxed: only to end.
  while (!stop->load(std::memory_order_relaxed)) {
  }
}

[[gnu::noinline]] void ReadPipe(int fd) {
  char byte;
  while (read(fd, &byte, 1) != 1) {
  }
  asm volatile("");  // Prevents a tail call.
}

// Its variable's initialiser suspends the fiber until `go`. Then it fails, so
// the next call begins anew.
[[gnu::noinline]] int InitialiseOnce(Event* begun, Event* go) {
  static const int value = [begun, go]() -> int {
    begun->Set();
    go->Wait();
    throw InitialiserFailed();
  }();
  return value;
}

}  // namespace stuck_report_test

namespace {

using ::testing::HasSubstr;

using std::chrono::milliseconds;

// ThreadSanitizer holds signals back until the thread calls something that it
// intercepts, so there may be no backtrace.
#ifdef FLARE_TSAN
constexpr bool kSignalsArriveAtOnce = false;
#else
constexpr bool kSignalsArriveAtOnce = true;
#endif

// How long turns of something last, each from its beginning to that of the
// next.
struct Turns {
  std::int64_t last_ns = NowNs();
  std::int64_t longest_ns = 0;

  // Its time.
  std::int64_t Begin() {
    const std::int64_t now = NowNs();
    longest_ns = std::max(longest_ns, now - std::exchange(last_ns, now));
    return now;
  }
  // None was so long, for want of a CPU, that the watch may take it for stuck.
  // Half a threshold is enough for that if the watch was kept from it, too.
  bool AllShort(milliseconds threshold) const {
    return longest_ns < std::chrono::nanoseconds(threshold).count() / 2;
  }
};

// Names the fiber; from here on it is a task that wasn't reported yet, even if
// that happened before it had the name.
void BeginNamed(const char* name) {
  this_fiber::SetName(name);
  this_fiber::Yield();
}

// Holds its worker until told otherwise.
struct Holder {
  std::atomic<bool> stop{false};
  Fiber fiber;

  explicit Holder(const char* name)
      : fiber([this, name] {
          BeginNamed(name);
          stuck_report_test::ComputeUntil(&stop);
        }) {}
  ~Holder() {
    stop.store(true, std::memory_order_relaxed);  // Only to end.
    fiber.join();
  }
};

// Collects the reports of a runtime.
class StuckReportTest : public ::testing::Test {
 protected:
  // The threshold is longer than busy machines keep threads waiting for a CPU.
  void Start(int workers, milliseconds threshold = milliseconds(100)) {
    RuntimeOptions options;
    options.concurrency = workers;
    options.group_size = workers;
    options.stuck_threshold = threshold;
    options.on_stuck = [this](const StuckReport& report) {
      std::scoped_lock guard(lock_);
      reports_.push_back(report);
      reported_.notify_all();
    };
    const Status status = StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
    Fiber([] {}).join();  // A worker is up.
  }

  void TearDown() override {
    if (IsRuntimeRunning()) TerminateRuntime();
  }

  // The report of the fiber `name`, once it is there.
  StuckReport Await(const std::string& name) {
    std::unique_lock guard(lock_);
    for (;;) {
      for (const StuckReport& report : reports_) {
        if (report.name == name) return report;
      }
      reported_.wait(guard);
    }
  }

  std::size_t Count(const std::string& name) {
    std::scoped_lock guard(lock_);
    return static_cast<std::size_t>(
        std::count_if(reports_.begin(), reports_.end(),
                      [&](const auto& report) { return report.name == name; }));
  }

  // The first report of `round` that has a backtrace, and all of `parts` in its
  // text; or the last one. A thread that waits for a CPU when it is sampled
  // shows none. The reported task has ended when `round` returns.
  template <class F>
  StuckReport AwaitBacktrace(std::initializer_list<const char*> parts,
                             F round) {
    StuckReport report;
    const bool shown = testing::Eventually([&] {
      report = round();
      std::scoped_lock guard(lock_);
      reports_.clear();
      if (!kSignalsArriveAtOnce) return true;
      const std::string text = report.ToString();
      return !report.backtrace.empty() &&
             std::all_of(parts.begin(), parts.end(), [&](const char* part) {
               return text.find(part) != text.npos;
             });
    });
    EXPECT_TRUE(shown) << report.ToString();
    return report;
  }

  struct Round {
    // Was there a report of a thread that has turns ...
    bool reported = false;
    bool all_short = false;  // ... that were short?
  };
  // Is there none? Where turns were long, `round` can't tell and is tried
  // again, a few times.
  template <class F>
  void ExpectNoReports(F round) {
    for (int i = 0; i != 5; ++i) {
      const Round last = round();
      EXPECT_FALSE(last.reported && last.all_short);
      if (!last.reported || last.all_short) return;
      // When the watch comes to this, it is done with that round.
      Holder holder("next round");
      Await("next round");
      std::scoped_lock guard(lock_);
      reports_.clear();
    }
  }

  std::mutex lock_;
  std::condition_variable reported_;
  std::vector<StuckReport> reports_;
};

TEST_F(StuckReportTest, NamesTheTaskAndShowsWhereItIs) {
  Start(2);
  const StuckReport report =
      AwaitBacktrace({"ComputeUntil", "Worker::Loop"}, [&] {
        Holder holder("computing");
        return Await("computing");
      });
  EXPECT_EQ(report.group, 0U);
  EXPECT_LT(report.worker, 2U);
  EXPECT_GE(report.held_ns, 100'000'000);
  EXPECT_NE(report.entry, nullptr);
  EXPECT_GE(GetRuntimeStatistics().stuck_reports, 1U);
  const std::string text = report.ToString();
  EXPECT_THAT(text, HasSubstr("a task holds worker 0/"));
  EXPECT_THAT(text, HasSubstr("fiber \"computing\""));
}

// The lock of an initialiser has no name in the program, so the report has to
// show it.
TEST_F(StuckReportTest, ShowsTheInitialiserThatATaskWaitsFor) {
  Start(2);
  AwaitBacktrace(
      {"__cxa_guard_acquire", "must not suspend its fiber", "InitialiseOnce"},
      [&] {
        Event begun;
        Event go;
        const auto call = [&] {
          EXPECT_THROW(stuck_report_test::InitialiseOnce(&begun, &go),
                       stuck_report_test::InitialiserFailed);
        };
        Fiber first(call);
        begun.Wait();
        Fiber second([&] {
          BeginNamed("second caller");
          call();
        });
        StuckReport report = Await("second caller");
        go.Set();
        first.join();
        second.join();
        return report;
      });
}

// Nobody is idle then, and nobody would wake the watch.
TEST_F(StuckReportTest, ReportsAllWorkersOfAGroup) {
  Start(2);
  Holder first("first");
  Holder second("second");
  EXPECT_NE(Await("first").worker, Await("second").worker);
}

TEST_F(StuckReportTest, ReportsTheOnlyWorker) {
  Start(1);
  Holder holder("only");
  EXPECT_EQ(Await("only").worker, 0U);
}

TEST_F(StuckReportTest, ShowsSystemCallsAndRestartsThem) {
  Start(1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  AwaitBacktrace({}, [&] {
    Fiber fiber([&] {
      BeginNamed("reading");
      char byte;
      // The call isn't interrupted (-1, EINTR).
      EXPECT_EQ(read(ends[0], &byte, 1), 1);
      stuck_report_test::ReadPipe(ends[0]);
    });
    StuckReport first = Await("reading");
    EXPECT_EQ(write(ends[1], "xx", 2), 2);
    fiber.join();
    return first;
  });
  close(ends[0]);
  close(ends[1]);
}

// While one task is stuck for as long as several others together.
TEST_F(StuckReportTest, ReportsATaskOnce) {
  Start(2);
  Holder lasting("lasting");
  Await("lasting");
  for (const char* name : {"a", "b", "c"}) {
    Holder holder(name);
    Await(name);
  }
  EXPECT_EQ(Count("lasting"), 1U);
}

TEST_F(StuckReportTest, ReportsAFiberAgainAfterItWasSuspended) {
  Start(1);
  std::atomic<bool> stop[2] = {};
  Fiber fiber([&] {
    BeginNamed("twice");
    stuck_report_test::ComputeUntil(&stop[0]);
    this_fiber::Yield();
    stuck_report_test::ComputeUntil(&stop[1]);
  });
  for (std::size_t i = 0; i < 2; ++i) {
    while (Count("twice") <= i) std::this_thread::yield();
    stop[i].store(true, std::memory_order_relaxed);  // Only to end.
  }
  fiber.join();
}

TEST_F(StuckReportTest, LeavesShortTasksAlone) {
  constexpr milliseconds kThreshold(300);
  Start(2, kThreshold);
  ExpectNoReports([&] {
    Holder holder("long");
    std::atomic<bool> stop{false};
    Turns turns;
    Fiber fiber([&] {
      this_fiber::SetName("short");
      // relaxed: only to end.
      while (!stop.load(std::memory_order_relaxed)) {
        this_fiber::Yield();
        turns.Begin();
      }
    });
    Await("long");
    // The thread that holds the other one for long, too, began later.
    std::this_thread::sleep_for(kThreshold);
    stop.store(true, std::memory_order_relaxed);  // Only to end.
    fiber.join();
    const bool reported = Count("short") != 0;
    turns.Begin();
    return Round{reported, turns.AllShort(kThreshold)};
  });
}

// A worker that is busy with timers alone is in no task.
TEST_F(StuckReportTest, LeavesCallbacksOfTimersAlone) {
  static constexpr milliseconds kThreshold(300);
  Start(1, kThreshold);
  struct Busy {
    Timer timer;
    std::int64_t until_ns =
        NowNs() + std::chrono::nanoseconds(4 * kThreshold).count();
    Turns turns;
    Event ended;
  };
  static Busy* busy;
  ExpectNoReports([&] {
    Busy of_this_round;
    busy = &of_this_round;
    const std::uint64_t before = GetRuntimeStatistics().stuck_reports;
    busy->timer.set_callback([](Timer* timer) {
      const std::int64_t start = busy->turns.Begin();
      while (NowNs() < start + 2'000'000) {
      }
      if (start > busy->until_ns) {
        busy->ended.Set();
      } else {
        ArmTimer(timer, NowNs() + 20'000);
      }
    });
    ArmTimer(&busy->timer, NowNs());
    busy->ended.Wait();
    EXPECT_FALSE(CancelTimer(&busy->timer));  // Its callback has returned.
    const bool reported = GetRuntimeStatistics().stuck_reports != before;
    busy->turns.Begin();
    return Round{reported, busy->turns.AllShort(kThreshold)};
  });
}

TEST_F(StuckReportTest, MayBeTurnedOff) {
  Start(1, milliseconds(0));
  EXPECT_EQ(GetRuntimeStatistics().stuck_reports, 0U);
  struct sigaction action;
  ASSERT_EQ(sigaction(SIGURG, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

TEST_F(StuckReportTest, WorksAgainAfterARestart) {
  for (int i = 0; i < 3; ++i) {
    Start(1);
    const std::string name = "round " + std::to_string(i);
    {
      Holder holder(name.c_str());
      Await(name);
    }
    TerminateRuntime();
    struct sigaction action;
    ASSERT_EQ(sigaction(SIGURG, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler, SIG_DFL);
  }
}

// --- The watch alone ---

// How many reports there are of five tasks that end when one is made, while the
// watch sleeps before each of them.
std::uint64_t ReportsOfFiveTasks() {
  SchedulingGroup::Options options;
  options.workers = 2;
  options.make_worker = &Worker::Make;
  SchedulingGroup group(std::move(options));
  Shutdown shutdown;
  shutdown.SetMembers({&group});
  group.SetShutdown(&shutdown);
  std::atomic<bool> stop{false};
  StuckWatch watch({&group}, {.threshold_ns = 200'000'000,
                              .on_report = [&](const StuckReport&) {
                                stop.store(true, std::memory_order_relaxed);
                              }});
  group.SetStuckWatch(watch.thread());
  EXPECT_TRUE(group.GetFirstStacks());
  group.Start();
  watch.Start();
  struct Hold : Task {
    std::atomic<bool>* stop;
    Event done;
  };
  for (int i = 0; i < 5; ++i) {
    while (!watch.asleep()) std::this_thread::yield();
    stop.store(false, std::memory_order_relaxed);  // Published by Inject().
    Hold hold;
    hold.stop = &stop;
    hold.run = [](Task* task) {
      auto* const hold = static_cast<Hold*>(task);
      stuck_report_test::ComputeUntil(hold->stop);
      hold->done.Set();
    };
    group.Inject(&hold);
    hold.done.Wait();
  }
  while (!watch.asleep()) std::this_thread::yield();
  const std::uint64_t reports = watch.reports();
  shutdown.Request();
  group.Join();
  watch.Stop();
  return reports;
}

TEST(StuckWatch, SleepsWhileNobodyRunsAndIsWokenByWhoDoes) {
  // A worker without a task may be reported, too, if it has to wait for a CPU
  // for so long between its wake-up and its sleep. So it is tried again.
  std::uint64_t reports = 0;
  for (int i = 0; i != 5 && reports != 5; ++i) reports = ReportsOfFiveTasks();
  EXPECT_EQ(reports, 5U);
}

// Else it would be woken, too, each time that a worker is, for a short task.
TEST(StuckWatch, StaysAwakeForAWhileAfterATask) {
  SchedulingGroup::Options options;
  options.workers = 1;
  options.make_worker = &Worker::Make;
  SchedulingGroup group(std::move(options));
  Shutdown shutdown;
  shutdown.SetMembers({&group});
  group.SetShutdown(&shutdown);
  constexpr std::int64_t kThresholdNs = 400'000'000;
  StuckWatch watch({&group}, {.threshold_ns = kThresholdNs, .on_report = {}});
  group.SetStuckWatch(watch.thread());
  ASSERT_TRUE(group.GetFirstStacks());
  group.Start();
  const auto wait_until_idle = [&] {
    while (group.idle_mask() != group.all_idle_mask()) {
      std::this_thread::yield();
    }
  };
  struct Short : Task {
    Event done;
  };
  wait_until_idle();
  Short task;
  task.run = [](Task* task) { static_cast<Short*>(task)->done.Set(); };
  group.Inject(&task);
  task.done.Wait();
  wait_until_idle();
  const std::int64_t start = NowNs();
  watch.Start();
  while (!watch.asleep()) std::this_thread::yield();
  EXPECT_GE(NowNs() - start, kThresholdNs / 2);
  shutdown.Request();
  group.Join();
  watch.Stop();
}

TEST_F(StuckReportTest, ReportIsReadableWithoutDetails) {
  StuckReport report;
  report.held_ns = 1'500'000'000;
  const std::string text = report.ToString();
  EXPECT_THAT(text, HasSubstr("worker 0/0 for 1.500 s"));
  EXPECT_THAT(text, HasSubstr("without name"));
  EXPECT_THAT(text, HasSubstr("no backtrace"));
}

}  // namespace
}  // namespace flare::fiber

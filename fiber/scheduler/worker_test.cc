// The order in which a worker runs queued tasks, and when it looks for more.

#include "flare/fiber/scheduler/worker.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// Its tasks come out one by one. Counts how often it is looked at in passing.
class TestPoller : public Poller {
 public:
  void Give(TaskList&& tasks) {
    {
      const std::scoped_lock guard(lock_);
      while (Task* const task = tasks.PopFront()) tasks_.PushBack(task);
      pending_ = tasks_.size();
    }
    Wake();
  }

  void Poll(std::int64_t deadline_ns, TaskList* ready) override {
    {
      const std::scoped_lock guard(lock_);
      if (Task* const task = tasks_.PopFront()) {
        ready->PushBack(task);
        pending_ = tasks_.size();
        return;
      }
    }
    if (deadline_ns == 0) {
      looks_.fetch_add(1);
      return;
    }
    FutexWait(&wakes_, seen_, deadline_ns);
    seen_ = wakes_.load();
  }

  void Wake() override {
    wakes_.fetch_add(1);
    FutexWake(&wakes_, 1);
  }

  std::size_t pending() const noexcept override { return pending_.load(); }
  int looks() const { return looks_.load(); }

 private:
  Spinlock lock_;
  TaskList tasks_ FLARE_GUARDED_BY(lock_);
  std::atomic<std::size_t> pending_{0};
  std::atomic<int> looks_{0};
  std::atomic<std::uint32_t> wakes_{0};
  std::uint32_t seen_ = 0;
};

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (IsShuffleRequested()) GTEST_SKIP() << "tasks run in any order";
    Start(1);
  }
  void TearDown() override {
    if (IsRuntimeRunning()) TerminateRuntime();
  }

  static void Start(std::size_t workers) {
    RuntimeOptions options;
    options.concurrency = workers;
    options.make_poller = [](std::size_t) {
      return std::make_unique<TestPoller>();
    };
    ASSERT_TRUE(StartRuntime(options).ok());
  }

  static TestPoller* poller() { return static_cast<TestPoller*>(GetPoller(0)); }

  static constexpr std::size_t kFewEvents = 3;
  static bool BehindOthers(Task* task) {
    return SubmitBehindOthers(task, kFewEvents);
  }

  // Lets others go first as long as it may.
  struct Polite : Task {
    explicit Polite(std::atomic<int>* ran, bool (*wait)(Task*) = &BehindOthers)
        : ran(ran), wait(wait) {
      run = [](Task* self) {
        auto* const me = static_cast<Polite*>(self);
        if (me->wait(me)) return;
        me->ran_before = me->ran->load();
        me->done.Set();
      };
    }
    std::atomic<int>* const ran;
    bool (*const wait)(Task*);
    int ran_before = -1;
    Event done;
  };

  // From a poller that may have more to come: one at a time.
  struct FromPoller : Task {
    std::atomic<int>* ran = nullptr;
  };

  // How many of `others` tasks, which are queued behind it, are run before one
  // that lets others go first.
  static int RunBefore(int others) {
    std::atomic<int> ran{0};
    Polite polite(&ran);
    Latch all(others);
    Spawn([&] {
      Submit(&polite);
      for (int i = 0; i < others; ++i) {
        Spawn([&] {
          ran.fetch_add(1);
          all.count_down();
        });
      }
    });
    polite.done.Wait();
    all.wait();
    return polite.ran_before;
  }

  // Tasks run before those of so many pending events.
  static std::size_t EventsBefore(std::size_t events) {
    std::atomic<int> ran{0};
    std::vector<FromPoller> tasks(events);
    Polite polite(&ran);
    Spawn([&] {
      TaskList list;
      for (FromPoller& task : tasks) {
        task.ran = &ran;
        task.run = [](Task* self) {
          static_cast<FromPoller*>(self)->ran->fetch_add(1);
        };
        list.PushBack(&task);
      }
      poller()->Give(std::move(list));
      Submit(&polite);
    });
    polite.done.Wait();
    while (ran.load() != static_cast<int>(events)) std::this_thread::yield();
    return static_cast<std::size_t>(polite.ran_before);
  }
};

// A worker that had to wait for its CPU may take tasks for long ones for a
// while. So once in several times is enough; but it's all of them or none.
TEST_F(WorkerTest, ATaskLetsManyShortOnesGoFirst) {
  for (const int others : {20, 200}) {
    int before = 0;
    for (int i = 0; i < 100 && before == 0; ++i) before = RunBefore(others);
    EXPECT_EQ(before, others);
  }
}

TEST_F(WorkerTest, ATaskDoesNotWaitForAFew) { EXPECT_EQ(RunBefore(5), 0); }

TEST_F(WorkerTest, ATaskDoesNotWaitForLongOnes) {
  Latch learned(30);
  for (int i = 0; i < 30; ++i) {
    Spawn([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      learned.count_down();
    });
  }
  learned.wait();
  EXPECT_EQ(RunBefore(200), 0);
}

TEST_F(WorkerTest, ATaskLetsAFewPendingEventsGoFirst) {
  // The last may be behind it, if the worker looked for IO in between.
  EXPECT_GE(EventsBefore(kFewEvents), kFewEvents - 1);
}

TEST_F(WorkerTest, ATaskDoesNotWaitForMoreEventsThanItSays) {
  EXPECT_EQ(EventsBefore(kFewEvents + 2), 0U);
}

// All or none, and all once in several times.
TEST_F(WorkerTest, ATaskBehindEventsWaitsForAllThatTheyLeadTo) {
  constexpr int kEvents = 10;
  const auto run_before = [] {
    std::atomic<int> ran{0};
    std::vector<FromPoller> tasks(kEvents);
    Polite polite(&ran, &SubmitBehindEvents);
    Spawn([&] {
      TaskList list;
      for (FromPoller& task : tasks) {
        task.ran = &ran;
        task.run = [](Task* self) {
          std::atomic<int>* const ran = static_cast<FromPoller*>(self)->ran;
          for (int i = 0; i < 20; ++i) Spawn([ran] { ran->fetch_add(1); });
        };
        list.PushBack(&task);
      }
      poller()->Give(std::move(list));
      Submit(&polite);
    });
    polite.done.Wait();
    while (ran.load() != 20 * kEvents) std::this_thread::yield();
    return polite.ran_before;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int before = 0;
  while (before == 0 && std::chrono::steady_clock::now() < end) {
    before = run_before();
  }
  EXPECT_EQ(before, 20 * kEvents);
}

TEST_F(WorkerTest, ATaskBehindEventsDoesNotWaitForNothing) {
  std::atomic<int> ran{0};
  Polite polite(&ran, &SubmitBehindEvents);
  Submit(&polite);
  polite.done.Wait();
}

// It is in nobody's ring either, and the other worker sleeps in the poller:
// nobody is woken for a few tasks by a worker that knows of no long ones.
TEST_F(WorkerTest, ATaskBehindEventsIsRunByAnotherWorkerIfOneIsHeldUp) {
  struct Waiting : Task {
    std::atomic<bool> queued{false};
    std::atomic<bool> ran{false};
  };
  constexpr int kRounds = 20;
  int waited = 0;
  for (int round = 0; round < kRounds; ++round) {
    TerminateRuntime();
    Start(2);
    Waiting waiting;
    waiting.run = [](Task* self) {
      static_cast<Waiting*>(self)->ran.store(true);
    };
    bool in_time = false;
    Latch all(1);
    Spawn([&] {
      for (int i = 0; i < 20'000; ++i) this_fiber::Yield();
      Latch few(12);
      for (int i = 0; i < 12; ++i) Spawn([&] { few.count_down(); });
      waiting.queued = SubmitBehindEvents(&waiting);
      few.wait();
      const auto end =
          std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (waiting.queued && !waiting.ran) {
        if (std::chrono::steady_clock::now() > end) break;
        std::this_thread::sleep_for(std::chrono::microseconds(10));
      }
      in_time = !waiting.queued || waiting.ran;
      all.count_down();
    });
    all.wait();
    ASSERT_TRUE(in_time);
    if (waiting.queued) ++waited;
  }
  EXPECT_GT(waited, 0);
}

// They aren't in anybody's ring, from which they could be stolen.
TEST_F(WorkerTest, PendingEventsGoToAnotherWorkerIfOneIsHeldUp) {
  TerminateRuntime();
  Start(2);
  struct First : FromPoller {
    std::atomic<std::uint32_t> all{0};
    bool in_time = false;
  };
  constexpr int kTasks = 10;
  std::atomic<int> ran{0};
  First first;
  std::vector<FromPoller> others(kTasks);
  TaskList list;
  first.ran = &ran;
  first.run = [](Task* self) {
    auto* const me = static_cast<First*>(self);
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (me->ran->load() != kTasks) {
      if (std::chrono::steady_clock::now() > end) break;
      std::this_thread::yield();
    }
    me->in_time = me->ran->load() == kTasks;
    me->all.store(1);
    FutexWake(&me->all, 1);
  };
  list.PushBack(&first);
  for (FromPoller& task : others) {
    task.ran = &ran;
    task.run = [](Task* self) {
      static_cast<FromPoller*>(self)->ran->fetch_add(1);
    };
    list.PushBack(&task);
  }
  poller()->Give(std::move(list));
  while (first.all.load() == 0) FutexWait(&first.all, 0, kNoDeadline);
  EXPECT_TRUE(first.in_time);
}

TEST_F(WorkerTest, PlainThreadsHaveNoOthers) {
  Task task;
  EXPECT_FALSE(SubmitBehindOthers(&task, kFewEvents));
  EXPECT_FALSE(SubmitBehindEvents(&task));
}

// Tasks that resubmit themselves until they are stopped, and block their thread
// for long enough that each is followed by maintenance.
class BlockingTasks {
 public:
  explicit BlockingTasks(std::size_t count) : tasks_(count), ended_(count) {
    Spawn([this] {
      for (Long& task : tasks_) {
        task.all = this;
        task.run = [](Task* self) { static_cast<Long*>(self)->Run(); };
        Submit(&task);
      }
    });
  }
  ~BlockingTasks() {
    left_ = 0;
    ended_.wait();
  }

  int runs() const { return runs_.load(); }
  // Lets all but so many end, and the others run so often.
  void KeepFor(int tasks, int more) {
    left_ = tasks;
    for (const int end = runs() + more; runs() < end;) {
      std::this_thread::yield();
    }
  }

 private:
  struct Long : Task {
    BlockingTasks* all = nullptr;

    void Run() {
      if (this - all->tasks_.data() >= all->left_.load()) {
        return all->ended_.count_down();
      }
      std::this_thread::sleep_for(std::chrono::microseconds(150));
      all->runs_.fetch_add(1);
      Submit(this);
    }
  };

  std::vector<Long> tasks_;
  std::atomic<int> left_{static_cast<int>(tasks_.size())};
  std::atomic<int> runs_{0};
  Latch ended_;
};

// How often tasks have run, and how often the poller was looked at by then.
struct Progress {
  int runs = 0;
  int looks = 0;
};

Progress ProgressOf(const BlockingTasks& tasks, const TestPoller& poller) {
  for (;;) {
    const Progress now{tasks.runs(), poller.looks()};
    // Else this thread may have been kept from its CPU between the two.
    if (tasks.runs() - now.runs <= 2) return now;
  }
}

// It would have to give its oldest tasks away for new ones, and so looks every
// fourth time.
TEST_F(WorkerTest, AHalfFullRingLooksRarely) {
  BlockingTasks tasks(200);
  const auto looks_in_a_while = [&](int left) {
    tasks.KeepFor(left, 250);  // Some end, and means become known.
    const Progress before = ProgressOf(tasks, *poller());
    tasks.KeepFor(left, 200);
    const Progress after = ProgressOf(tasks, *poller());
    return static_cast<double>(after.looks - before.looks) /
           (after.runs - before.runs);
  };
  const double half_full = looks_in_a_while(200);
  EXPECT_GT(half_full, 0.15);
  EXPECT_LT(half_full, 0.35);
  EXPECT_GT(looks_in_a_while(20), 0.7);
}

// One of them would find only tasks that its siblings have found just now. If
// the one that looks is kept from its CPU meanwhile nobody looks; so once in
// ten is enough.
TEST_F(WorkerTest, WorkersTakeTurnsAtLooking) {
  TerminateRuntime();
  Start(4);
  BlockingTasks tasks(20);
  tasks.KeepFor(20, 100);
  double looks_per_run = 0;
  double looks_per_10us = 0;
  for (int i = 0; i != 10; ++i) {
    const std::int64_t begin = NowNs();
    const Progress before = ProgressOf(tasks, *poller());
    tasks.KeepFor(20, 400);
    const Progress after = ProgressOf(tasks, *poller());
    const double looks = after.looks - before.looks;
    // Counts looks instead of time: on a busy machine there is little but
    // waiting in it.
    looks_per_run = looks / (after.runs - before.runs);
    looks_per_10us = looks * 1e4 / static_cast<double>(NowNs() - begin);
    if (looks_per_run > 0.03 && looks_per_10us < 0.12) return;
  }
  ADD_FAILURE() << looks_per_run << " looks for a run, " << looks_per_10us
                << " in 10 us";
}

}  // namespace
}  // namespace flare::fiber

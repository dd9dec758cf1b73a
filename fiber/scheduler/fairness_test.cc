// Long tasks are started in the order in which they came, whichever worker's
// they are.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/task.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// Batches of tasks that hold their thread for a millisecond, and the order in
// which they are started.
class LongTasks {
 public:
  explicit LongTasks(std::size_t count)
      : tasks_(count), done_(static_cast<std::ptrdiff_t>(count)) {}

  // Submits the tasks [begin, end) as one batch.
  void Submit(std::size_t begin, std::size_t end) {
    TaskList batch;
    for (std::size_t i = begin; i < end; ++i) {
      tasks_[i].run = [](Task* self) { static_cast<Long*>(self)->Go(); };
      tasks_[i].all = this;
      batch.PushBack(&tasks_[i]);
    }
    SubmitAll(std::move(batch));
  }

  void Wait() { done_.wait(); }

  // By how many places task `i` was started early or late.
  std::size_t Displacement(std::size_t i) const {
    const std::size_t place = tasks_[i].place;
    return place > i ? place - i : i - place;
  }

 private:
  struct Long : Task {
    LongTasks* all = nullptr;
    std::size_t place = 0;

    void Go() {
      place = all->started_.fetch_add(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      all->done_.count_down();
    }
  };

  std::vector<Long> tasks_;
  std::atomic<std::size_t> started_{0};
  Latch done_;
};

class FairnessTest : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 4;

  void SetUp() override {
    if (IsShuffleRequested()) GTEST_SKIP() << "tasks run in any order";
    RuntimeOptions options;
    options.concurrency = kWorkers;
    options.group_size = kWorkers;
    const Status status = StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
    RunInTask(LearnThatTasksAreLong);
  }
  void TearDown() override {
    if (IsRuntimeRunning()) TerminateRuntime();
  }

  // Each worker for itself, as none goes on before all have come.
  static void LearnThatTasksAreLong() {
    for (int i = 0; i < 20; ++i) {
      std::latch all(kWorkers);
      Latch done(kWorkers);
      for (int j = 0; j < kWorkers; ++j) {
        Spawn([&] {
          all.arrive_and_wait();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          done.count_down();
        });
      }
      done.wait();
    }
  }

  template <class F>
  static void RunInTask(F&& f) {
    Event done;
    Spawn([&] {
      f();
      done.Set();
    });
    done.Wait();
  }
};

// Without that, half of the batch would stay with the worker that submitted it,
// and the other halves and quarters go around: a task in the middle is among
// the first somewhere.
TEST_F(FairnessTest, ABatchIsStartedInItsOrder) {
  constexpr std::size_t kTasks = 200;
  LongTasks tasks(kTasks);
  RunInTask([&] {
    tasks.Submit(0, kTasks);
    tasks.Wait();
  });
  std::vector<std::size_t> displaced;
  for (std::size_t i = 0; i < kTasks; ++i) {
    displaced.push_back(tasks.Displacement(i));
  }
  std::sort(displaced.begin(), displaced.end());
  // A thread that has to wait for a CPU may hold up the few it has taken.
  EXPECT_LE(displaced[kTasks * 9 / 10], 12u);
}

TEST_F(FairnessTest, ALaterBatchWaitsForTheEarlierOne) {
  constexpr std::size_t kTasks = 100;
  LongTasks tasks(2 * kTasks);
  RunInTask([&] {
    tasks.Submit(0, kTasks);
    // On any worker, most likely one that has nothing else to do.
    RunInTask([&] { tasks.Submit(kTasks, 2 * kTasks); });
    tasks.Wait();
  });
  std::size_t overtook = 0;
  for (std::size_t i = kTasks; i < 2 * kTasks; ++i) {
    if (tasks.Displacement(i) > 12) ++overtook;
  }
  EXPECT_LE(overtook, kTasks / 10);
}

// Tasks that resubmit themselves as long as they may: the ring is never empty.
class EndlessTasks {
 public:
  EndlessTasks(std::size_t count, std::chrono::nanoseconds length)
      : tasks_(count), running_(count) {
    for (Endless& task : tasks_) {
      task.all = this;
      task.length_ns = length.count();
      task.run = [](Task* self) { static_cast<Endless*>(self)->Go(); };
      Submit(&task);
    }
  }
  ~EndlessTasks() {
    stop_ = true;
    while (running_ != 0) std::this_thread::yield();
  }

  std::uint64_t turns() const { return turns_.load(); }

 private:
  struct Endless : Task {
    EndlessTasks* all = nullptr;
    std::int64_t length_ns = 0;

    void Go() {
      if (all->stop_.load()) {
        all->running_.fetch_sub(1);
        return;
      }
      all->turns_.fetch_add(1);
      const std::int64_t end = NowNs() + length_ns;
      while (NowNs() < end) continue;
      Submit(this);
    }
  };

  std::vector<Endless> tasks_;
  std::atomic<std::size_t> running_;
  std::atomic<std::uint64_t> turns_{0};
  std::atomic<bool> stop_{false};
};

// More of them than are worth keeping leave the ring without room for good.
// Tasks from outside run nevertheless, however long the others take.
TEST(FairnessToOthersTest, AFullRingStarvesNobody) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  for (int us : {5, 10, 20, 25, 33, 50, 100, 200}) {
    EndlessTasks tasks(250, std::chrono::microseconds(us));
    for (int i = 0; i < 5; ++i) {
      Event ran;
      Spawn([&] { ran.Set(); });  // From a plain thread: the shared queue.
      EXPECT_TRUE(ran.WaitUntil(NowNs() + 20'000'000'000)) << us << " us";
      if (HasFailure()) break;
    }
    if (HasFailure()) break;
  }
  TerminateRuntime();
}

// Hands out one event at a time, each of which is a task that counts.
class CountingPoller : public Poller {
 public:
  // Called by each event with its number, if set before Happen().
  std::function<void(int)> on_event;

  void Happen(int events) { pending_ = events; }
  int seen() const { return seen_.load(); }

  void Poll(std::int64_t deadline_ns, TaskList* ready) override {
    if (pending_.load() > 0) {
      pending_.fetch_sub(1);
      auto* const event = new OneEvent;
      event->poller = this;
      event->run = [](Task* self) {
        const std::unique_ptr<OneEvent> me(static_cast<OneEvent*>(self));
        CountingPoller* const poller = me->poller;
        if (poller->on_event) poller->on_event(poller->seen() + 1);
        poller->seen_.fetch_add(1);
      };
      ready->PushBack(event);
    } else if (deadline_ns != 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  std::size_t pending() const noexcept override {
    return static_cast<std::size_t>(pending_.load());
  }
  void Wake() override {}

 private:
  struct OneEvent : Task {
    CountingPoller* poller = nullptr;
  };

  std::atomic<int> pending_{0};
  std::atomic<int> seen_{0};
};

class FairnessToIoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RuntimeOptions options;
    options.concurrency = 1;
    options.make_poller = [](std::size_t) {
      return std::make_unique<CountingPoller>();
    };
    ASSERT_TRUE(StartRuntime(options).ok());
    poller_ = static_cast<CountingPoller*>(GetPoller(0));
  }
  void TearDown() override { TerminateRuntime(); }

  // False: not within 20 s.
  bool Await(int events) const {
    const std::int64_t end = NowNs() + 20'000'000'000;
    while (poller_->seen() < events) {
      if (NowNs() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  CountingPoller* poller_ = nullptr;
};

TEST_F(FairnessToIoTest, AFullRingStarvesNoIo) {
  int seen = 0;
  for (int count : {100, 128, 140, 250}) {
    EndlessTasks tasks(static_cast<std::size_t>(count),
                       std::chrono::microseconds(2));
    poller_->Happen(10);
    ASSERT_TRUE(Await(seen += 10)) << count << " tasks";
    // A task that waits for all events isn't starved, either.
    Event ran;
    struct Deferred : Task {
      Event* ran = nullptr;
    } deferred;
    deferred.ran = &ran;
    deferred.run = [](Task* self) { static_cast<Deferred*>(self)->ran->Set(); };
    Spawn([&] {
      if (!SubmitBehindEvents(&deferred)) ran.Set();
    });
    ASSERT_TRUE(ran.WaitUntil(NowNs() + 20'000'000'000)) << count << " tasks";
  }
}

// One by one they would take 50 and more turns of the tasks each.
TEST_F(FairnessToIoTest, ManyEventsDoNotWaitForOneMaintenanceEach) {
  EndlessTasks tasks(12, std::chrono::microseconds(2));
  while (tasks.turns() < 10000) std::this_thread::yield();
  std::uint64_t at_first = 0;
  std::uint64_t at_last = 0;
  poller_->on_event = [&](int n) {
    (n == 1 ? at_first : at_last) = tasks.turns();
  };
  poller_->Happen(100);
  ASSERT_TRUE(Await(100));
  EXPECT_LT(at_last - at_first, 2500u);
}

}  // namespace
}  // namespace flare::fiber

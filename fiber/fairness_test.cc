// Long tasks are started in the order in which they came, whichever worker's
// they are.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
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
    RuntimeOptions options;
    options.concurrency = kWorkers;
    options.group_size = kWorkers;
    const Status status = StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
    RunInTask(LearnThatTasksAreLong);
  }
  void TearDown() override { TerminateRuntime(); }

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

// Tasks that resubmit themselves, more of them than are worth keeping, leave
// the ring without room for good. What comes from outside is run nevertheless,
// for any length of theirs.
TEST(FairnessToOthersTest, AFullRingStarvesNobody) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  struct Endless : Task {
    std::chrono::microseconds length{0};
    std::atomic<bool>* stop = nullptr;
    std::atomic<int>* running = nullptr;
  };
  for (int us : {5, 10, 20, 25, 33, 50, 100, 200}) {
    std::atomic<bool> stop{false};
    std::atomic<int> running{250};
    std::vector<Endless> tasks(250);
    for (Endless& task : tasks) {
      task.length = std::chrono::microseconds(us);
      task.stop = &stop;
      task.running = &running;
      task.run = [](Task* self) {
        auto* const endless = static_cast<Endless*>(self);
        if (endless->stop->load()) {
          endless->running->fetch_sub(1);
          return;
        }
        const std::int64_t end = NowNs() + ToNs(endless->length);
        while (NowNs() < end) continue;
        Submit(endless);
      };
      Submit(&task);
    }
    for (int i = 0; i < 5; ++i) {
      Event ran;
      Spawn([&] { ran.Set(); });  // From a plain thread: the shared queue.
      EXPECT_TRUE(ran.WaitUntil(NowNs() + 20'000'000'000)) << us << " us";
      if (HasFailure()) break;
    }
    stop = true;
    while (running != 0) std::this_thread::yield();
    if (HasFailure()) break;
  }
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber

// In which order a worker runs what is queued, and when it looks for more.

#include "flare/fiber/worker.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "flare/base/futex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/poller.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// Nothing ever comes out of it. Counts how often it is looked at in passing.
class EmptyPoller : public Poller {
 public:
  void Poll(std::int64_t deadline_ns, TaskList*) override {
    if (deadline_ns == 0) {
      looks_.fetch_add(1);
      return;
    }
    constexpr auto kForever = std::numeric_limits<std::int64_t>::max();
    FutexWait(&wakes_, seen_, deadline_ns == kForever ? -1 : deadline_ns);
    seen_ = wakes_.load();
  }

  void Wake() override {
    wakes_.fetch_add(1);
    FutexWake(&wakes_, 1);
  }

  int looks() const { return looks_.load(); }

 private:
  std::atomic<int> looks_{0};
  std::atomic<std::uint32_t> wakes_{0};
  std::uint32_t seen_ = 0;
};

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RuntimeOptions options;
    options.concurrency = 1;
    options.make_poller = [](std::size_t) {
      return std::make_unique<EmptyPoller>();
    };
    ASSERT_TRUE(StartRuntime(options).ok());
  }
  void TearDown() override { TerminateRuntime(); }

  // How many of `others` tasks, which are queued behind it, are run before one
  // that lets others go first.
  static int RunBefore(int others) {
    struct Polite : Task {
      std::atomic<int>* ran = nullptr;
      int ran_before = -1;
      Event done;
    };
    std::atomic<int> ran{0};
    Polite polite;
    polite.ran = &ran;
    polite.run = [](Task* self) {
      auto* const me = static_cast<Polite*>(self);
      if (SubmitBehindOthers(me)) return;
      me->ran_before = me->ran->load();
      me->done.Set();
    };
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

TEST_F(WorkerTest, PlainThreadsHaveNoOthers) {
  Task task;
  EXPECT_FALSE(SubmitBehindOthers(&task));
}

// It would have to give its oldest tasks away for what comes.
TEST_F(WorkerTest, AHalfFullRingIsEnough) {
  struct Endless : Task {
    std::atomic<std::int64_t>* runs = nullptr;
    Latch* ended = nullptr;
    std::atomic<bool> stop{false};
  };
  constexpr int kTasks = 200;
  std::atomic<std::int64_t> runs{0};
  Latch first_ended(kTasks / 2);
  Latch ended(kTasks / 2);
  std::vector<Endless> tasks(kTasks);
  const auto run_for_a_while = [&] {
    const std::int64_t end = runs.load() + 100 * kTasks;
    while (runs.load() < end) std::this_thread::yield();
  };
  Spawn([&] {
    for (int i = 0; i < kTasks; ++i) {
      tasks[i].runs = &runs;
      tasks[i].ended = i < kTasks / 2 ? &first_ended : &ended;
      tasks[i].run = [](Task* self) {
        auto* const me = static_cast<Endless*>(self);
        if (me->stop.load()) return me->ended->count_down();
        me->runs->fetch_add(1);
        Submit(me);
      };
      Submit(&tasks[i]);
    }
  });
  run_for_a_while();
  const auto* const poller = static_cast<EmptyPoller*>(GetPoller(0));
  const int before = poller->looks();
  run_for_a_while();
  EXPECT_EQ(poller->looks(), before);

  for (int i = 0; i < kTasks / 2; ++i) tasks[i].stop = true;
  first_ended.wait();
  run_for_a_while();
  EXPECT_GT(poller->looks(), before);
  for (Endless& task : tasks) task.stop = true;
  ended.wait();
}

}  // namespace
}  // namespace flare::fiber

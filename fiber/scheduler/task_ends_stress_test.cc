// Tasks that run and are waited for, or go on alone: see testing/meeting.h.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/future.h"
#include "flare/base/status.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/future.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/testing/meeting.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "flare/fiber/work_queue.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using testing::kParties;
using testing::MeetAgainAndAgain;
using testing::Meeting;

class TaskEndsStressTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(TaskEndsStressTest);

TEST_P(TaskEndsStressTest, FibersJoinedAndDetached) {
  MeetAgainAndAgain([](Meeting& meeting) {
    std::atomic<int> ended{0};
    meeting.Start([&](int i) {
      Fiber fiber([&ended, at = meeting.Near()] {
        this_fiber::SleepUntilNs(at);
        ended.fetch_add(1);
      });
      if (fiber.try_join_until(meeting.stop(), meeting.NearTime())) return;
      if (i % 2 == 0) {
        fiber.join();
      } else {
        fiber.detach();
      }
    });
    meeting.RequestStop();
    meeting.Finish([] {});
    while (ended != kParties) std::this_thread::yield();
  });
}

// Groups within groups, whose children end, fail, throw and are stopped.
TEST_P(TaskEndsStressTest, TaskGroups) {
  MeetAgainAndAgain([](Meeting& meeting) {
    meeting.Start([&](int i) {
      std::atomic<int> running{0};
      const auto sleep = [&](const std::stop_token& stop) {
        running.fetch_add(1);
        const bool slept = this_fiber::SleepUntilNs(stop, meeting.Near());
        running.fetch_sub(1);
        return slept ? Status() : Status(1, "stopped");
      };
      TaskGroup group;
      group.Spawn(sleep);
      group.Spawn([&](const std::stop_token&) {
        TaskGroup inner;
        inner.Spawn(sleep);
        inner.Spawn([&] { this_fiber::SleepUntilNs(meeting.Near()); });
        return inner.WaitUntil(meeting.stop(), meeting.NearTime());
      });
      group.Spawn([&, i](const std::stop_token& stop) {
        static_cast<void>(sleep(stop));
        if (i % 2 == 0) throw i;
      });
      try {
        static_cast<void>(group.WaitUntil(meeting.stop(), meeting.NearTime()));
      } catch (int thrown) {
        EXPECT_EQ(thrown, i);
      }
      EXPECT_EQ(running, 0);
    });
    meeting.RequestStop();
    meeting.Finish([] {});
  });
}

// The last closure stops the queue, which goes when that has ended, while
// pushes still return.
TEST_P(TaskEndsStressTest, WorkQueues) {
  MeetAgainAndAgain([](Meeting& meeting) {
    auto queue = std::make_unique<WorkQueue>();
    int run = 0;
    meeting.Start([&](int) {
      this_fiber::SleepUntilNs(meeting.Near());
      EXPECT_TRUE(queue->Push([&] {
        if (++run != kParties) return;
        queue->Stop();
        const std::int64_t end = NowNs() + 50'000;
        while (NowNs() < end) std::this_thread::yield();
        ++run;
      }));
    });
    queue->Join();
    EXPECT_EQ(run, kParties + 1);
    queue = nullptr;
    meeting.Finish([] {});
  });
}

TEST_P(TaskEndsStressTest, Futures) {
  MeetAgainAndAgain([](Meeting& meeting) {
    std::vector<Promise<std::vector<int>>> promises(kParties);
    std::vector<Future<std::vector<int>>> futures;
    futures.reserve(kParties);
    for (auto& promise : promises) futures.push_back(promise.GetFuture());
    meeting.Start([&](int i) {
      const auto value =
          BlockingTryGet(&futures[i], meeting.stop(), meeting.NearTime());
      if (value) {
        EXPECT_EQ(*value, std::vector<int>(3, i));
      }
    });
    meeting.RequestStop();
    meeting.Finish([&] {
      for (int i = 1; i < kParties; ++i) {
        promises[i].SetValue(std::vector<int>(3, i));
      }
      promises.clear();
    });
  });
}

// Sleeps, and timers of all kinds that lie on the sleepers' stacks.
TEST_P(TaskEndsStressTest, Timers) {
  MeetAgainAndAgain([](Meeting& meeting) {
    static std::atomic<int> runs{0};  // Runs that have begun go on.
    struct Node : Timer {
      bool fired = false;  // Ordered by the cancelling.
    };
    meeting.Start([&](int) {
      Node node;
      node.set_callback(
          [](Timer* timer) { static_cast<Node*>(timer)->fired = true; });
      ArmTimer(&node, meeting.Near());
      const TimerId once = SetTimer(meeting.NearTime(), [] { ++runs; });
      const TimerId often = SetTimer(
          meeting.NearTime(), std::chrono::nanoseconds(20'000), [] { ++runs; });
      static_cast<void>(
          this_fiber::SleepUntilNs(meeting.stop(), meeting.Near()));
      KillTimer(once);
      KillTimer(often);
      const bool cancelled = CancelTimer(&node);
      EXPECT_NE(cancelled, node.fired);
    });
    meeting.RequestStop();
    meeting.Finish([] {});
  });
}

}  // namespace
}  // namespace flare::fiber

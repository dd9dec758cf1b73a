#include "flare/io/back_pressure.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "flare/base/cpu.h"
#include "flare/base/testing/overwrite_stack.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

class BackPressureTest : public testing::IoTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(BackPressureTest);

TEST(BackPressure, AdmitsUntilTheLimit) {
  BackPressure b(100);
  EXPECT_TRUE(b.Admit(60));
  EXPECT_TRUE(b.Admit(1000));  // One more, whatever its size.
  EXPECT_FALSE(b.Admit(1));
  EXPECT_EQ(b.queued(), 1060U);
  EXPECT_FALSE(b.Release(960));
  EXPECT_FALSE(b.Admit(1));  // 100: still at the limit.
  EXPECT_FALSE(b.Release(1));
  EXPECT_TRUE(b.Admit(1));
}

TEST(BackPressure, AdmitsOneAtATimeWithoutALimit) {
  BackPressure b(0);
  EXPECT_TRUE(b.Admit(60));
  EXPECT_FALSE(b.Admit(1));
  EXPECT_FALSE(b.HasRoom());
  EXPECT_FALSE(b.Release(60));
  EXPECT_TRUE(b.HasRoom());
  EXPECT_TRUE(b.Admit(1));
}

TEST(BackPressure, DoesNotWaitWhenBelow) {
  BackPressure b(100);
  EXPECT_EQ(b.Wait(1), RoomResult::kRoom);
  ASSERT_TRUE(b.Admit(50));
  EXPECT_EQ(b.Wait(1), RoomResult::kRoom);
}

TEST(BackPressure, TimesOut) {
  BackPressure b(100);
  ASSERT_TRUE(b.Admit(51));
  EXPECT_EQ(b.Wait(1), RoomResult::kTimedOut);
  EXPECT_EQ(b.Wait(NowNs() + 1'000'000), RoomResult::kTimedOut);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(b.Wait(kNoDeadline, stop.get_token()), RoomResult::kTimedOut);
  // Nothing is left behind for Release to stumble over.
  EXPECT_FALSE(b.Release(51));
  EXPECT_EQ(b.queued(), 0U);
}

// A writer that loops until there is room must block in Wait(), or be through,
// at each and every count.
TEST(BackPressure, WaitAgreesWithHasRoom) {
  for (std::size_t limit : {0, 1, 2, 7, 8}) {
    BackPressure b(limit);
    for (std::size_t queued = 0;; ++queued) {
      EXPECT_EQ(b.HasRoom(), queued <= limit / 2) << limit;
      EXPECT_EQ(b.Wait(1),
                b.HasRoom() ? RoomResult::kRoom : RoomResult::kTimedOut)
          << queued << " of " << limit;
      if (!b.Admit(1)) break;
    }
  }
}

TEST(BackPressure, TheAskerIsAnsweredOnce) {
  BackPressure b(100);
  EXPECT_FALSE(b.AskForRoom());  // There is room.
  ASSERT_TRUE(b.Admit(70));
  EXPECT_FALSE(b.Release(1));  // It doesn't ask any more.
  EXPECT_TRUE(b.AskForRoom());
  EXPECT_FALSE(b.Release(18));  // 51
  EXPECT_TRUE(b.Release(1));
  EXPECT_FALSE(b.Release(1));
  // The waiters' business doesn't disturb it.
  ASSERT_TRUE(b.Admit(50));
  EXPECT_TRUE(b.AskForRoom());
  EXPECT_EQ(b.Wait(1), RoomResult::kTimedOut);
  EXPECT_TRUE(b.Release(99));
  ASSERT_TRUE(b.Admit(100));
  ASSERT_TRUE(b.AskForRoom());
  EXPECT_TRUE(b.Close());
  EXPECT_FALSE(b.AskForRoom());
}

TEST(BackPressure, TheAskerMissesNoRoom) {
  // Fewer on a busy machine, where threads take their time to start.
  const std::int64_t end = NowNs() + 5'000'000'000;
  for (int round = 0; round < 2000 && NowNs() < end; ++round) {
    BackPressure b(2);
    ASSERT_TRUE(b.Admit(3));
    std::atomic<int> answers{0};
    std::thread releaser([&] {
      for (int i = 0; i < 3; ++i) answers += b.Release(1);
    });
    const bool asked = b.AskForRoom();
    releaser.join();
    EXPECT_EQ(answers.load(), asked);
  }
}

TEST(BackPressure, ClosedForEver) {
  BackPressure b(100);
  b.Close();
  EXPECT_EQ(b.Wait(testing::Deadline()), RoomResult::kClosed);
  b.Close();
  EXPECT_EQ(b.Wait(testing::Deadline()), RoomResult::kClosed);
}

TEST_P(BackPressureTest, WakesFibersAndThreadsAtTheMark) {
  BackPressure b(100);
  ASSERT_TRUE(b.Admit(200));
  constexpr int kFibers = 5;
  fiber::Latch waiting(kFibers + 1);
  fiber::Latch woken(kFibers + 1);
  const auto wait = [&] {
    waiting.count_down();
    EXPECT_EQ(b.Wait(testing::Deadline()), RoomResult::kRoom);
    EXPECT_LE(b.queued(), 50U);
    woken.count_down();
  };
  for (int i = 0; i < kFibers; ++i) fiber::Spawn(wait);
  std::thread thread(wait);
  waiting.wait();
  EXPECT_FALSE(b.Release(149));  // 51: above the mark, nobody is woken.
  EXPECT_FALSE(woken.try_wait());
  EXPECT_FALSE(b.Release(1));
  EXPECT_TRUE(woken.wait_for(testing::kLimit));
  thread.join();
}

TEST_P(BackPressureTest, CloseWakesAll) {
  BackPressure b(100);
  ASSERT_TRUE(b.Admit(200));
  constexpr int kFibers = 5;
  fiber::Latch woken(kFibers);
  for (int i = 0; i < kFibers; ++i) {
    fiber::Spawn([&] {
      EXPECT_EQ(b.Wait(testing::Deadline()), RoomResult::kClosed);
      woken.count_down();
    });
  }
  b.Close();
  EXPECT_TRUE(woken.wait_for(testing::kLimit));
}

// Writers that admit and wait against one that releases. A lost wake-up makes
// this hang.
TEST_P(BackPressureTest, NoWakeUpIsLost) {
  constexpr int kWriters = 4;
  constexpr int kEach = 5000;
  BackPressure b(8);
  std::atomic<int> to_release{0};
  fiber::Latch done(kWriters);
  for (int w = 0; w < kWriters; ++w) {
    fiber::Spawn([&] {
      for (int i = 0; i < kEach; ++i) {
        while (!b.Admit(1)) {
          EXPECT_EQ(b.Wait(testing::Deadline()), RoomResult::kRoom);
        }
        to_release.fetch_add(1);
      }
      done.count_down();
    });
  }
  for (int released = 0; released < kWriters * kEach;) {
    const int n = to_release.exchange(0);
    for (int i = 0; i < n; ++i) EXPECT_FALSE(b.Release(1));
    released += n;
    if (n == 0) std::this_thread::yield();
  }
  EXPECT_TRUE(done.wait_for(testing::kLimit));
  EXPECT_EQ(b.queued(), 0U);
}

// Time-outs that race with wake-ups: every waiter leaves, whichever wins.
TEST_P(BackPressureTest, TimeoutsRaceWithWakeUps) {
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    BackPressure b(2);
    ASSERT_TRUE(b.Admit(2));
    fiber::Latch left(3);
    for (int i = 0; i < 3; ++i) {
      fiber::Spawn([&, i] {
        const RoomResult result = b.Wait(NowNs() + i * 20'000);
        EXPECT_NE(result, RoomResult::kClosed);
        left.count_down();
      });
    }
    EXPECT_FALSE(b.Release(2));
    ASSERT_TRUE(left.wait_for(testing::kLimit));
  }
}

// Time-outs that race with Close(): a waiter that has left isn't woken any more
// [BK3]. Its memory is overwritten at once, so that Close() would stumble over
// it.
TEST_P(BackPressureTest, TimeoutsRaceWithClose) {
  constexpr int kRounds = 1000;
  constexpr int kWaiters = 4;
  for (int round = 0; round < kRounds; ++round) {
    BackPressure b(2);
    ASSERT_TRUE(b.Admit(2));
    fiber::Latch left(kWaiters);
    std::atomic<std::int64_t> deadline{0};
    for (int i = 0; i < kWaiters; ++i) {
      fiber::Spawn([&] {
        const std::int64_t at = NowNs() + 30'000;
        deadline = at;
        EXPECT_NE(b.Wait(at), RoomResult::kRoom);
        flare::testing::OverwriteStack();
        left.count_down();
      });
    }
    while (deadline == 0 || NowNs() < deadline) CpuRelax();
    b.Close();
    ASSERT_TRUE(left.wait_for(testing::kLimit));
  }
}

}  // namespace
}  // namespace flare::io

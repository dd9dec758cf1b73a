#include "flare/fiber/sync/thread_wait.h"

#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/cpu.h"
#include "flare/fiber/testing/stress.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

constexpr std::int64_t kDefaultSpinNs = 100'000;

// Rules that hold whether threads look before they sleep or not.
class ThreadWaitTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { SetThreadSpin(GetParam()); }
  void TearDown() override { SetThreadSpin(kDefaultSpinNs); }
};
INSTANTIATE_TEST_SUITE_P(Spin, ThreadWaitTest,
                         ::testing::Values(0, kDefaultSpinNs));

// On a thread of its own: how long it looks is learned by each thread.
template <class F>
void OnThread(F&& body) {
  std::thread(std::forward<F>(body)).join();
}

std::int64_t ThreadCpuNs() {
  timespec used{};
  EXPECT_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used), 0);
  return used.tv_sec * 1'000'000'000 + used.tv_nsec;
}

TEST_P(ThreadWaitTest, WokenBefore) {
  OnThread([] {
    ThreadWait wait;
    wait.Wake();
    EXPECT_TRUE(wait.Until(kNoDeadline));
    EXPECT_TRUE(wait.Until(1));  // Whatever the deadline.
  });
}

TEST_P(ThreadWaitTest, WokenMeanwhile) {
  OnThread([] {
    for (const int ms : {0, 1, 20}) {  // It looks, or sleeps.
      ThreadWait wait;
      bool written = false;
      std::thread waker([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        written = true;
        wait.Wake();
      });
      EXPECT_TRUE(wait.Until(kNoDeadline));
      EXPECT_TRUE(written);
      waker.join();
    }
  });
}

TEST_P(ThreadWaitTest, GivesUpAtItsDeadline) {
  OnThread([] {
    ThreadWait wait;
    EXPECT_FALSE(wait.Until(-1));
    EXPECT_FALSE(wait.Until(0));
    const std::int64_t begin = NowNs();
    EXPECT_FALSE(wait.Until(begin + 5'000'000));
    EXPECT_GE(NowNs(), begin + 5'000'000);
    // And may go on to wait.
    std::thread waker([&] { wait.Wake(); });
    EXPECT_TRUE(wait.Until(kNoDeadline));
    waker.join();
  });
}

// Looking is worth it for waits that end soon, unlike those of milliseconds.
TEST_P(ThreadWaitTest, LongWaitsTakeNoCpu) {
  OnThread([] {
    ThreadWait wait;
    const std::int64_t before = ThreadCpuNs();
    for (int i = 0; i < 100; ++i) {
      EXPECT_FALSE(wait.Until(NowNs() + 2'000'000));
    }
    // 200 ms, of which it looked for 10 if it did each time.
    EXPECT_LT(ThreadCpuNs() - before, 8'000'000);
  });
}

// How often a thread sleeps that is woken soon, a thousand times.
std::int64_t CountSleeps() {
  constexpr int kRounds = 1000;
  std::atomic<ThreadWait*> waiting{nullptr};
  std::thread waker([&] {
    for (int i = 0; i < kRounds; ++i) {
      ThreadWait* wait = nullptr;
      while ((wait = waiting.exchange(nullptr)) == nullptr) {
        std::this_thread::yield();
      }
      for (int k = 0; k < 100; ++k) CpuRelax();
      wait->Wake();
    }
  });
  rusage before{};
  rusage after{};
  OnThread([&] {
    EXPECT_EQ(::getrusage(RUSAGE_THREAD, &before), 0);
    for (int i = 0; i < kRounds; ++i) {
      ThreadWait wait;
      waiting.store(&wait);
      EXPECT_TRUE(wait.Until(kNoDeadline));
    }
    EXPECT_EQ(::getrusage(RUSAGE_THREAD, &after), 0);
  });
  waker.join();
  return after.ru_nvcsw - before.ru_nvcsw;  // Offers don't count.
}

// Several times if the machine is too busy to be sure.
TEST(ThreadWait, LooksBeforeItSleepsIfThatPays) {
  const std::int64_t deadline_ns = NowNs() + 30'000'000'000;
  std::int64_t sleeps = 0;
  do {
    sleeps = CountSleeps();
  } while (sleeps > 500 && NowNs() < deadline_ns);
  EXPECT_LE(sleeps, 500);
}

// Woken before and after it sleeps; the awaited object is freed at once.
TEST_P(ThreadWaitTest, Stress) {
  std::atomic<ThreadWait*> waiting{nullptr};
  std::atomic<bool> end{false};
  std::thread waker([&] {
    for (std::uint32_t i = 0; !end.load(); ++i) {
      ThreadWait* const wait = waiting.exchange(nullptr);
      if (wait == nullptr) {
        std::this_thread::yield();
        continue;
      }
      for (std::uint32_t k = i % 64 * (i % 64); k > 0; --k) CpuRelax();
      wait->Wake();
    }
  });
  OnThread([&] {
    const std::int64_t until = NowNs() + testing::StressNs(300'000'000);
    for (int i = 0; NowNs() < until; ++i) {
      const auto wait = std::make_unique<ThreadWait>();
      waiting.store(wait.get());
      // Some give up, and come back.
      while (!wait->Until(i % 3 == 0 ? NowNs() + 10'000 : kNoDeadline)) {
      }
    }
  });
  end.store(true);
  waker.join();
}

}  // namespace
}  // namespace flare::fiber

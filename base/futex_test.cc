#include "flare/base/futex.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <climits>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(Futex, DoesNotSleepIfTheWordDiffers) {
  std::atomic<std::uint32_t> word{5};
  EXPECT_EQ(FutexWait(&word, 4, kNoDeadline), FutexResult::kChanged);
  EXPECT_EQ(FutexWait(&word, 4, NowNs() + kNsPerMs), FutexResult::kChanged);
  // Even if the deadline has passed as well.
  EXPECT_EQ(FutexWait(&word, 4, 0), FutexResult::kChanged);
}

TEST(Futex, TimesOutNotBeforeItsDeadline) {
  std::atomic<std::uint32_t> word{0};
  const std::int64_t deadline = NowNs() + 2 * kNsPerMs;
  // A wake-up without a waker is allowed, so look again until it is due.
  FutexResult result;
  do {
    result = FutexWait(&word, 0, deadline);
  } while (result == FutexResult::kWoken);
  EXPECT_EQ(result, FutexResult::kTimedOut);
  EXPECT_GE(NowNs(), deadline - 1000);  // The clocks agree to 1 us.
}

TEST(Futex, PastDeadlinesReturnAtOnce) {
  std::atomic<std::uint32_t> word{0};
  EXPECT_EQ(FutexWait(&word, 0, 0), FutexResult::kTimedOut);
  EXPECT_EQ(FutexWait(&word, 0, -1), FutexResult::kTimedOut);
  EXPECT_EQ(FutexWait(&word, 0, NowNs() - kNsPerMs), FutexResult::kTimedOut);
}

TEST(Futex, WakingNobodyIsHarmless) {
  std::atomic<std::uint32_t> word{0};
  EXPECT_EQ(FutexWake(&word, 1), 0);
  EXPECT_EQ(FutexWake(&word, INT_MAX), 0);
}

TEST(Futex, WakingUnmappedMemoryIsHarmless) {
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const word = static_cast<std::atomic<std::uint32_t>*>(page);
  ASSERT_EQ(munmap(page, 4096), 0);
  EXPECT_EQ(FutexWake(word, 1), 0);
}

// Nor is a word that has become part of a mutex which passes priorities on.
TEST(Futex, WakingAMutexIsHarmless) {
  pthread_mutexattr_t inherits;
  ASSERT_EQ(pthread_mutexattr_init(&inherits), 0);
  ASSERT_EQ(pthread_mutexattr_setprotocol(&inherits, PTHREAD_PRIO_INHERIT), 0);
  pthread_mutex_t mutex;
  ASSERT_EQ(pthread_mutex_init(&mutex, &inherits), 0);
  // Where glibc has the word.
  auto* const word = reinterpret_cast<std::atomic<std::uint32_t>*>(&mutex);
  pthread_mutex_lock(&mutex);
  const std::uint32_t alone = word->load();
  std::jthread waiter([&] {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
  });
  while (word->load() == alone) std::this_thread::yield();
  EXPECT_EQ(FutexWake(word, 1), 0);
  pthread_mutex_unlock(&mutex);
  waiter.join();
  pthread_mutex_destroy(&mutex);
  pthread_mutexattr_destroy(&inherits);
}

// Waits until the word changes; how it is meant to be used.
void AwaitChange(std::atomic<std::uint32_t>* word, std::uint32_t from,
                 std::int64_t deadline) {
  while (word->load(std::memory_order_acquire) == from) {
    ASSERT_NE(FutexWait(word, from, deadline), FutexResult::kTimedOut);
  }
}

TEST(Futex, PassesATokenBackAndForth) {
  constexpr std::uint32_t kRounds = 3000;
  std::atomic<std::uint32_t> ping{0}, pong{0};
  std::uint32_t plain = 0;  // Handed over through the words: no race for tsan.
  std::jthread peer([&] {
    for (std::uint32_t i = 0; i < kRounds; ++i) {
      AwaitChange(&ping, i, kNoDeadline);
      ++plain;
      pong.store(i + 1, std::memory_order_release);
      FutexWake(&pong, 1);
    }
  });
  for (std::uint32_t i = 0; i < kRounds; ++i) {
    ++plain;
    ping.store(i + 1, std::memory_order_release);
    FutexWake(&ping, 1);
    AwaitChange(&pong, i,
                i % 2 == 0 ? kNoDeadline : NowNs() + 60'000 * kNsPerMs);
  }
  peer.join();
  EXPECT_EQ(plain, 2 * kRounds);
}

TEST(Futex, WakingAllReleasesEveryWaiter) {
  std::atomic<std::uint32_t> word{0};
  std::vector<std::jthread> waiters;
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back([&] { AwaitChange(&word, 0, kNoDeadline); });
  }
  word.store(1, std::memory_order_release);
  FutexWake(&word, INT_MAX);
  waiters.clear();  // Joins: hangs if one was forgotten.
  EXPECT_EQ(word.load(), 1u);
}

TEST(Futex, WakesNoMoreThanAskedFor) {
  constexpr int kWaiters = 3;
  std::atomic<std::uint32_t> word{0};
  std::atomic<int> returned{0};
  std::vector<std::jthread> waiters;
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&] {
      // Without a loop: the wake-ups are counted.
      if (FutexWait(&word, 0, kNoDeadline) == FutexResult::kWoken) ++returned;
    });
  }
  int woken = 0;
  while (returned < kWaiters) {
    const int now = FutexWake(&word, 1);
    ASSERT_LE(now, 1);
    woken += now;
  }
  waiters.clear();
  EXPECT_LE(woken, kWaiters);
}

std::atomic<int> signals{0};

TEST(Futex, SignalsDoNotEndTheWait) {
  struct sigaction action {};
  action.sa_handler = [](int) { ++signals; };  // No SA_RESTART: EINTR.
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  std::atomic<std::uint32_t> word{0};
  std::atomic<bool> done{false};
  FutexResult result{};
  std::thread waiter([&] {
    result = FutexWait(&word, 0, NowNs() + 60'000 * kNsPerMs);
    done = true;
  });
  // Each signal may hit before, in or between the kernel's sleeps; of thirty
  // that were handled some will have hit in one. (ThreadSanitizer puts the
  // handlers off, but the sleeps are interrupted: hence the other limits. Each
  // yield may take a while.)
  const std::int64_t enough = NowNs() + 5'000 * kNsPerMs;
  for (int sent = 0; signals < 30 && sent < 20'000 && NowNs() < enough;
       ++sent) {
    pthread_kill(waiter.native_handle(), SIGUSR1);
    std::this_thread::yield();
    if (done) break;
  }
  EXPECT_FALSE(done);
  word.store(1);
  while (!done) FutexWake(&word, 1);
  waiter.join();
  EXPECT_NE(result, FutexResult::kTimedOut);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(FutexDeathTest, BadAddressesAreReported) {
  EXPECT_DEATH(FutexWait(reinterpret_cast<std::atomic<std::uint32_t>*>(16), 0,
                         kNoDeadline),
               "FutexWait.*errno 14");
}

}  // namespace
}  // namespace flare

#include "flare/fiber/scheduler/poked_thread.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "flare/base/clock.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// Counts down its argument.
class Worn {
 public:
  void Start() {
    thread_.Start([this] {
      while (!thread_.stopping()) {
        // seq_cst: [PT1].
        if (todo_.load(std::memory_order_seq_cst) != 0) {
          todo_.fetch_sub(1, std::memory_order_seq_cst);
          done_.fetch_add(1, std::memory_order_release);
        } else {
          thread_.SleepUnless(
              [this] { return todo_.load(std::memory_order_seq_cst) != 0; });
        }
      }
    });
  }
  void Give() {
    todo_.fetch_add(1, std::memory_order_seq_cst);
    thread_.Poke();
  }
  bool Stop() { return thread_.Stop(); }
  bool asleep() const { return thread_.asleep(); }
  int done() const { return done_.load(std::memory_order_acquire); }

 private:
  std::atomic<int> todo_{0};
  std::atomic<int> done_{0};
  PokedThread thread_;
};

TEST(PokedThread, SleepsUntilPoked) {
  Worn worn;
  worn.Start();
  while (!worn.asleep()) std::this_thread::yield();
  worn.Give();
  while (worn.done() != 1) std::this_thread::yield();
  while (!worn.asleep()) std::this_thread::yield();
  EXPECT_TRUE(worn.Stop());
}

// A lost wake-up leaves it asleep with something to do: the test hangs.
TEST(PokedThread, LosesNoPoke) {
  constexpr int kTimes = 20'000;
  Worn worn;
  worn.Start();
  for (int i = 1; i <= kTimes; ++i) {
    worn.Give();
    while (i % 7 != 0 && worn.done() < i) std::this_thread::yield();
  }
  while (worn.done() < kTimes) std::this_thread::yield();
  EXPECT_TRUE(worn.Stop());
}

TEST(PokedThread, StopsWhateverItDoes) {
  for (int i = 0; i < 300; ++i) {
    Worn worn;
    worn.Start();
    for (int n = 0; n < i % 3; ++n) worn.Give();
    if (i % 2 == 0) {
      while (!worn.asleep()) std::this_thread::yield();
    }
    EXPECT_TRUE(worn.Stop());
    EXPECT_FALSE(worn.Stop());
  }
}

TEST(PokedThread, StopEndsASleepWithALimit) {
  PokedThread thread;
  thread.Start([&] {
    while (!thread.stopping()) {
      thread.SleepUntil(NowNs() + 3'600'000'000'000);
    }
  });
  EXPECT_TRUE(thread.Stop());  // Or it hangs.
}

TEST(PokedThread, SleepsUntilTheTime) {
  PokedThread thread;
  std::atomic<std::int64_t> slept_ns{0};
  thread.Start([&] {
    const std::int64_t start = NowNs();
    thread.SleepUntil(start + 5'000'000);
    slept_ns.store(NowNs() - start, std::memory_order_release);
  });
  while (slept_ns.load(std::memory_order_acquire) == 0) {
    std::this_thread::yield();
  }
  EXPECT_GE(slept_ns.load(std::memory_order_acquire), 5'000'000);
  EXPECT_TRUE(thread.Stop());
}

TEST(PokedThread, OneThatWasNeverStartedNeedNoStop) {
  PokedThread thread;
  thread.Poke();
  EXPECT_FALSE(thread.asleep());
  EXPECT_FALSE(thread.Stop());
}

}  // namespace
}  // namespace flare::fiber

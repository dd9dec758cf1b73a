#include "flare/fiber/sync/wait_list.h"

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// The least that can be waited on.
class Place {
 public:
  WaitResult Wait(const WaitLimit& limit) {
    ScopedLock guard(lock_);
    return waiters_.Wait(
        &guard, {"Place", this}, limit,
        [](void* self) { ++static_cast<Place*>(self)->entered_; }, this);
  }
  // How many have begun to wait, ever.
  int entered() {
    const std::scoped_lock guard(lock_);
    return entered_;
  }
  bool WakeOne() {
    const std::scoped_lock guard(lock_);
    return waiters_.WakeOne();
  }
  void WakeAll() {
    const std::scoped_lock guard(lock_);
    waiters_.WakeAll();
  }
  bool empty() {
    const std::scoped_lock guard(lock_);
    return waiters_.empty();
  }

  // Until somebody waits; on a thread or a fiber.
  void AwaitWaiter() {
    while (empty()) this_fiber::Yield();
  }

 private:
  Spinlock lock_;
  WaitList waiters_;
  int entered_ = 0;
};

class WaitListTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(WaitListTest);

TEST_P(WaitListTest, EachWayToEnd) {
  OnBoth([] {
    Place place;
    EXPECT_FALSE(place.WakeOne());
    Fiber waker([&] {
      place.AwaitWaiter();
      EXPECT_TRUE(place.WakeOne());
    });
    EXPECT_EQ(place.Wait({}), WaitResult::kWoken);
    waker.join();

    const std::int64_t deadline = NowNs() + 1'000'000;
    EXPECT_EQ(place.Wait({deadline}), WaitResult::kTimedOut);
    EXPECT_GE(NowNs(), deadline - 1000);

    std::stop_source source;
    const std::stop_token stop = source.get_token();
    Fiber stopper([&] {
      place.AwaitWaiter();
      EXPECT_TRUE(source.request_stop());
    });
    EXPECT_EQ(place.Wait({kNoDeadline, &stop}), WaitResult::kStopped);
    stopper.join();
    EXPECT_TRUE(place.empty());
  });
}

TEST_P(WaitListTest, StopRequestedBefore) {
  OnBoth([] {
    Place place;
    std::stop_source source;
    source.request_stop();
    const std::stop_token stop = source.get_token();
    EXPECT_EQ(place.Wait({kNoDeadline, &stop}), WaitResult::kStopped);
    EXPECT_EQ(place.Wait({NowNs() + 1'000'000'000, &stop}),
              WaitResult::kStopped);
    EXPECT_TRUE(place.empty());
  });
}

// Tokens that can't be stopped (any more) make no difference.
TEST_P(WaitListTest, TokenWithoutSource) {
  OnBoth([] {
    Place place;
    const std::stop_token none;
    EXPECT_EQ(place.Wait({NowNs() + 100'000, &none}), WaitResult::kTimedOut);
    std::optional<std::stop_source> source(std::in_place);
    const std::stop_token orphan = source->get_token();
    source.reset();
    EXPECT_EQ(place.Wait({NowNs() + 100'000, &orphan}), WaitResult::kTimedOut);
  });
}

// The lock is released on the way in in any case, also if the wait ends before
// it has begun.
TEST_P(WaitListTest, BeforeIsAlwaysCalled) {
  OnBoth([] {
    Spinlock lock;
    WaitList list;
    std::stop_source source;
    source.request_stop();
    const std::stop_token stop = source.get_token();
    const auto count = [](void* calls) { ++*static_cast<int*>(calls); };
    int calls = 0;
    {
      ScopedLock guard(lock);
      EXPECT_EQ(
          list.Wait(&guard, {"test"}, {kNoDeadline, &stop}, count, &calls),
          WaitResult::kStopped);
    }
    {
      ScopedLock guard(lock);
      EXPECT_EQ(list.Wait(&guard, {"test"}, {0}, count, &calls),
                WaitResult::kTimedOut);
    }
    EXPECT_EQ(calls, 2);
    EXPECT_TRUE(lock.try_lock());  // Released by either.
    lock.unlock();
  });
}

TEST_P(WaitListTest, FirstInFirstOut) {
  constexpr int kWaiters = 10;
  Place place;
  std::vector<Fiber> fibers;
  for (int i = 0; i < kWaiters; ++i) {
    fibers.emplace_back([&] { EXPECT_EQ(place.Wait({}), WaitResult::kWoken); });
    while (place.entered() != i + 1) this_fiber::Yield();
  }
  for (int i = 0; i < kWaiters; ++i) {
    EXPECT_TRUE(place.WakeOne());
    fibers[static_cast<std::size_t>(i)].join();  // On the same fiber.
  }
  EXPECT_FALSE(place.WakeOne());
}

// One request ends all waits that were given the token, on fibers and threads,
// and no others.
TEST_P(WaitListTest, OneRequestStopsAll) {
  constexpr int kEach = 20;
  Place place;
  std::stop_source source;
  const std::stop_token stop = source.get_token();
  std::atomic<int> stopped{0};
  std::atomic<int> woken{0};
  const auto body = [&](bool with_token) {
    const WaitLimit limit{kNoDeadline, with_token ? &stop : nullptr};
    if (place.Wait(limit) == WaitResult::kStopped) {
      ++stopped;
    } else {
      ++woken;
    }
  };
  std::vector<Fiber> stoppable;
  std::vector<Fiber> others;
  std::vector<std::thread> threads;
  for (int i = 0; i < kEach; ++i) {
    stoppable.emplace_back(body, true);
    others.emplace_back(body, false);
    if (i % 10 == 0) threads.emplace_back(body, true);
  }
  source.request_stop();  // Some wait already, some will.
  for (Fiber& fiber : stoppable) fiber.join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stopped, kEach + 2);
  EXPECT_EQ(woken, 0);
  while (woken < kEach) {
    place.WakeAll();
    this_fiber::Yield();
  }
  for (Fiber& fiber : others) fiber.join();
  EXPECT_EQ(stopped, kEach + 2);
}

// The fiber that was stopped runs on the very thread that requested it, while
// that is still inside request_stop() for others: with one worker it always
// does.
TEST_P(WaitListTest, RequestedByTheSameWorker) {
  for (int round = 0; round < 100; ++round) {
    Place place;
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    Latch ended(8);
    for (int i = 0; i < 8; ++i) {
      Spawn([&] {
        EXPECT_EQ(place.Wait({kNoDeadline, &stop}), WaitResult::kStopped);
        ended.count_down();
      });
    }
    Fiber([&] {
      if (round % 2 == 0) place.AwaitWaiter();
      source.request_stop();
    }).join();
    ended.wait();
  }
}

// A waker, a deadline and a stop, all at about the same time: one of them
// decides. A waker that found somebody has woken it, and only that one.
TEST_P(WaitListTest, ExactlyOneOutcome) {
  const std::int64_t end = NowNs() + testing::StressNs(200'000'000);
  std::mt19937 random(1);
  std::array<int, 3> outcomes{};
  int rounds = 0;
  for (; NowNs() < end; ++rounds) {
    Place place;
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    const auto moment = [&] {
      return std::chrono::nanoseconds(random() % 30'000);
    };
    const std::int64_t deadline = NowNs() + moment().count();
    WaitResult result = WaitResult::kWoken;
    const auto wait = [&] { result = place.Wait({deadline, &stop}); };
    const bool on_thread = rounds % 8 == 0;
    std::thread thread;
    Fiber fiber;
    if (on_thread) {
      thread = std::thread(wait);
    } else {
      fiber = Fiber(wait);
    }
    bool woken = false;
    Fiber waker([&, pause = moment()] {
      const std::int64_t until = NowNs() + pause.count();
      while (NowNs() < until) this_fiber::Yield();
      woken = place.WakeOne();
    });
    const std::int64_t until = NowNs() + moment().count();
    while (NowNs() < until) {
    }
    source.request_stop();
    waker.join();
    if (on_thread) {
      thread.join();
    } else {
      fiber.join();
    }
    EXPECT_EQ(woken, result == WaitResult::kWoken);
    EXPECT_TRUE(place.empty());
    ++outcomes[static_cast<std::size_t>(result)];
  }
  EXPECT_EQ(outcomes[0] + outcomes[1] + outcomes[2], rounds);
}

// Many waiters, many wakers, tokens shared by several: as many are woken as
// wakers have woken.
TEST_P(WaitListTest, Stress) {
  const std::int64_t end = NowNs() + testing::StressNs(200'000'000);
  Place place;
  std::atomic<std::int64_t> woken{0};
  std::atomic<std::int64_t> wakes{0};
  std::atomic<int> running{0};
  std::array<std::stop_source, 4> sources;
  std::array<Spinlock, 4> locks;
  const auto token = [&](std::size_t i) {
    const std::scoped_lock guard(locks[i]);
    return sources[i].get_token();
  };
  const auto wait = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (NowNs() < end) {
      const std::stop_token stop = token(random() % 4);
      const std::int64_t deadline =
          NowNs() + static_cast<std::int64_t>(random() % 100'000);
      WaitLimit limit{deadline};
      if (random() % 4 != 0) limit.stop = &stop;
      if (place.Wait(limit) == WaitResult::kWoken) ++woken;
    }
    --running;
  };
  std::vector<Fiber> fibers;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 20; ++i) {
    ++running;
    fibers.emplace_back(wait, i);
  }
  for (unsigned i = 0; i < 2; ++i) {
    ++running;
    threads.emplace_back(wait, 100 + i);
  }
  for (unsigned i = 0; i < 2; ++i) {
    fibers.emplace_back([&, i] {
      std::mt19937 random(200 + i);
      while (running != 0) {
        if (random() % 2 == 0) {
          wakes += place.WakeOne() ? 1 : 0;
        } else {
          const std::size_t k = random() % 4;
          std::stop_source fresh;
          {
            const std::scoped_lock guard(locks[k]);
            std::swap(sources[k], fresh);
          }
          fresh.request_stop();
        }
        this_fiber::Yield();
      }
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(woken, wakes);
  EXPECT_TRUE(place.empty());
}

}  // namespace
}  // namespace flare::fiber

// Every wait that can be limited: with a deadline that passes, a token that is
// stopped before or meanwhile, and neither; on fibers and plain threads.
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/fiber/barrier.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/shared_mutex.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr milliseconds kShort(2);
constexpr std::chrono::hours kLong(1);

// Something to wait for that hasn't come yet, and all ways to wait for it. Each
// returns whether it came.
struct Waits {
  std::function<void()> satisfy;
  std::function<bool(const std::stop_token&)> stoppable;
  std::function<bool(nanoseconds)> timed;
  std::function<bool(const std::stop_token&, nanoseconds)> both;
  std::function<bool(steady_clock::time_point)> until;
  std::function<bool(const std::stop_token&, steady_clock::time_point)>
      both_until;
};

Waits EventWaits() {
  auto event = std::make_shared<Event>();
  return {[=] { event->Set(); },
          [=](auto& stop) { return event->Wait(stop); },
          [=](auto length) { return event->WaitFor(length); },
          [=](auto& stop, auto length) { return event->WaitFor(stop, length); },
          [=](auto at) { return event->WaitUntil(at); },
          [=](auto& stop, auto at) { return event->WaitUntil(stop, at); }};
}

Waits LatchWaits() {
  auto latch = std::make_shared<Latch>(2);
  latch->count_down();
  return {
      [=] { latch->count_down(); },
      [=](auto& stop) { return latch->wait(stop); },
      [=](auto length) { return latch->wait_for(length); },
      [=](auto& stop, auto length) { return latch->wait_for(stop, length); },
      [=](auto at) { return latch->wait_until(at); },
      [=](auto& stop, auto at) { return latch->wait_until(stop, at); }};
}

// Satisfied for as many as may ask.
Waits SemaphoreWaits() {
  auto units = std::make_shared<CountingSemaphore<100>>(0);
  return {
      [=] { units->release(50); },
      [=](auto& stop) { return units->acquire(stop); },
      [=](auto length) { return units->try_acquire_for(length); },
      [=](auto& stop, auto length) {
        return units->try_acquire_for(stop, length);
      },
      [=](auto at) { return units->try_acquire_until(at); },
      [=](auto& stop, auto at) { return units->try_acquire_until(stop, at); }};
}

Waits MutexWaits() {
  auto mutex = std::make_shared<Mutex>();
  mutex->lock();
  const auto locked = [=](bool did) {
    if (did) mutex->unlock();
    return did;
  };
  return {[=] { mutex->unlock(); },
          [=](auto& stop) { return locked(mutex->lock(stop)); },
          [=](auto length) { return locked(mutex->try_lock_for(length)); },
          [=](auto& stop, auto length) {
            return locked(mutex->try_lock_for(stop, length));
          },
          [=](auto at) { return locked(mutex->try_lock_until(at)); },
          [=](auto& stop, auto at) {
            return locked(mutex->try_lock_until(stop, at));
          }};
}

Waits SharedMutexWaits(bool to_write) {
  auto mutex = std::make_shared<SharedMutex>();
  mutex->lock();
  const auto finish = [=](bool did) {
    if (did) to_write ? mutex->unlock() : mutex->unlock_shared();
    return did;
  };
  return {
      [=] { mutex->unlock(); },
      [=](auto& stop) {
        return finish(to_write ? mutex->lock(stop) : mutex->lock_shared(stop));
      },
      [=](auto length) {
        return finish(to_write ? mutex->try_lock_for(length)
                               : mutex->try_lock_shared_for(length));
      },
      [=](auto& stop, auto length) {
        return finish(to_write ? mutex->try_lock_for(stop, length)
                               : mutex->try_lock_shared_for(stop, length));
      },
      [=](auto at) {
        return finish(to_write ? mutex->try_lock_until(at)
                               : mutex->try_lock_shared_until(at));
      },
      [=](auto& stop, auto at) {
        return finish(to_write ? mutex->try_lock_until(stop, at)
                               : mutex->try_lock_shared_until(stop, at));
      }};
}

Waits ConditionVariableWaits() {
  struct Shared {
    Mutex mutex;
    ConditionVariable changed;
    bool set = false;
  };
  auto shared = std::make_shared<Shared>();
  const auto is_set = [=] { return shared->set; };
  return {[=] {
            const std::scoped_lock guard(shared->mutex);
            shared->set = true;
            shared->changed.notify_all();
          },
          [=](auto& stop) {
            std::unique_lock lock(shared->mutex);
            return shared->changed.wait(lock, stop, is_set);
          },
          [=](auto length) {
            std::unique_lock lock(shared->mutex);
            return shared->changed.wait_for(lock, length, is_set);
          },
          [=](auto& stop, auto length) {
            std::unique_lock lock(shared->mutex);
            return shared->changed.wait_for(lock, stop, length, is_set);
          },
          [=](auto at) {
            std::unique_lock lock(shared->mutex);
            return shared->changed.wait_until(lock, at, is_set);
          },
          [=](auto& stop, auto at) {
            std::unique_lock lock(shared->mutex);
            return shared->changed.wait_until(lock, stop, at, is_set);
          }};
}

Waits BarrierWaits() {
  auto barrier = std::make_shared<Barrier<>>(2);
  const auto token = barrier->arrive();
  return {
      [=] { (void)barrier->arrive(); },
      [=](auto& stop) { return barrier->wait(stop, token); },
      [=](auto length) { return barrier->wait_for(token, length); },
      [=](auto& stop, auto length) {
        return barrier->wait_for(stop, token, length);
      },
      [=](auto at) { return barrier->wait_until(token, at); },
      [=](auto& stop, auto at) { return barrier->wait_until(stop, token, at); },
  };
}

struct Kind {
  const char* name;
  Waits (*make)();
};
const Kind kKinds[] = {
    {"Event", EventWaits},
    {"Latch", LatchWaits},
    {"Semaphore", SemaphoreWaits},
    {"Mutex", MutexWaits},
    {"SharedMutex, reading", [] { return SharedMutexWaits(false); }},
    {"SharedMutex, writing", [] { return SharedMutexWaits(true); }},
    {"ConditionVariable", ConditionVariableWaits},
    {"Barrier", BarrierWaits},
};

class WaitLimitsTest : public testing::RuntimeTest {
 protected:
  template <class F>
  static void ForEachOnBoth(F f) {
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(kind.name);
      f(kind.make());
      Fiber([&] { f(kind.make()); }).join();
    }
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(WaitLimitsTest);

TEST_P(WaitLimitsTest, TimePasses) {
  ForEachOnBoth([](const Waits& waits) {
    const std::stop_source source;
    const std::stop_token stop = source.get_token();
    const std::int64_t before = NowNs();
    EXPECT_FALSE(waits.timed(kShort));
    EXPECT_FALSE(waits.both(stop, kShort));
    EXPECT_FALSE(waits.until(ReadSteadyClock() + kShort));
    EXPECT_FALSE(waits.both_until(stop, ReadSteadyClock() + kShort));
    EXPECT_GE(NowNs() - before, 4 * (ToNs(kShort) - 1000));
    EXPECT_FALSE(waits.timed(nanoseconds(0)));
    EXPECT_FALSE(waits.until(steady_clock::time_point::min()));
  });
}

TEST_P(WaitLimitsTest, StoppedBefore) {
  ForEachOnBoth([](const Waits& waits) {
    std::stop_source source;
    source.request_stop();
    const std::stop_token stop = source.get_token();
    EXPECT_FALSE(waits.stoppable(stop));
    EXPECT_FALSE(waits.both(stop, kLong));
    EXPECT_FALSE(waits.both_until(stop, ReadSteadyClock() + kLong));
  });
}

TEST_P(WaitLimitsTest, StoppedMeanwhile) {
  ForEachOnBoth([](const Waits& waits) {
    for (int way = 0; way < 3; ++way) {
      std::stop_source source;
      const std::stop_token stop = source.get_token();
      Fiber stopper([&] {
        this_fiber::Yield();
        source.request_stop();
      });
      switch (way) {
        case 0:
          EXPECT_FALSE(waits.stoppable(stop));
          break;
        case 1:
          EXPECT_FALSE(waits.both(stop, kLong));
          break;
        default:
          EXPECT_FALSE(waits.both_until(stop, ReadSteadyClock() + kLong));
      }
      EXPECT_TRUE(stop.stop_requested());
      stopper.join();
    }
  });
}

TEST_P(WaitLimitsTest, SatisfiedMeanwhileAndAfter) {
  ForEachOnBoth([](const Waits& waits) {
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    Fiber satisfier([&] {
      this_fiber::Yield();
      waits.satisfy();
    });
    EXPECT_TRUE(waits.both(stop, kLong));
    satisfier.join();
    // A value that is there is taken though a stop was requested and time has
    // passed.
    source.request_stop();
    EXPECT_TRUE(waits.stoppable(stop));
    EXPECT_TRUE(waits.both(stop, nanoseconds(0)));
    EXPECT_TRUE(waits.both_until(stop, steady_clock::time_point::min()));
    EXPECT_TRUE(waits.until(steady_clock::time_point::min()));
    EXPECT_TRUE(waits.timed(nanoseconds(0)));
  });
}

TEST_P(WaitLimitsTest, Join) {
  const auto check = [] {
    Event go;
    Fiber fiber([&] { go.Wait(); });
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    EXPECT_FALSE(fiber.try_join_for(kShort));
    EXPECT_FALSE(fiber.try_join_until(ReadSteadyClock() + kShort));
    EXPECT_FALSE(fiber.try_join_for(stop, kShort));
    EXPECT_FALSE(fiber.try_join_until(stop, ReadSteadyClock() + kShort));
    source.request_stop();
    EXPECT_FALSE(fiber.join(stop));
    EXPECT_FALSE(fiber.try_join_for(stop, kLong));
    EXPECT_TRUE(fiber.joinable());
    go.Set();
    EXPECT_TRUE(fiber.try_join_for(kLong));
    EXPECT_FALSE(fiber.joinable());
    Fiber second([] {});
    EXPECT_TRUE(second.join(std::stop_token()));
    EXPECT_FALSE(second.joinable());
  };
  check();
  Fiber(check).join();
}

TEST_P(WaitLimitsTest, Sleep) {
  const auto check = [] {
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    const std::int64_t before = NowNs();
    EXPECT_TRUE(this_fiber::SleepFor(stop, kShort));
    EXPECT_TRUE(this_fiber::SleepUntil(stop, ReadSteadyClock() + kShort));
    EXPECT_TRUE(this_fiber::SleepFor(std::stop_token(), kShort));
    EXPECT_GE(NowNs() - before, 3 * (ToNs(kShort) - 1000));
    Fiber stopper([&] {
      this_fiber::Yield();
      source.request_stop();
    });
    EXPECT_FALSE(this_fiber::SleepFor(stop, kLong));
    EXPECT_FALSE(this_fiber::SleepUntil(stop, ReadSteadyClock() + kLong));
    stopper.join();
    EXPECT_LT(NowNs() - before, ToNs(kLong));
  };
  check();
  Fiber(check).join();
}

// Unsigned ones and odd periods are as long as they say.
TEST_P(WaitLimitsTest, LengthsOfAnyType) {
  OnBoth([] {
    const std::int64_t before = NowNs();
    Event event;
    EXPECT_FALSE(event.WaitFor(
        std::chrono::duration<std::uint64_t, std::milli>(kShort.count())));
    EXPECT_FALSE(
        event.WaitFor(std::chrono::duration<unsigned, std::ratio<1, 60>>(1)));
    EXPECT_GE(NowNs() - before, ToNs(kShort) + 16'666'667 - 2000);
  });
}

// The description for fiber lists and debuggers.
TEST_P(WaitLimitsTest, ReasonAndName) {
  Event event;
  Fiber fiber([&] {
    this_fiber::SetName("waiter");
    event.Wait();
  });
  FiberSnapshot seen;
  const std::int64_t deadline = NowNs() + 20'000'000'000;
  while (seen.waits_for.empty() && NowNs() < deadline) {
    VisitFibers([&](const FiberSnapshot& each) {
      if (each.name == "waiter") seen = each;
    });
  }
  EXPECT_EQ(seen.waits_for, "Event");
  EXPECT_EQ(seen.waits_on, &event);
  event.Set();
  fiber.join();
  this_fiber::SetName("ignored on a thread");
}

}  // namespace
}  // namespace flare::fiber

#include "flare/fiber/shared_mutex.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>
#include <shared_mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

class SharedMutexTest : public testing::RuntimeTest {
 protected:
  // A fiber that is waiting in `f` once this returns; `waits` must be true
  // only then.
  template <class F>
  static void AwaitTrue(F waits) {
    const std::int64_t deadline = NowNs() + 20'000'000'000;
    while (!waits()) {
      ASSERT_LT(NowNs(), deadline);
      this_fiber::Yield();
    }
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(SharedMutexTest);

TEST_P(SharedMutexTest, ReadersShareWritersDont) {
  OnBoth([] {
    SharedMutex mutex;
    EXPECT_TRUE(mutex.try_lock_shared());
    EXPECT_TRUE(mutex.try_lock_shared());
    EXPECT_FALSE(mutex.try_lock());
    mutex.unlock_shared();
    EXPECT_FALSE(mutex.try_lock());
    mutex.unlock_shared();
    EXPECT_TRUE(mutex.try_lock());
    EXPECT_FALSE(mutex.try_lock());
    EXPECT_FALSE(mutex.try_lock_shared());
    mutex.unlock();
    std::shared_lock reading(mutex);
    EXPECT_TRUE(reading.owns_lock());
    reading.unlock();
    const std::unique_lock writing(mutex, std::try_to_lock);
    EXPECT_TRUE(writing.owns_lock());
  });
}

TEST_P(SharedMutexTest, EveryLimit) {
  OnBoth([] {
    SharedMutex mutex;
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    const auto expect_all = [&](bool locks) {
      const auto soon = [] { return steady_clock::now() + milliseconds(1); };
      const auto try_one = [&](bool locked) {
        EXPECT_EQ(locked, locks);
        if (locked) mutex.unlock();
      };
      const auto try_shared = [&](bool locked) {
        EXPECT_EQ(locked, locks);
        if (locked) mutex.unlock_shared();
      };
      try_one(mutex.try_lock_for(milliseconds(1)));
      try_one(mutex.try_lock_until(soon()));
      try_one(mutex.try_lock_for(stop, milliseconds(1)));
      try_one(mutex.try_lock_until(stop, soon()));
      try_shared(mutex.try_lock_shared_for(milliseconds(1)));
      try_shared(mutex.try_lock_shared_until(soon()));
      try_shared(mutex.try_lock_shared_for(stop, milliseconds(1)));
      try_shared(mutex.try_lock_shared_until(stop, soon()));
      if (!stop.stop_requested() && !locks) return;
      try_one(mutex.lock(stop));
      try_shared(mutex.lock_shared(stop));
    };
    expect_all(true);
    mutex.lock();
    const std::int64_t before = NowNs();
    expect_all(false);
    EXPECT_GE(NowNs() - before, 8 * 1'000'000 - 8 * 1000);
    source.request_stop();
    expect_all(false);
    mutex.unlock();
    expect_all(true);  // A free mutex is taken though a stop was requested.
  });
}

// A reader that comes while a writer waits goes behind it; so the writer gets
// its turn however many readers come.
TEST_P(SharedMutexTest, WritersArentStarved) {
  SharedMutex mutex;
  std::atomic<bool> written{false};
  mutex.lock_shared();
  Fiber writer([&] {
    const std::scoped_lock guard(mutex);
    written = true;
  });
  AwaitTrue([&] {  // Until the writer waits.
    if (!mutex.try_lock_shared()) return true;
    mutex.unlock_shared();
    return false;
  });
  EXPECT_FALSE(mutex.try_lock_shared_for(milliseconds(1)));
  bool seen = false;
  Fiber reader([&] {
    const std::shared_lock guard(mutex);
    seen = written;
  });
  EXPECT_FALSE(written);
  mutex.unlock_shared();
  writer.join();
  reader.join();
  EXPECT_TRUE(seen);
}

// ... and readers that wait when a writer ends go before the next writer.
TEST_P(SharedMutexTest, ReadersArentStarved) {
  SharedMutex mutex;
  std::atomic<bool> stop{false};
  std::atomic<int> writes{0};
  const auto write = [&] {
    while (!stop) {
      const std::scoped_lock guard(mutex);
      ++writes;
      this_fiber::Yield();
    }
  };
  Fiber one(write);
  Fiber two(write);
  AwaitTrue([&] { return writes > 10; });
  for (int i = 0; i < 50; ++i) {
    Fiber([&] { const std::shared_lock guard(mutex); }).join();
  }
  stop = true;
  one.join();
  two.join();
}

// A writer that gives up lets the readers in that waited behind it, at once and
// not only when the present reader ends.
TEST_P(SharedMutexTest, WriterThatGivesUpMakesWay) {
  for (const bool by_stop : {false, true}) {
    SharedMutex mutex;
    std::stop_source source;
    std::atomic<bool> gave_up{false};
    mutex.lock_shared();
    Fiber writer([&] {
      if (by_stop) {
        EXPECT_FALSE(mutex.lock(source.get_token()));
      } else {
        EXPECT_FALSE(mutex.try_lock_for(milliseconds(200)));
      }
      gave_up = true;
    });
    AwaitTrue([&] {
      if (gave_up) return true;  // We were held up for longer than it waits.
      if (!mutex.try_lock_shared()) return true;
      mutex.unlock_shared();
      return false;
    });
    std::vector<Fiber> readers;
    for (int i = 0; i < 5; ++i) {
      readers.emplace_back([&] { const std::shared_lock guard(mutex); });
    }
    std::thread thread([&] { const std::shared_lock guard(mutex); });
    source.request_stop();
    writer.join();
    for (Fiber& reader : readers) reader.join();
    thread.join();
    mutex.unlock_shared();
    EXPECT_TRUE(mutex.try_lock());
    mutex.unlock();
  }
}

// Fibers and threads that read and write, suspend inside, give up, and are
// stopped: plain variables show broken exclusion.
TEST_P(SharedMutexTest, Stress) {
  SharedMutex mutex;
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::atomic<std::int64_t> writes{0};
  std::atomic<int> readers{0};
  const std::int64_t end = NowNs() + testing::StressNs(150'000'000);
  const auto write = [&](unsigned random) {
    EXPECT_EQ(readers.load(), 0);
    ++first;
    if (random % 4 == 0) this_fiber::Yield();
    ++second;
    EXPECT_EQ(first, second);
    ++writes;
    mutex.unlock();
  };
  const auto read = [&](unsigned random) {
    ++readers;
    const std::int64_t seen = first;
    if (random % 4 == 0) this_fiber::Yield();
    EXPECT_EQ(seen, second);
    --readers;
    mutex.unlock_shared();
  };
  const auto body = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (NowNs() < end) {
      const unsigned r = random();
      const microseconds moment(r / 16 % 50);
      std::optional<std::stop_source> source;
      std::optional<Fiber> stopper;
      if (r % 16 >= 12) {
        source.emplace();
        stopper.emplace([&source, moment] {
          this_fiber::SleepFor(moment);
          source->request_stop();
        });
      }
      switch (r % 16) {
        case 0:
        case 1:
          mutex.lock();
          write(r >> 8);
          break;
        case 2:
        case 3:
          if (mutex.try_lock_for(moment)) write(r >> 8);
          break;
        case 4:
        case 5:
          if (mutex.try_lock_shared_for(moment)) read(r >> 8);
          break;
        case 12:
        case 13:
          if (mutex.lock(source->get_token())) write(r >> 8);
          break;
        case 14:
        case 15:
          if (mutex.lock_shared(source->get_token())) read(r >> 8);
          break;
        default:
          mutex.lock_shared();
          read(r >> 8);
      }
      if (stopper) stopper->join();
    }
  };
  std::vector<Fiber> fibers;
  for (unsigned i = 0; i < 16; ++i) fibers.emplace_back(body, i);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 2; ++i) threads.emplace_back(body, 100 + i);
  for (Fiber& fiber : fibers) fiber.join();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, writes.load());
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

// The last owner destroys it: nobody who has unlocked comes back to it.
TEST_P(SharedMutexTest, DestroyedByTheLastOwner) {
  struct Shared {
    SharedMutex mutex;
    std::atomic<int> users{6};
  };
  for (int round = 0; round < 300; ++round) {
    auto* const shared = new Shared();
    std::vector<Fiber> fibers;
    for (int i = 0; i < 6; ++i) {
      fibers.emplace_back([shared, i, round] {
        if (i % 3 == 0) {
          const std::scoped_lock guard(shared->mutex);
          if (round % 2 == 0) this_fiber::Yield();
        } else if (i % 3 == 1) {
          const std::shared_lock guard(shared->mutex);
          if (round % 4 < 2) this_fiber::Yield();
        } else if (shared->mutex.try_lock_for(microseconds(round % 20))) {
          shared->mutex.unlock();
        }
        if (--shared->users == 0) delete shared;
      });
    }
    for (Fiber& fiber : fibers) fiber.join();
  }
}

}  // namespace
}  // namespace flare::fiber

#include "flare/fiber/contention_profile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/backtrace.h"
#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/base/testing/at_last.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/shared_mutex.h"
#include "flare/fiber/sync/lock_wait.h"
#include "flare/fiber/sync/sample_pace.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::fiber::testing {

// Places to wait at: with names, and each a frame of its own.
[[gnu::noinline]] void WaitAtFirstPlace(Mutex& mutex) {
  mutex.lock();
  mutex.unlock();
}
[[gnu::noinline]] void WaitAtSecondPlace(Mutex& mutex) {
  mutex.lock();
  mutex.unlock();
}
[[gnu::noinline]] void WaitToWrite(SharedMutex& mutex) {
  mutex.lock();
  mutex.unlock();
}
[[gnu::noinline]] void WaitToRead(SharedMutex& mutex) {
  mutex.lock_shared();
  mutex.unlock_shared();
}
[[gnu::noinline]] bool WaitInVain(Mutex& mutex) {
  const bool locked = mutex.try_lock_until(NowNs());
  if (locked) mutex.unlock();
  return locked;
}

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ContentionProfileTest : public RuntimeTest {
 protected:
  static std::unique_ptr<ContentionProfile> Start() {
    auto profile = ContentionProfile::Start();
    EXPECT_TRUE(profile);
    return profile ? *std::move(profile) : nullptr;
  }

  // Until so many fibers wait for the mutex.
  static void AwaitWaiters(const void* mutex, int waiters) {
    EXPECT_TRUE(Eventually([&] {
      int found = 0;
      VisitFibers(
          [&](const FiberSnapshot& f) { found += f.waits_on == mutex; });
      return found == waiters;
    }));
  }

  // The caller of lock(), which may be a frame itself.
  static std::string PlaceName(const ContentionPlace& place) {
    std::string name;
    for (const std::uintptr_t frame : place.where.frames()) {
      name = Symbolize(frame).function;
      if (name.find("Mutex::") == std::string::npos) break;
    }
    return name;
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(ContentionProfileTest);

TEST_P(ContentionProfileTest, HasPlacesInTheOrderOfTheirTime) {
  constexpr int kFirst = 5;
  Mutex mutex;
  mutex.lock();
  const auto profile = Start();
  const std::int64_t begin_ns = NowNs();
  std::vector<Fiber> fibers;
  for (int i = 0; i != kFirst; ++i) {
    fibers.emplace_back([&] { WaitAtFirstPlace(mutex); });
  }
  AwaitWaiters(&mutex, kFirst);
  const std::int64_t all_wait_ns = NowNs();
  fibers.emplace_back([&] { WaitAtSecondPlace(mutex); });
  AwaitWaiters(&mutex, kFirst + 1);
  const std::int64_t end_ns = NowNs();
  mutex.unlock();
  for (Fiber& fiber : fibers) fiber.join();
  const ContentionReport report = profile->Finish();
  const std::int64_t over_ns = NowNs();

  ASSERT_EQ(report.places.size(), 2u) << report.ToText();
  const ContentionPlace& first = report.places[0];
  EXPECT_THAT(PlaceName(first), HasSubstr("WaitAtFirstPlace"));
  EXPECT_THAT(first.what, std::string("Mutex"));
  EXPECT_EQ(first.waits, kFirst);
  EXPECT_EQ(first.waiting, 0u);
  EXPECT_GE(first.wait_ns, kFirst * (end_ns - all_wait_ns));
  EXPECT_LE(first.wait_ns, kFirst * (over_ns - begin_ns));
  EXPECT_GE(first.longest_ns, first.wait_ns / kFirst);
  EXPECT_LE(first.longest_ns, over_ns - begin_ns);
  EXPECT_THAT(PlaceName(report.places[1]), HasSubstr("WaitAtSecondPlace"));
  EXPECT_EQ(report.places[1].waits, 1u);
  EXPECT_EQ(report.samples, kFirst + 1u);
  EXPECT_EQ(report.lost, 0u);
  EXPECT_LE(report.duration_ns, over_ns - begin_ns + 1'000'000'000);
}

TEST_P(ContentionProfileTest, IsEmptyIfNobodyWaits) {
  Mutex mutex;
  SharedMutex shared;
  ConditionVariable changed;
  const auto profile = Start();
  OnBoth([&] {
    { std::scoped_lock guard(mutex, shared); }
    { std::shared_lock guard(shared); }
    mutex.lock();
    EXPECT_FALSE(mutex.try_lock());  // Doesn't wait.
    mutex.unlock();
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::microseconds(1));
  });
  const ContentionReport report = profile->Finish();
  EXPECT_TRUE(report.places.empty()) << report.ToText();
  EXPECT_EQ(report.samples, 0u);
}

TEST_P(ContentionProfileTest, KnowsReadersFromWriters) {
  SharedMutex mutex;
  mutex.lock();
  const auto profile = Start();
  Fiber writer([&] { WaitToWrite(mutex); });
  Fiber reader([&] { WaitToRead(mutex); });
  AwaitWaiters(&mutex, 2);
  mutex.unlock();
  writer.join();
  reader.join();
  ContentionReport report = profile->Finish();
  ASSERT_EQ(report.places.size(), 2u) << report.ToText();
  for (const ContentionPlace& place : report.places) {
    const bool reads = place.what == std::string("SharedMutex, to read");
    EXPECT_THAT(PlaceName(place),
                HasSubstr(reads ? "WaitToRead" : "WaitToWri"));
    EXPECT_EQ(place.waits, 1u);
  }
}

TEST_P(ContentionProfileTest, CountsWaitsInVainOfFibersAndThreads) {
  Mutex mutex;
  mutex.lock();
  const auto profile = Start();
  OnBoth([&] {
    EXPECT_FALSE(WaitInVain(mutex));
    EXPECT_FALSE(WaitInVain(mutex));
  });
  mutex.unlock();
  const ContentionReport report = profile->Finish();
  // The thread's place has other callers than the fiber's.
  ASSERT_EQ(report.places.size(), 4u) << report.ToText();
  for (const ContentionPlace& place : report.places) {
    EXPECT_THAT(PlaceName(place), HasSubstr("WaitInVain"));
    EXPECT_EQ(place.waits, 1u);
  }
}

TEST_P(ContentionProfileTest, HasWaitsThatAreNotOver) {
  Mutex mutex;
  mutex.lock();
  auto profile = Start();
  Fiber fiber([&] { WaitAtFirstPlace(mutex); });
  AwaitWaiters(&mutex, 1);
  const std::int64_t waits_ns = NowNs();
  const std::int64_t longer_ns = NowNs() - waits_ns;
  const ContentionReport report = profile->Finish();
  ASSERT_EQ(report.places.size(), 1u);
  EXPECT_EQ(report.places[0].waits, 1u);
  EXPECT_EQ(report.places[0].waiting, 1u);
  EXPECT_GE(report.places[0].wait_ns, longer_ns);
  EXPECT_THAT(report.ToText(), HasSubstr(", 1 not over: Mutex\n"));

  // [LW2]: the end comes in a profile that doesn't know the wait.
  profile = Start();
  mutex.unlock();
  fiber.join();
  EXPECT_TRUE(profile->Finish().places.empty());
}

TEST_P(ContentionProfileTest, IsTakenOneAtATime) {
  auto profile = Start();
  const auto second = ContentionProfile::Start();
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message(), HasSubstr("in the making"));
  profile.reset();  // Ends it.
  profile = Start();
  profile->Finish();
  profile = Start();
}

// [LW1], [LW2]: waits begin and end while profiles do.
TEST_P(ContentionProfileTest, MayStartAndEndWhileOthersWait) {
  Mutex mutex;
  SharedMutex shared;
  std::atomic<bool> done{false};
  const auto contend = [&] {
    while (!done) {
      {
        std::scoped_lock guard(mutex);
        this_fiber::Yield();  // The others must wait.
      }
      { std::scoped_lock guard(shared); }
      std::shared_lock guard(shared);
      this_fiber::Yield();
    }
  };
  std::vector<Fiber> fibers;
  for (int i = 0; i != 4; ++i) fibers.emplace_back(contend);
  std::thread thread(contend);
  std::uint64_t waits = 0;
  for (int i = 0; i < 20 || waits == 0; ++i) {
    auto profile = Start();
    for (int spin = 0; spin != 10; ++spin) std::this_thread::yield();
    if (i % 4 == 0) continue;  // Thrown away.
    const ContentionReport report = profile->Finish();
    for (const ContentionPlace& place : report.places) {
      EXPECT_GE(place.waits, place.waiting);
      waits += place.waits;
    }
  }
  done = true;
  for (Fiber& fiber : fibers) fiber.join();
  thread.join();
}

[[gnu::noinline]] void CallBelow(int frames, const std::function<void()>& f) {
  frames == 0 ? f() : CallBelow(frames - 1, f);
  asm volatile("");  // So that the call isn't the last thing.
}

// The shortest of many.
std::int64_t BacktraceNs() {
  std::int64_t least_ns = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i != 100; ++i) {
    const std::int64_t begin_ns = NowNs();
    static_cast<void>(CurrentBacktrace());
    least_ns = std::min(least_ns, NowNs() - begin_ns);
  }
  return least_ns;
}

TEST(LockWaitTest, TimeOfTheBacktraceIsNotPartOfTheWait) {
  PrepareBacktraces();
  CallBelow(Backtrace::kMaxFrames, [] {
    const std::int64_t backtrace_ns = BacktraceNs();
    // The thread may lose its CPU within a wait of nothing.
    EXPECT_TRUE(Eventually([&] {
      EXPECT_TRUE(LockWait::StartRecording());
      { const LockWait wait("Mutex"); }
      const auto recorded = LockWait::StopRecording();
      return recorded.places.size() == 1 &&
             recorded.places[0].wait_ns < backtrace_ns / 2;
    }));
  });
}

// Threads may still wait then.
TEST(LockWaitTest, CountsWaitsAtExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exit_while_recording = [] {
    LockWait::StartRecording();
    flare::testing::at_last = [] {
      { const LockWait wait("Mutex"); }
      std::_Exit(LockWait::StopRecording().places.size() == 1 ? 0 : 1);
    };
    std::exit(0);
  };
  EXPECT_EXIT(exit_while_recording(), ::testing::ExitedWithCode(0), "");
}

ContentionReport SmallReport() {
  ContentionReport report;
  report.duration_ns = 2'000'000'000;
  report.samples = 3;
  ContentionPlace place;
  place.what = "Mutex";
  place.waits = 3;
  place.wait_ns = 1'500'000;
  place.longest_ns = 1'000'000;
  place.where.Add(0xa1);
  place.where.Add(0xb2);
  report.places.push_back(place);
  place.waits = 1;
  place.wait_ns = 500'000;
  place.longest_ns = 500'000;
  report.places.push_back(place);
  return report;
}

TEST(ContentionReportTest, HasTheFormOfGperftools) {
  ContentionReport report = SmallReport();
  report.lost = 7;
  const std::string text = report.ToPprof();
  EXPECT_THAT(text, StartsWith("--- contention:\n"
                               "cycles/second = 1000000000\n"
                               "sampling period = 1\n"
                               "ms since reset = 2000\n"
                               "discarded samples = 7\n"
                               "1500000 3 @ 0xa1 0xb2\n"
                               "500000 1 @ 0xa1 0xb2\n"
                               "--- Memory map: ---\n"));
  EXPECT_THAT(text, HasSubstr("r-xp"));
}

TEST(ContentionReportTest, HasATextForPeople) {
  ContentionReport report = SmallReport();
  report.lost = 7;
  EXPECT_THAT(
      report.ToText(1),
      AllOf(StartsWith("2.000 s: 11 waits for locks, 0.002 s in all, estimated "
                       "from 3 samples\n\n"
                       "3 waits, 0.002 s (75.0%), longest 1.000 ms: Mutex\n"
                       "    #0 "),
            HasSubstr("\n1 further place with shorter waits\n"),
            HasSubstr("\n7 at places beyond these\n")));
  EXPECT_EQ(ContentionReport{}.ToText(),
            "0.000 s: 0 waits for locks, 0.000 s in all\n");
}

struct Sampled {
  std::uint64_t samples = 0;
  std::uint64_t estimate = 0;
};

// Events at equal intervals.
Sampled SampleEvents(SamplePace* pace, std::int64_t from_ns, int events,
                     std::int64_t every_ns) {
  Sampled sampled;
  for (int i = 0; i != events; ++i) {
    const std::int64_t now_ns = from_ns + i * every_ns;
    const std::uint64_t period = pace->Period(now_ns);
    if (MixBits(static_cast<std::uint64_t>(now_ns)) % period != 0) continue;
    pace->CountSample(now_ns);
    ++sampled.samples;
    sampled.estimate += period;
  }
  return sampled;
}

TEST(SamplePaceTest, SamplesAllRareEventsAndFewOfManyOnes) {
  SamplePace pace;
  pace.Restart(0);
  EXPECT_EQ(SampleEvents(&pace, 0, 100, 1'000'000).samples, 100u);

  // A million in a second.
  const Sampled many = SampleEvents(&pace, 1'000'000'000, 1'000'000, 1'000);
  EXPECT_GE(many.samples, 1'000u);
  EXPECT_LE(many.samples, 6'000u);
  EXPECT_NEAR(static_cast<double>(many.estimate), 1e6, 1e5);

  // All again, soon after.
  EXPECT_GT(pace.Period(2'000'000'000), 100u);
  EXPECT_EQ(pace.Period(2'500'000'000), 1u);
  EXPECT_EQ(SampleEvents(&pace, 2'500'000'000, 100, 1'000'000).samples, 100u);
}

}  // namespace
}  // namespace flare::fiber::testing

#include "flare/fiber/fiber_list.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/sanitizer.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/shared_mutex.h"
#include "flare/fiber/task.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "flare/fiber/timer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::fiber {

// Outside the anonymous namespace: tests look for the names.
namespace fiber_list_test {

[[gnu::noinline]] void WaitInside(Event* event) {
  event->Wait();
  asm volatile("");  // Prevents a tail call.
}

[[gnu::noinline]] void WaitOutside(Event* event) {
  WaitInside(event);
  asm volatile("");
}

[[gnu::noinline]] void YieldHere() {
  this_fiber::Yield();
  asm volatile("");
}

// At another depth.
[[gnu::noinline]] void YieldThere() {
  char space[1000];
  asm volatile("" : : "r"(space) : "memory");
  this_fiber::Yield();
  asm volatile("");
}

[[gnu::noinline]] void SpinUntil(std::atomic<bool>* stop) {
  // relaxed: only to end.
  while (!stop->load(std::memory_order_relaxed)) {
  }
}

}  // namespace fiber_list_test

namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<FiberSnapshot> Named(const std::string& name) {
  std::vector<FiberSnapshot> found = ListFibers();
  std::erase_if(found, [&](const auto& fiber) { return fiber.name != name; });
  return found;
}

// Until as many fibers of that name are suspended.
std::vector<FiberSnapshot> AwaitSuspended(const std::string& name,
                                          std::size_t count) {
  for (;;) {
    std::vector<FiberSnapshot> found = Named(name);
    if (std::count_if(found.begin(), found.end(), [](const auto& fiber) {
          return fiber.state == FiberState::kSuspended &&
                 !fiber.backtrace.empty();
        }) == static_cast<std::ptrdiff_t>(count)) {
      return found;
    }
    std::this_thread::yield();
  }
}

// A fiber that was joined may still be on its way out.
void AwaitEnd(const std::string& name) {
  while (!Named(name).empty()) std::this_thread::yield();
}

class FiberListTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(FiberListTest);

TEST_P(FiberListTest, IsEmptyWithoutFibers) {
  while (!ListFibers().empty()) std::this_thread::yield();
  std::ostringstream out;
  DumpFibers(out);
  EXPECT_EQ(out.str(), "0 fibers: 0 running, 0 suspended\n");
}

// Timers fire between tasks, on a worker that doesn't sleep.
TEST_P(FiberListTest, ShowsNoTaskThatHasEnded) {
  struct Look : Timer {
    Look()
        : Timer([](Timer* timer) {
            auto* const self = static_cast<Look*>(timer);
            self->found = ListFibers();
            self->done.Set();
          }) {}
    std::vector<FiberSnapshot> found;
    Event done;
  } look;
  Fiber([] {}).join();
  while (!ListFibers().empty()) std::this_thread::yield();
  ArmTimer(&look, NowNs());
  look.done.Wait();
  for (const FiberSnapshot& fiber : look.found) {
    ADD_FAILURE() << EntryName(fiber.entry);
  }
}

TEST_P(FiberListTest, ShowsWhatAFiberWorksFor) {
  struct Owner : ExecutionContext::Owner {
    StopCause OnWatched() override { return StopCause::kNone; }
  } owner;
  static const ExecutionContext::Owner* described;
  described = nullptr;
  ExecutionContext::SetDescriber([](const ExecutionContext::Owner* o) {
    described = o;
    return std::string("a test of 0.0.0.0");
  });
  const auto context = ExecutionContext::Create(0, &owner);
  const auto nobodys = ExecutionContext::Create();
  Event event;
  const auto wait_in = [&event](const char* name, const auto& context) {
    return Fiber([&event, name, context] {
      this_fiber::SetName(name);
      WithExecutionContextIfPresent(context, [&] { event.Wait(); });
    });
  };
  Fiber owned = wait_in("owned", context);
  Fiber other = wait_in("other", nobodys);
  Fiber without = wait_in("without", RefPtr<ExecutionContext>());
  EXPECT_EQ(AwaitSuspended("owned", 1)[0].works_for, "a test of 0.0.0.0");
  EXPECT_EQ(described, &owner);
  EXPECT_EQ(AwaitSuspended("other", 1)[0].works_for, "");
  EXPECT_EQ(AwaitSuspended("without", 1)[0].works_for, "");
  std::ostringstream out;
  DumpFibers(out);
  EXPECT_THAT(out.str(), HasSubstr(" for a test of 0.0.0.0"));
  event.Set();
  owned.join();
  other.join();
  without.join();
  ExecutionContext::SetDescriber(nullptr);
  for (const char* name : {"owned", "other", "without"}) AwaitEnd(name);
}

TEST_P(FiberListTest, ShowsWhatASuspendedFiberWaitsFor) {
  Event event;
  std::atomic<std::uint64_t> id{0};
  Fiber fiber([&] {
    this_fiber::SetName("waiter");
    id.store(this_fiber::GetId(), std::memory_order_relaxed);  // Joined below.
    fiber_list_test::WaitOutside(&event);
  });
  const std::vector<FiberSnapshot> found = AwaitSuspended("waiter", 1);
  ASSERT_EQ(found.size(), 1U);
  const FiberSnapshot& waiter = found[0];
  EXPECT_EQ(waiter.state, FiberState::kSuspended);
  EXPECT_EQ(waiter.worker, -1);
  EXPECT_LT(waiter.group, GetSchedulingGroupCount());
  EXPECT_NE(waiter.carrier, nullptr);
  EXPECT_FALSE(waiter.waits_for.empty());
  EXPECT_GE(waiter.suspended_ns, 0);
  EXPECT_LT(waiter.suspended_ns, 60'000'000'000);

  const std::string stack = waiter.backtrace.ToString();
  const std::size_t inside = stack.find("fiber_list_test::WaitInside(");
  const std::size_t outside = stack.find("fiber_list_test::WaitOutside(");
  EXPECT_NE(inside, std::string::npos) << stack;
  EXPECT_NE(outside, std::string::npos) << stack;
  EXPECT_LT(inside, outside) << stack;
  EXPECT_THAT(stack, HasSubstr("Worker::Loop"));

  event.Set();
  fiber.join();
  EXPECT_EQ(waiter.id, id.load(std::memory_order_relaxed));  // Joined.
  AwaitEnd("waiter");
}

// Until the one fiber of that name is shown with such a holder.
void AwaitHolder(const std::string& name, const std::string& holder) {
  for (;;) {
    const std::vector<FiberSnapshot> found = AwaitSuspended(name, 1);
    if (found[0].held_by.find(holder) != std::string::npos) {
      EXPECT_THAT(found[0].waits_for, HasSubstr("Mutex"));
      return;
    }
    std::this_thread::yield();
  }
}

void HoldUntil(const char* name, Mutex* mutex, Event* event) {
  this_fiber::SetName(name);
  std::scoped_lock guard(*mutex);
  event->Wait();
}

TEST_P(FiberListTest, ShowsWhoHoldsAMutex) {
  Mutex mutex;
  Event first_done;
  Event second_done;
  Event third_done;
  Fiber first([&] { HoldUntil("first", &mutex, &first_done); });
  const FiberSnapshot holder = AwaitSuspended("first", 1)[0];
  EXPECT_EQ(holder.held_by, "");
  char place[32];
  std::snprintf(place, sizeof(place), "\"first\" on 0x%zx", holder.place);

  Fiber second([&] { HoldUntil("second", &mutex, &second_done); });
  AwaitHolder("second", place);
  Fiber third([&] { HoldUntil("third", &mutex, &third_done); });
  AwaitHolder("third", place);
  std::ostringstream out;
  DumpFibers(out);
  EXPECT_THAT(out.str(), HasSubstr(std::string(" (held by ") + place + ")"));

  first_done.Set();
  AwaitHolder("third", "\"second\" on ");
  second_done.Set();
  AwaitSuspended("third", 1);
  third_done.Set();
  for (Fiber* fiber : {&first, &second, &third}) fiber->join();
  for (const char* name : {"first", "second", "third"}) AwaitEnd(name);
}

// A waiter that was overtaken too often is handed the mutex.
TEST_P(FiberListTest, ShowsWhoWasHandedAMutex) {
  Mutex mutex;
  Event locked;
  Event done;
  std::atomic<bool> stop{false};
  Fiber overtaker([&] {
    this_fiber::SetName("overtaker");
    mutex.lock();
    locked.Set();
    // relaxed: only to end.
    while (!stop.load(std::memory_order_relaxed)) {
      mutex.unlock();
      mutex.lock();
      this_fiber::Yield();
    }
    mutex.unlock();
  });
  locked.Wait();
  Fiber starved([&] { HoldUntil("starved", &mutex, &done); });
  AwaitHolder("overtaker", "\"starved\" on ");
  stop.store(true, std::memory_order_relaxed);  // Only to end.
  done.Set();
  overtaker.join();
  starved.join();
  for (const char* name : {"overtaker", "starved"}) AwaitEnd(name);
}

TEST_P(FiberListTest, ShowsWhichWriterHoldsASharedMutex) {
  SharedMutex mutex;
  Event first_done;
  Event second_done;
  Event reader_done;
  const auto write_until = [&mutex](const char* name, Event* done) {
    this_fiber::SetName(name);
    std::scoped_lock guard(mutex);
    done->Wait();
  };
  Fiber first([&] { write_until("first", &first_done); });
  EXPECT_EQ(AwaitSuspended("first", 1)[0].held_by, "");
  Fiber second([&] { write_until("second", &second_done); });
  AwaitHolder("second", "\"first\" on ");
  Fiber reader([&] {
    this_fiber::SetName("reader");
    std::shared_lock guard(mutex);
    reader_done.Wait();
  });
  AwaitHolder("reader", "\"first\" on ");
  // The reader's turn comes first, and readers aren't shown.
  first_done.Set();
  while (AwaitSuspended("reader", 1)[0].waits_for != "Event") {
    std::this_thread::yield();
  }
  EXPECT_EQ(AwaitSuspended("second", 1)[0].held_by, "");
  reader_done.Set();
  // A writer that was let in is shown, too.
  Fiber last([&] { write_until("last", &first_done); });
  AwaitHolder("last", "\"second\" on ");
  second_done.Set();
  for (Fiber* fiber : {&first, &second, &reader, &last}) fiber->join();
  for (const char* name : {"first", "second", "reader", "last"}) AwaitEnd(name);
}

TEST_P(FiberListTest, ShowsWhichThreadHoldsAMutex) {
  const auto hold = [] {
    Mutex mutex;
    Event done;
    done.Set();
    std::unique_lock lock(mutex);
    Fiber waiter([&] { HoldUntil("waiter", &mutex, &done); });
    AwaitHolder("waiter", "thread " + std::to_string(syscall(SYS_gettid)));
    lock.unlock();
    waiter.join();
    AwaitEnd("waiter");
  };
  hold();
  std::thread(hold).join();
}

TEST_P(FiberListTest, NamesTheEntry) {
  Event event;
  Event done;
  Spawn([&] {
    this_fiber::SetName("entry");
    event.Wait();
    done.Set();
  });
  const std::vector<FiberSnapshot> found = AwaitSuspended("entry", 1);
  const std::string name = EntryName(found[0].entry);
  EXPECT_THAT(name, HasSubstr("NamesTheEntry"));
  // The name of a lambda depends on the compiler.
  EXPECT_THAT(name, AnyOf(HasSubstr("{lambda()#1}"), HasSubstr("$_")));
  EXPECT_THAT(name, Not(HasSubstr("ClosureTask")));
  EXPECT_EQ(EntryName(nullptr), "none");
  event.Set();
  done.Wait();
}

TEST_P(FiberListTest, ShowsRunningFibers) {
  std::atomic<bool> stop{false};
  Event started;
  Fiber fiber([&] {
    this_fiber::SetName("runner");
    started.Set();
    fiber_list_test::SpinUntil(&stop);
  });
  started.Wait();
  const std::vector<FiberSnapshot> found = Named("runner");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].state, FiberState::kRunning);
  EXPECT_GE(found[0].worker, 0);
  EXPECT_LT(found[0].worker, static_cast<int>(GetSchedulingGroupSize()));
  EXPECT_EQ(found[0].waits_for, "");
  std::ostringstream out;
  DumpFibers(out);
  EXPECT_THAT(out.str(), HasSubstr("running on worker "));
  EXPECT_THAT(out.str(), HasSubstr("\"runner\" on "));
  stop.store(true, std::memory_order_relaxed);  // Only to end.
  fiber.join();
}

TEST_P(FiberListTest, DumpGathersFibersAtTheSamePlace) {
  constexpr int kFibers = 20;
  Event event;
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) {
    fibers.emplace_back([&] {
      this_fiber::SetName("same");
      fiber_list_test::WaitOutside(&event);
    });
  }
  AwaitSuspended("same", kFibers);
  std::ostringstream out;
  DumpFibers(out);
  const std::string text = out.str();
  EXPECT_THAT(text, HasSubstr("20 suspended: "));
  EXPECT_THAT(text, HasSubstr("\"same\" on 0x"));
  EXPECT_THAT(text, HasSubstr(", ..."));
  // One backtrace for all of them.
  const std::size_t first = text.find("WaitInside(");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("WaitInside(", first + 1), std::string::npos) << text;
  event.Set();
  for (Fiber& fiber : fibers) fiber.join();
}

TEST_P(FiberListTest, DumpsNoMoreThanItMay) {
  constexpr int kFibers = 20;
  fiber::Event event;
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) {
    fibers.emplace_back([&] {
      this_fiber::SetName("same");
      fiber_list_test::WaitOutside(&event);
    });
  }
  AwaitSuspended("same", kFibers);
  const auto dump = [](const DumpLimits& limits) {
    std::ostringstream out;
    DumpFibers(out, limits);
    return std::move(out).str();
  };
  const std::string few = dump({.fibers = 5});
  EXPECT_EQ(few.rfind("5 fibers: ", 0), 0u) << few;
  EXPECT_THAT(few, HasSubstr("there are more fibers"));
  EXPECT_THAT(dump({.places = 0}), HasSubstr("more places are left out"));
  EXPECT_THAT(dump({.looking_ns = 0}), HasSubstr("there are more fibers"));
  const std::string whole = dump({});
  EXPECT_EQ(whole.find("there are more"), whole.npos) << whole;
  EXPECT_EQ(whole.find("left out"), whole.npos) << whole;
  event.Set();
  for (Fiber& fiber : fibers) fiber.join();
}

TEST_P(FiberListTest, MayBeCalledByAFiber) {
  std::vector<FiberSnapshot> found;
  Fiber fiber([&] {
    this_fiber::SetName("self");
    found = Named("self");
  });
  fiber.join();
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].state, FiberState::kRunning);
}

// Fibers that block and are woken as fast as they can, and stacks that come
// and go, while they are looked at.
TEST_P(FiberListTest, StandsFibersThatDoNotStandStill) {
  constexpr int kFibers = 50;
  std::atomic<bool> stop{false};
  Mutex mutex;
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) {
    fibers.emplace_back([&] {
      this_fiber::SetName("busy");
      // relaxed: only to end.
      while (!stop.load(std::memory_order_relaxed)) {
        std::scoped_lock guard(mutex);
        this_fiber::Yield();
        std::vector<Fiber> children;
        for (int j = 0; j < 5; ++j) {
          children.emplace_back([] {
            this_fiber::SetName("child");
            this_fiber::Yield();
          });
        }
        for (Fiber& child : children) child.join();
      }
    });
  }
  std::size_t seen = 0;
  std::size_t holders_seen = 0;
  for (int round = 0; round < 200 || seen < 10 || holders_seen < 10; ++round) {
    for (const FiberSnapshot& fiber : ListFibers()) {
      if (fiber.name == "busy" || fiber.name == "child") ++seen;
      EXPECT_LE(fiber.backtrace.size(), Backtrace::kMaxFrames);
      if (fiber.waits_on != &mutex || fiber.held_by.empty()) continue;
      EXPECT_THAT(fiber.held_by, HasSubstr("\"busy\" on "));
      ++holders_seen;
    }
    if (round % 20 == 0) {
      std::ostringstream out;
      DumpFibers(out);
      EXPECT_THAT(out.str(), HasSubstr(" fibers: "));
    }
  }
  stop.store(true, std::memory_order_relaxed);  // Only to end.
  for (Fiber& fiber : fibers) fiber.join();
  AwaitEnd("busy");
}

// One suspension each, so that its description stays true while it lasts.
void SuspendOnce(const char* name, void (*wait)()) {
  this_fiber::SetName(name);
  this_fiber::GetId();
  wait();
}

// A fiber on its way to being suspended has its carrier's memory of the fiber
// before it, elsewhere.
TEST_P(FiberListTest, ShowsNoBacktraceOfAnother) {
  std::atomic<bool> stop{false};
  Fiber source([&] {
    // relaxed: only to end.
    while (!stop.load(std::memory_order_relaxed)) {
      std::vector<Fiber> fibers;
      for (int i = 0; i < 4; ++i) {
        fibers.emplace_back(
            [] { SuspendOnce("here", &fiber_list_test::YieldHere); });
        fibers.emplace_back(
            [] { SuspendOnce("there", &fiber_list_test::YieldThere); });
      }
      for (Fiber& fiber : fibers) fiber.join();
    }
  });
  const std::int64_t end = NowNs() + testing::StressNs(100'000'000);
  std::size_t seen = 0;
  while (NowNs() < end || seen < 10) {
    for (const FiberSnapshot& fiber : ListFibers()) {
      const bool here = fiber.name == "here";
      if ((!here && fiber.name != "there") || fiber.backtrace.empty()) continue;
      ++seen;
      const std::string stack = fiber.backtrace.ToString();
      EXPECT_THAT(stack, HasSubstr(here ? "YieldHere" : "YieldThere"))
          << fiber.name << "\n"
          << stack;
    }
  }
  stop.store(true, std::memory_order_relaxed);  // Only to end.
  source.join();
  AwaitEnd("here");
  AwaitEnd("there");
}

TEST(FiberList, IsEmptyWithoutARuntime) {
  EXPECT_TRUE(ListFibers().empty());
  std::ostringstream out;
  DumpFibers(out);
  EXPECT_EQ(out.str(), "0 fibers: 0 running, 0 suspended\n");
}

// Instrumented frames are larger.
#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)
// Names and lines take more stack to look up than this. In a process of its
// own, which hasn't read them yet.
TEST(FiberListStackTest, SmallStacksAreEnoughToDumpFibers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto dump = [] {
    RuntimeOptions options;
    options.concurrency = 1;
    options.stack_size = 16 << 10;
    if (!StartRuntime(options).ok()) std::_Exit(1);
    Event ended;
    Spawn([&] {
      DumpFibers(std::cerr);
      ended.Set();
    });
    ended.Wait();
    TerminateRuntime();
    std::_Exit(0);
  };
  EXPECT_EXIT(dump(), ::testing::ExitedWithCode(0), "1 fibers: 1 running");
}
#endif

}  // namespace
}  // namespace flare::fiber

#include "flare/fiber/execution_context.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/async.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/future.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/testing/meeting.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

class ExecutionContextTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(ExecutionContextTest);

ExecutionLocal<std::string> text;

TEST_P(ExecutionContextTest, IsEnteredAndLeft) {
  const auto check = [] {
    EXPECT_EQ(ExecutionContext::Current(), nullptr);
    EXPECT_EQ(ExecutionContext::Capture(), nullptr);
    EXPECT_EQ(text.get(), nullptr);
    const auto outer = ExecutionContext::Create();
    const auto inner = ExecutionContext::Create();
    const int result = outer->Execute([&] {
      EXPECT_EQ(ExecutionContext::Current(), outer.Get());
      *text = "outer";
      inner->Execute([&] {
        EXPECT_EQ(ExecutionContext::Capture(), inner);
        EXPECT_EQ(*text, "");
        *text = "inner";
      });
      EXPECT_EQ(ExecutionContext::Current(), outer.Get());
      EXPECT_EQ(*text, "outer");
      return 7;
    });
    EXPECT_EQ(result, 7);
    EXPECT_EQ(ExecutionContext::Current(), nullptr);
    EXPECT_EQ(*text.GetFrom(inner.Get()), "inner");
    inner->Execute([&] { EXPECT_EQ(text->size(), 5U); });
  };
  check();  // On this plain thread.
  Fiber(check).join();
}

TEST_P(ExecutionContextTest, IsLeftByExceptions) {
  Fiber([] {
    const auto context = ExecutionContext::Create();
    EXPECT_THROW(context->Execute([] { throw 1; }), int);
    EXPECT_EQ(ExecutionContext::Current(), nullptr);
    EXPECT_EQ(context->UnsafeRefCount(), 1U);
  }).join();
}

TEST(ExecutionLocalDeathTest, SaysThatThereIsNoContext) {
  EXPECT_DEATH(*text = "", "runs in no ExecutionContext: begin one by");
  EXPECT_DEATH(text->clear(), "runs in no ExecutionContext: begin one by");
}

TEST_P(ExecutionContextTest, StaysWithTheFiberWhereverThatRuns) {
  constexpr int kFibers = 50;
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibers; ++i) {
    fibers.emplace_back([i] {
      ExecutionContext::Create()->Execute([i] {
        *text = std::to_string(i);
        for (int k = 0; k < 20; ++k) {
          this_fiber::Yield();
          EXPECT_EQ(*text, std::to_string(i));
        }
      });
      EXPECT_EQ(ExecutionContext::Current(), nullptr);
    });
  }
  for (auto& fiber : fibers) fiber.join();
}

TEST_P(ExecutionContextTest, IsInheritedByAsyncOnly) {
  Fiber([] {
    const auto context = ExecutionContext::Create();
    context->Execute([&] {
      *text = "inherited";
      ExecutionContext* const here = ExecutionContext::Current();
      BlockingGet(Async([&] {
        EXPECT_EQ(ExecutionContext::Current(), here);
        EXPECT_EQ(*text, "inherited");
        // ... and from there on.
        return BlockingGet(Async([&] { EXPECT_EQ(*text, "inherited"); }));
      }));
      Fiber([] { EXPECT_EQ(ExecutionContext::Current(), nullptr); }).join();
      Event done;
      Spawn([&] {
        EXPECT_EQ(ExecutionContext::Current(), nullptr);
        done.Set();
      });
      done.Wait();
      Fiber::Attributes attributes;
      attributes.execution_context = ExecutionContext::Capture();
      Fiber(attributes, [&] {
        EXPECT_EQ(ExecutionContext::Current(), here);
      }).join();
    });
  }).join();
}

TEST_P(ExecutionContextTest, LivesAsLongAsSomebodyRunsInIt) {
  struct Counted {
    explicit Counted(std::atomic<int>* n) : n(n) { n->fetch_add(1); }
    ~Counted() { n->fetch_sub(1); }
    std::atomic<int>* n;
  };
  static ExecutionLocal<std::unique_ptr<Counted>> local;
  std::atomic<int> alive{0};
  Event go;
  Event used;
  Future<> late;
  ExecutionContext::Create()->Execute([&] {
    *local = std::make_unique<Counted>(&alive);
    late = Async([&] {
      go.Wait();
      EXPECT_NE(*local, nullptr);
      used.Set();
    });
  });
  EXPECT_EQ(alive.load(), 1);
  go.Set();
  used.Wait();
  BlockingGet(std::move(late));
  // The context is left before the future has its value.
  EXPECT_EQ(alive.load(), 0);
}

TEST_P(ExecutionContextTest, ManySlots) {
  static ExecutionLocal<int> locals[40];
  for (int round = 0; round < 3; ++round) {
    ExecutionContext::Create()->Execute([] {
      for (int i = 40; i-- > 0;) {
        EXPECT_EQ(*locals[i], 0);
        *locals[i] = i;
      }
      for (int i = 0; i < 40; ++i) EXPECT_EQ(*locals[i], i);
    });
  }
}

TEST_P(ExecutionContextTest, LargeValuesAndAlignedOnes) {
  struct alignas(256) Aligned {
    ~Aligned() { *at = 'x'; }
    char* at;
  };
  struct Large {
    std::array<char, 4096> bytes;
  };
  static ExecutionLocal<Aligned> aligned;
  static ExecutionLocal<Large> large;
  char ended = 0;
  ExecutionContext::Create()->Execute([&] {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned.get()) % 256, 0U);
    aligned->at = &ended;
    large->bytes.fill('x');
  });
  EXPECT_EQ(ended, 'x');
}

// All ask at once for values that aren't there: everyone gets the same one.
TEST_P(ExecutionContextTest, FirstUseByMany) {
  static ExecutionLocal<std::atomic<int>> locals[20];
  for (int round = 0; round < 50; ++round) {
    const auto context = ExecutionContext::Create();
    constexpr int kFibers = 8;
    Latch ready(kFibers);
    std::vector<Fiber> fibers;
    Fiber::Attributes attributes;
    attributes.execution_context = context;
    for (int i = 0; i < kFibers; ++i) {
      fibers.emplace_back(attributes, [&] {
        ready.arrive_and_wait();
        for (auto& local : locals) local->fetch_add(1);
      });
    }
    for (auto& fiber : fibers) fiber.join();
    for (auto& local : locals) {
      EXPECT_EQ(local.GetFrom(context.Get())->load(), kFibers);
    }
    EXPECT_EQ(context->UnsafeRefCount(), 2U);  // `attributes` has the other.
  }
}

TEST_P(ExecutionContextTest, IfPresent) {
  EXPECT_EQ(WithExecutionContextIfPresent(
                nullptr, [] { return ExecutionContext::Current(); }),
            nullptr);
  const auto context = ExecutionContext::Create();
  EXPECT_EQ(WithExecutionContextIfPresent(
                context, [] { return ExecutionContext::Current(); }),
            context.Get());
  EXPECT_EQ(context->UnsafeRefCount(), 1U);
}

TEST_P(ExecutionContextTest, GoesAlongIntoBlockingRegions) {
  Fiber([] {
    const auto outer = ExecutionContext::Create();
    outer->Execute([&] {
      *text = "outer";
      RunBlocking([&] {
        EXPECT_EQ(ExecutionContext::Current(), outer.Get());
        EXPECT_EQ(*text, "outer");
        ExecutionContext::Create()->Execute([] { *text = "inner"; });
        EXPECT_EQ(*text, "outer");
      });
      EXPECT_EQ(ExecutionContext::Current(), outer.Get());
    });
    RunBlocking([] { EXPECT_EQ(ExecutionContext::Current(), nullptr); });
  }).join();
}

TEST_P(ExecutionContextTest, PlainThreadsHaveTheirOwn) {
  ExecutionContext::Create()->Execute([] {
    std::thread([] { EXPECT_EQ(ExecutionContext::Current(), nullptr); }).join();
    EXPECT_NE(ExecutionContext::Current(), nullptr);
  });
}

struct CountingOwner : ExecutionContext::Owner {
  StopCause OnWatched() override {
    ++watched;
    return cause;
  }
  int watched = 0;
  StopCause cause = StopCause::kNone;
};

TEST_P(ExecutionContextTest, HasADeadlineAndACauseOfItsStop) {
  const auto context = ExecutionContext::Create();
  EXPECT_EQ(context->deadline_ns(), 0);
  EXPECT_EQ(ExecutionContext::Create(17)->deadline_ns(), 17);
  context->set_deadline_ns(18);
  EXPECT_EQ(context->deadline_ns(), 18);
  EXPECT_FALSE(context->stop_requested());
  EXPECT_TRUE(context->RequestStop(StopCause::kDeadline));
  EXPECT_FALSE(context->RequestStop(StopCause::kCancelled));
  EXPECT_TRUE(context->stop_requested());
  EXPECT_EQ(context->stop_cause(), StopCause::kDeadline);
  EXPECT_STREQ(ToString(context->stop_cause()), "its deadline has passed");
  // A token that is asked for later.
  EXPECT_TRUE(context->stop_token().stop_requested());
}

TEST_P(ExecutionContextTest, TellsItsOwnerOfTheFirstToken) {
  CountingOwner owner;
  const auto context = ExecutionContext::Create(0, &owner);
  const std::stop_token first = context->stop_token();
  EXPECT_TRUE(first.stop_possible());
  EXPECT_EQ(owner.watched, 1);
  EXPECT_EQ(context->stop_token(), first);
  EXPECT_EQ(owner.watched, 1);
  EXPECT_FALSE(first.stop_requested());
  EXPECT_TRUE(context->RequestStop(StopCause::kCallerGone));
  EXPECT_TRUE(first.stop_requested());
}

TEST_P(ExecutionContextTest, TakesTheCauseThatItsOwnerHasAlready) {
  CountingOwner owner;
  owner.cause = StopCause::kCallerGone;
  const auto context = ExecutionContext::Create(0, &owner);
  EXPECT_FALSE(context->stop_requested());
  EXPECT_TRUE(context->stop_token().stop_requested());
  EXPECT_EQ(context->stop_cause(), StopCause::kCallerGone);
  EXPECT_FALSE(context->RequestStop(StopCause::kCancelled));
}

TEST_P(ExecutionContextTest, TellsNobodyOnceStoppedOrDisowned) {
  CountingOwner owner;
  const auto stopped = ExecutionContext::Create(0, &owner);
  stopped->RequestStop(StopCause::kCancelled);
  EXPECT_TRUE(stopped->stop_token().stop_requested());
  const auto disowned = ExecutionContext::Create(0, &owner);
  disowned->Disown();
  EXPECT_FALSE(disowned->stop_token().stop_requested());
  EXPECT_EQ(owner.watched, 0);
}

// [EC5]
TEST_P(ExecutionContextTest, PartsShareAllButOneValue) {
  static ExecutionLocal<int> of_part;
  static ExecutionLocal<int> of_inner;
  static ExecutionLocal<int> shared;
  CountingOwner owner;
  const auto whole = ExecutionContext::Create(4711, &owner);
  whole->Execute([&] { *of_part = 1; });
  const auto part = of_part.MakePart(whole, 2);
  const auto inner = of_inner.MakePart(part, 3);
  EXPECT_EQ(inner->deadline_ns(), 4711);
  inner->Execute([&] {
    EXPECT_EQ(*of_part, 2);
    EXPECT_EQ(*of_inner, 3);
    *shared = 4;
    auto elsewhere = Async([&] { return *of_inner + *of_part + *shared; });
    EXPECT_EQ(BlockingGet(std::move(elsewhere)), 9);
  });
  part->Execute([&] {
    EXPECT_EQ(*of_part, 2);
    EXPECT_EQ(*of_inner, 0);
    EXPECT_EQ(*shared, 4);
  });
  whole->Execute([&] {
    EXPECT_EQ(*of_part, 1);
    EXPECT_EQ(*shared, 4);
  });

  // They stop together, whichever is told to, and the owner is told once.
  const std::stop_token token = inner->stop_token();
  EXPECT_EQ(part->stop_token(), token);
  EXPECT_EQ(owner.watched, 1);
  EXPECT_TRUE(part->RequestStop(StopCause::kCancelled));
  EXPECT_FALSE(whole->RequestStop(StopCause::kDeadline));
  EXPECT_TRUE(token.stop_requested());
  EXPECT_EQ(inner->stop_cause(), StopCause::kCancelled);
  EXPECT_EQ(whole->stop_cause(), StopCause::kCancelled);
}

TEST_P(ExecutionContextTest, PartsKeepTheWholeAndTheirValue) {
  static ExecutionLocal<std::shared_ptr<int>> local;
  const auto first = std::make_shared<int>(1);
  const auto second = std::make_shared<int>(2);
  auto whole = ExecutionContext::Create();
  whole->Execute([&] { *local = first; });
  auto part = local.MakePart(std::move(whole), second);
  EXPECT_EQ(first.use_count(), 2);
  EXPECT_EQ(second.use_count(), 2);
  part.Reset();
  EXPECT_EQ(first.use_count(), 1);
  EXPECT_EQ(second.use_count(), 1);
}

TEST_P(ExecutionContextTest, PartsOfPartsTakeTheirPlaces) {
  static ExecutionLocal<std::shared_ptr<int>> local;
  Fiber([] {
    const auto counted = std::make_shared<int>(1);
    auto part = local.MakePart(ExecutionContext::Create(), counted);
    for (int i = 0; i != 100'000; ++i) {
      part = local.MakePart(part, counted);
      // The test's own, and the last part's.
      ASSERT_EQ(counted.use_count(), 2);
    }
    EXPECT_EQ(part->Execute([] { return *local; }), counted);
  }).join();
}

// More than there is room for on a stack, if each ended within the next one.
TEST_P(ExecutionContextTest, ManyPartsWithinEachOtherEnd) {
  static ExecutionLocal<int> even;
  static ExecutionLocal<int> odd;
  Fiber([] {
    const auto whole = ExecutionContext::Create();
    auto part = whole;
    for (int i = 0; i != 100'000; ++i) {
      part = (i % 2 == 0 ? even : odd).MakePart(part, i);
    }
    EXPECT_TRUE(part->stop_token().stop_possible());
    EXPECT_TRUE(part->RequestStop(StopCause::kCancelled));
    EXPECT_EQ(part->stop_cause(), StopCause::kCancelled);
    part.Reset();
    EXPECT_TRUE(whole->HasOneRef());
  }).join();
}

TEST_P(ExecutionContextTest, IsAsNewUntilSomebodyUsesIt) {
  const auto context = ExecutionContext::Create(5);
  EXPECT_TRUE(context->IsAsNew());
  context->Execute([&] {
    EXPECT_FALSE(context->IsAsNew());  // The scope has a reference.
    EXPECT_FALSE(context->stop_requested());
  });
  EXPECT_TRUE(context->IsAsNew());
  static_cast<void>(text.GetFrom(context.Get()));
  EXPECT_FALSE(context->IsAsNew());
  const auto watched = ExecutionContext::Create();
  static_cast<void>(watched->stop_token());
  EXPECT_FALSE(watched->IsAsNew());
  const auto stopped = ExecutionContext::Create();
  stopped->RequestStop(StopCause::kCancelled);
  EXPECT_FALSE(stopped->IsAsNew());
}

// On a fiber, on a plain thread and in a blocking region.
TEST_P(ExecutionContextTest, AStopEndsWaitsOfAllKinds) {
  const auto context = ExecutionContext::Create();
  Latch waiting(4);
  const auto in_context = [&](auto wait) {
    return [&context, &waiting, wait] {
      context->Execute([&] {
        waiting.count_down();
        wait(ExecutionContext::Current()->stop_token());
      });
    };
  };
  const auto sleep = [](const std::stop_token& stop) {
    EXPECT_FALSE(this_fiber::SleepFor(stop, std::chrono::hours(1)));
  };
  Fiber sleeper(in_context(sleep));
  std::thread thread(in_context(sleep));
  Fiber blocking([&] { RunBlocking(in_context(sleep)); });
  Mutex mutex;
  ConditionVariable never;
  Fiber waiter(in_context([&](const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    EXPECT_FALSE(never.wait(lock, stop, [] { return false; }));
  }));
  waiting.wait();
  context->RequestStop(StopCause::kCancelled);
  sleeper.join();
  thread.join();
  blocking.join();
  waiter.join();
}

// Tokens, a stop and the owner's end come at once. The owner is gone directly
// after Disown(): the sanitizers would tell of a late OnWatched().
TEST_P(ExecutionContextTest, TokensMeetAStopAndTheOwnersEnd) {
  struct Owner final : ExecutionContext::Owner {
    StopCause OnWatched() override {
      ++watched;  // Guarded by the context's lock.
      return StopCause::kNone;
    }
    int watched = 0;
  };
  testing::MeetAgainAndAgain([](testing::Meeting& meeting) {
    std::optional<Owner> owner(std::in_place);
    const auto context = ExecutionContext::Create(0, &*owner);
    std::atomic<int> stops{0};
    meeting.Start([&](int i) {
      while (NowNs() < meeting.Near()) std::this_thread::yield();
      if (i == 3) {
        stops += context->RequestStop(StopCause::kCancelled) ? 1 : 0;
        return;
      }
      const std::stop_token token = context->stop_token();
      // Ends in any case, by the stop.
      EXPECT_FALSE(this_fiber::SleepUntilNs(token, kNoDeadline));
    });
    meeting.Finish([&] {
      context->Disown();
      EXPECT_LE(owner->watched, 1);
      owner.reset();
    });
    EXPECT_EQ(stops, 1);
    EXPECT_TRUE(context->stop_token().stop_requested());
  });
}

}  // namespace
}  // namespace flare::fiber

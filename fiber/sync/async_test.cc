// fiber::Async and waiting for futures.
#include "flare/fiber/async.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/future.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/shuffle.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

class AsyncTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(AsyncTest);

TEST_P(AsyncTest, GivesResults) {
  OnBoth([] {
    EXPECT_EQ(BlockingGet(Async([] { return 42; })), 42);
    BlockingGet(Async([] { this_fiber::Yield(); }));
    const auto sum = [](int a, std::unique_ptr<int> b) { return a + *b; };
    Future<int> future = Async(sum, 1, std::make_unique<int>(2));
    EXPECT_EQ(BlockingGet(&future), 3);
    EXPECT_FALSE(future.valid());
    EXPECT_EQ(BlockingGet(Async([] {
                return std::make_unique<std::string>("moved");
              }))->size(),
              5U);
  });
}

TEST_P(AsyncTest, ArgumentsAreCopied) {
  std::string text = "before";
  Event go;
  Future<std::string> future = Async(
      [&go](const std::string& copy) {
        go.Wait();
        return copy;
      },
      text);
  text = "after";
  go.Set();
  EXPECT_EQ(BlockingGet(std::move(future)), "before");
}

TEST_P(AsyncTest, LaunchedWhereAndHowAsked) {
  OnBoth([] {
    EXPECT_EQ(BlockingGet(Async(
                  Launch::Post, [](int n) { return n; }, 1)),
              1);
    for (std::size_t g = 0; g < GetSchedulingGroupCount(); ++g) {
      EXPECT_EQ(BlockingGet(Async(Launch::Dispatch, g, [] { return 2; })), 2);
    }
    const auto context = ExecutionContext::Create();
    EXPECT_EQ(BlockingGet(Async(Launch::Post, std::nullopt, context,
                                [] { return ExecutionContext::Current(); })),
              context.Get());
    context->Execute([] {
      EXPECT_EQ(BlockingGet(Async(Launch::Post, 0, nullptr,
                                  [] { return ExecutionContext::Current(); })),
                nullptr);
    });
  });
}

TEST_P(AsyncTest, DispatchLetsItRunFirst) {
  if (IsShuffleRequested()) GTEST_SKIP() << "they run in any order";
  if (GetParam().workers > 1) return;  // Another worker may be asked later.
  Fiber([] {
    bool ran = false;
    Future<> future = Async(Launch::Dispatch, [&] { ran = true; });
    EXPECT_TRUE(ran);
    EXPECT_TRUE(future.IsReady());
  }).join();
}

TEST_P(AsyncTest, CombinedFutures) {
  OnBoth([] {
    std::vector<Future<int>> many;
    for (int i = 0; i < 20; ++i) {
      many.push_back(Async([i] {
        if (i % 3 == 0) this_fiber::Yield();
        return i;
      }));
    }
    const std::vector<int> values = BlockingGet(WhenAll(&many));
    for (int i = 0; i < 20; ++i) EXPECT_EQ(values[i], i);
    auto a = Async([] { return 1; });
    auto b = Async([] {});
    auto c = Async([] { return std::string("c"); });
    EXPECT_EQ(BlockingGet(WhenAll(&a, &b, &c)), std::tuple(1, "c"));
    // The loser of the race may only start when all this is over.
    auto never = std::make_shared<Event>();
    std::stop_source source;
    std::vector<Future<bool>> race;
    race.push_back(Async(
        [never, stop = source.get_token()] { return never->Wait(stop); }));
    race.push_back(Async([] { return true; }));
    EXPECT_EQ(BlockingGet(WhenAny(&race)), std::tuple(std::size_t{1}, true));
    source.request_stop();
    auto [one, two] = Split(Async([] { return 7; }));
    EXPECT_EQ(BlockingGet(std::move(two)), 7);
    EXPECT_EQ(BlockingGet(std::move(one)), 7);
    // Callbacks run where the value is set, here on a fiber: they may start
    // others, and give their futures.
    EXPECT_EQ(BlockingGet(Async([] { return 2; }).Then([](int n) {
                return Async([n] { return n * 2; });
              })),
              4);
  });
}

TEST_P(AsyncTest, GivesUpWaiting) {
  OnBoth([] {
    Promise<int> late;
    EXPECT_EQ(BlockingTryGet(late.GetFuture(), milliseconds(1)), std::nullopt);
    late.SetValue(1);  // Nobody is there any more.
    Promise<> nothing;
    EXPECT_FALSE(
        BlockingTryGet(nothing.GetFuture(), std::chrono::steady_clock::now()));
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    Promise<int> promise;
    Fiber stopper([&] { source.request_stop(); });
    EXPECT_EQ(BlockingTryGet(promise.GetFuture(), stop), std::nullopt);
    stopper.join();
    Promise<int, int> pair;
    auto future = pair.GetFuture();
    EXPECT_EQ(BlockingTryGet(&future, stop, hours(1)), std::nullopt);
    Promise<int> again;
    EXPECT_EQ(BlockingTryGet(again.GetFuture(), std::stop_token(),
                             std::chrono::system_clock::now()),
              std::nullopt);
  });
}

TEST_P(AsyncTest, ValuesInTime) {
  OnBoth([] {
    std::stop_source source;
    const std::stop_token stop = source.get_token();
    const auto in_an_hour = std::chrono::steady_clock::now() + hours(1);
    EXPECT_EQ(BlockingTryGet(Async([] { return 1; }), hours(1)), 1);
    EXPECT_EQ(BlockingTryGet(Async([] { return 2; }), in_an_hour), 2);
    EXPECT_EQ(BlockingTryGet(Async([] { return 3; }), stop), 3);
    EXPECT_EQ(BlockingTryGet(Async([] { return 4; }), stop, hours(1)), 4);
    EXPECT_TRUE(BlockingTryGet(Async([] {}), stop, in_an_hour));
    // A value that is there is taken, stopped or not.
    source.request_stop();
    EXPECT_EQ(BlockingTryGet(MakeReadyFuture(5), stop), 5);
  });
}

TEST_P(AsyncTest, BrokenPromisesEndTheWait) {
  OnBoth([] {
    auto promise = std::make_unique<Promise<int>>();
    Future<int> future = promise->GetFuture();
    Fiber breaker([&] { promise.reset(); });
    EXPECT_EQ(BlockingTryGet(std::move(future), hours(1)), std::nullopt);
    breaker.join();
  });
}

TEST_P(AsyncTest, ManyAtOnce) {
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        EXPECT_EQ(BlockingGet(Async([&, i] {
                    ran.fetch_add(1);
                    return BlockingGet(Async([i] { return i; }));
                  })),
                  i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ran.load(), 900);
}

TEST(AsyncDeathTest, AnExceptionEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        RuntimeOptions options;
        options.concurrency = 1;
        if (StartRuntime(options).ok()) {
          BlockingGet(Async([] { throw std::runtime_error("left Async"); }));
        }
      },
      "left Async");
}

}  // namespace
}  // namespace flare::fiber

#include "flare/base/future.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <optional>
#include <random>
#include <stop_token>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

// Counts how many of it exist, to see that nothing leaks or is kept.
struct Token {
  explicit Token(int* alive) : alive(alive) { ++*alive; }
  Token(Token&& other) noexcept : alive(std::exchange(other.alive, nullptr)) {}
  ~Token() {
    if (alive != nullptr) --*alive;
  }
  int* alive;
};

TEST(Future, DefaultIsInvalid) {
  Future<int> future;
  EXPECT_FALSE(future.valid());
  future = MakeReadyFuture(1);
  EXPECT_TRUE(future.valid());
}

TEST(Future, ValueArrivesBeforeOrAfterItIsAskedFor) {
  Promise<int> promise;
  Future<int> future = promise.GetFuture();
  EXPECT_FALSE(future.IsReady());
  EXPECT_EQ(future.TryGet(), std::nullopt);
  EXPECT_TRUE(future.valid());
  promise.SetValue(7);
  EXPECT_TRUE(future.IsReady());
  EXPECT_EQ(future.TryGet(), 7);
  EXPECT_FALSE(future.valid());
}

TEST(Future, FutureMayBeTakenAfterTheValueWasSet) {
  Promise<std::string> promise;
  promise.SetValue("early");
  EXPECT_EQ(promise.GetFuture().Take(), "early");
}

TEST(Future, NoneOneOrSeveralValues) {
  static_assert(std::is_void_v<Future<>::Value>);
  static_assert(std::is_same_v<Future<int>::Value, int>);
  static_assert(
      std::is_same_v<Future<int, char>::Value, std::tuple<int, char>>);
  Promise<> none;
  Future<> future = none.GetFuture();
  EXPECT_FALSE(future.TryGet());
  none.SetValue();
  EXPECT_TRUE(future.TryGet());
  EXPECT_FALSE(future.valid());
  MakeReadyFuture().Take();
  EXPECT_EQ(MakeReadyFuture(1, std::string("x")).Take(),
            std::make_tuple(1, "x"));
  Promise<int, std::string> both;
  both.SetTuple({2, "y"});
  EXPECT_EQ(both.GetFuture().TryGet(), std::make_tuple(2, "y"));
}

TEST(Future, MoveOnlyAndLargeValues) {
  auto future = MakeReadyFuture(std::make_unique<int>(3));
  EXPECT_EQ(*future.Take(), 3);
  struct Large {
    char bytes[5000];  // Too large for the pools.
  };
  Promise<Large> promise;
  promise.SetValue(Large{{'a', 'b'}});
  EXPECT_EQ(promise.GetFuture().Take().bytes[1], 'b');
}

TEST(Future, ThenRunsWhenTheValueIsSet) {
  Promise<int> promise;
  int seen = 0;
  Future<> done = promise.GetFuture().Then([&](int n) { seen = n; });
  EXPECT_EQ(seen, 0);
  EXPECT_FALSE(done.IsReady());
  promise.SetValue(5);
  EXPECT_EQ(seen, 5);
  EXPECT_TRUE(done.IsReady());
}

TEST(Future, ThenRunsAtOnceIfTheValueIsThere) {
  int seen = 0;
  Future<int> ready = MakeReadyFuture(5);
  Future<> done = ready.Then([&](int n) { seen = n; });
  EXPECT_EQ(seen, 5);
  EXPECT_TRUE(done.IsReady());
  EXPECT_FALSE(ready.valid());
}

TEST(Future, ThenChains) {
  Promise<int> promise;
  auto text = promise.GetFuture()
                  .Then([](int n) { return n * 2; })
                  .Then([](int n) { return std::to_string(n); })
                  .Then([](std::string s) { return s + "!"; });
  static_assert(std::is_same_v<decltype(text), Future<std::string>>);
  promise.SetValue(21);
  EXPECT_EQ(text.Take(), "42!");
}

TEST(Future, ThenGetsSeveralValues) {
  auto sum = MakeReadyFuture(1, 2L, std::string("3"))
                 .Then([](int a, long b, const std::string& c) {
                   return a + b + std::stoi(c);
                 });
  EXPECT_EQ(sum.Take(), 6);
}

TEST(Future, ThenMovesTheValuesIn) {
  auto future = MakeReadyFuture(std::make_unique<int>(4))
                    .Then([](std::unique_ptr<int> p) { return p; })
                    .Then([](std::unique_ptr<int>&& p) { return *p + 1; });
  EXPECT_EQ(future.Take(), 5);
}

TEST(Future, ThenTakesLvalueAndMoveOnlyCallbacks) {
  auto add_one = [](int n) { return n + 1; };
  EXPECT_EQ(MakeReadyFuture(1).Then(add_one).Then(add_one).Take(), 3);
  auto owning = [p = std::make_unique<int>(10)](int n) { return n + *p; };
  EXPECT_EQ(MakeReadyFuture(1).Then(std::move(owning)).Take(), 11);
  int calls = 0;
  auto counting = [count = 0, &calls](int) mutable { calls = ++count; };
  MakeReadyFuture(1).Then(counting).Take();
  EXPECT_EQ(calls, 1);
}

TEST(Future, ThenFlattensFutures) {
  Promise<int> outer;
  Promise<std::string, int> inner;
  auto future = outer.GetFuture().Then([&](int) { return inner.GetFuture(); });
  static_assert(std::is_same_v<decltype(future), Future<std::string, int>>);
  outer.SetValue(1);
  EXPECT_FALSE(future.IsReady());
  inner.SetValue("in", 2);
  EXPECT_EQ(future.Take(), std::make_tuple("in", 2));

  auto ready = MakeReadyFuture().Then([] { return MakeReadyFuture(3); });
  EXPECT_EQ(ready.Take(), 3);
  auto none = MakeReadyFuture().Then([] { return MakeReadyFuture(); });
  static_assert(std::is_same_v<decltype(none), Future<>>);
  EXPECT_TRUE(none.IsReady());
}

// Deep enough for any stack, if one ran inside of the other.
constexpr int kVeryLong = 200'000;

TEST(Future, LongChainsTakeNoStack) {
  Promise<int> promise;
  Future<int> future = promise.GetFuture();
  for (int i = 0; i < kVeryLong; ++i) {
    future = std::move(future).Then([](int n) { return n + 1; });
  }
  promise.SetValue(0);
  EXPECT_EQ(future.Take(), kVeryLong);
}

TEST(Future, LongChainsBreakWithoutStack) {
  int alive = 0;
  Future<> future;
  {
    Promise<> promise;
    future = promise.GetFuture();
    for (int i = 0; i < kVeryLong; ++i) {
      future = std::move(future).Then([token = Token(&alive)] {});
    }
    EXPECT_EQ(alive, kVeryLong);
  }
  EXPECT_TRUE(future.IsBroken());
  EXPECT_EQ(alive, 0);
}

// Each step returns the future of the rest.
TEST(Future, LongLoopsOfFuturesTakeNoStack) {
  Promise<> step;
  int steps = 0;
  const auto rest = [&](const auto& self) -> Future<int> {
    if (++steps == kVeryLong) return MakeReadyFuture(steps);
    step = Promise<>();
    return step.GetFuture().Then([&self] { return self(self); });
  };
  Future<int> future = rest(rest);
  while (!future.IsReady()) {
    Promise<> now = std::move(step);
    now.SetValue();
  }
  EXPECT_EQ(future.Take(), kVeryLong);
}

TEST(Future, CallbacksAreGoneBeforeTheNextOne) {
  int alive = 0;
  Promise<> promise;
  auto future =
      promise.GetFuture().Then([token = Token(&alive)] {}).Then([&alive] {
        return alive;
      });
  EXPECT_EQ(alive, 1);
  promise.SetValue();
  EXPECT_EQ(future.Take(), 0);
}

TEST(Future, BrokenInnerFuturesBreakTheOuterOne) {
  Promise<> outer;
  Future<int> future;
  {
    Promise<int> inner;
    future = outer.GetFuture().Then([&] { return inner.GetFuture(); });
    outer.SetValue();
    EXPECT_FALSE(future.IsBroken());
  }
  EXPECT_TRUE(future.IsBroken());
}

TEST(Future, OnReadyLeavesTheValue) {
  Promise<std::string> promise;
  Future<std::string> future = promise.GetFuture();
  bool called = false;
  future.OnReady([&] { called = true; });
  EXPECT_FALSE(called);
  promise.SetValue("kept");
  EXPECT_TRUE(called);
  EXPECT_EQ(future.Take(), "kept");

  called = false;
  Future<int> ready = MakeReadyFuture(1);
  ready.OnReady([&] { called = true; });
  EXPECT_TRUE(called);
  EXPECT_EQ(ready.Take(), 1);
}

TEST(Future, BrokenPromisesDropTheirCallbacks) {
  int alive = 0;
  bool called = false;
  Future<int> future;
  Future<> done;
  {
    Promise<int> promise;
    done = promise.GetFuture().Then(
        [token = Token(&alive), &called](int) { called = true; });
    EXPECT_EQ(alive, 1);
    EXPECT_FALSE(done.IsBroken());
  }
  EXPECT_EQ(alive, 0);
  EXPECT_FALSE(called);
  EXPECT_TRUE(done.IsBroken());  // It goes down the chain.
  EXPECT_FALSE(done.IsReady());
  {
    Promise<int> promise;
    future = promise.GetFuture();
  }
  EXPECT_TRUE(future.IsBroken());
  future.OnReady([token = Token(&alive), &called] { called = true; });
  EXPECT_EQ(alive, 0);
  EXPECT_FALSE(called);
}

TEST(Future, AssigningToAPromiseBreaksTheOldOne) {
  Promise<int> promise;
  Future<int> first = promise.GetFuture();
  promise = Promise<int>();
  EXPECT_TRUE(first.IsBroken());
  Future<int> second = promise.GetFuture();
  promise.SetValue(1);
  Promise<int> moved = std::move(promise);
  promise = std::move(moved);
  EXPECT_EQ(second.Take(), 1);
}

TEST(Future, ValuesAndCallbacksAreFreed) {
  int alive = 0;
  {
    Promise<Token> promise;
    promise.SetValue(Token(&alive));
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);  // Nobody asked for it.
  {
    Promise<int> promise;
    promise.GetFuture().Then([token = Token(&alive)](int) {}).valid();
    EXPECT_EQ(alive, 1);
    promise.SetValue(1);
    EXPECT_EQ(alive, 0);  // At once, though the promise is still there.
  }
  {
    auto future = MakeReadyFuture(Token(&alive));
    const Token token = future.Take();
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
}

TEST(Future, CallbackMayDestroyThePromise) {
  auto promise = std::make_unique<Promise<std::string>>();
  std::string seen;
  auto done = promise->GetFuture().Then([&](const std::string& text) {
    promise.reset();
    seen = text;  // Still valid.
  });
  promise->SetValue(std::string(100, 'x'));
  EXPECT_EQ(seen, std::string(100, 'x'));
  EXPECT_TRUE(done.IsReady());
}

TEST(FutureDeathTest, MisuseEndsTheProcess) {
  EXPECT_DEATH(
      {
        Promise<int> promise;
        promise.SetValue(1);
        promise.SetValue(2);
      },
      "given its value twice");
  EXPECT_DEATH(
      {
        Promise<int> promise;
        auto first = promise.GetFuture();
        auto second = promise.GetFuture();
      },
      "called twice on one promise");
  EXPECT_DEATH(
      {
        Promise<int> promise;
        promise.GetFuture().Take();
      },
      "not ready");
  EXPECT_DEATH(
      {
        Promise<int> promise;
        auto future = promise.GetFuture();
        future.OnReady([] {});
        future.OnReady([] {});
      },
      "only one callback");
  EXPECT_DEATH(static_cast<void>(WhenAny(std::vector<Future<>>())),
               "WhenAny of no futures");
  EXPECT_DEATH(static_cast<void>(MakeReadyFuture().Then([] { throw 1; })), "");
}

// Sets values from another thread while this one attaches, polls, or has gone:
// under tsan this is the test of FutureState's memory orders.
TEST(Future, PromiseAndFutureOnDifferentThreads) {
  constexpr int kRounds = 3000;
  std::vector<Promise<std::unique_ptr<int>>> promises(kRounds);
  std::vector<Future<std::unique_ptr<int>>> futures;
  for (auto& promise : promises) futures.push_back(promise.GetFuture());
  std::atomic<int> sum{0};
  std::latch start(2);
  std::jthread setter([&] {
    start.arrive_and_wait();
    for (int i = 0; i < kRounds; ++i) {
      if (i % 10 == 9) {
        promises[i] = Promise<std::unique_ptr<int>>();  // Breaks it.
      } else {
        promises[i].SetValue(std::make_unique<int>(1));
      }
    }
  });
  start.arrive_and_wait();
  std::vector<Future<>> done;
  for (int i = 0; i < kRounds; ++i) {
    switch (i % 3) {
      case 0:
        done.push_back(
            futures[i].Then([&](std::unique_ptr<int> one) { sum += *one; }));
        break;
      case 1:
        while (!futures[i].IsReady() && !futures[i].IsBroken()) {
          std::this_thread::yield();
        }
        if (auto one = futures[i].TryGet()) sum += **one;
        break;
      default:
        futures[i] = {};
        break;
    }
  }
  setter.join();
  int expected = 0;
  for (int i = 0; i < kRounds; ++i) expected += i % 3 != 2 && i % 10 != 9;
  EXPECT_EQ(sum, expected);
  for (std::size_t i = 0; i < done.size(); ++i) {
    EXPECT_EQ(done[i].IsBroken(), i * 3 % 10 == 9);
    EXPECT_NE(done[i].IsBroken(), done[i].IsReady());
  }
}

// A promise on the waiter's stack, gone as soon as the waiter sees the value.
TEST(Future, PromiseMayGoWhileSetValueReturns) {
  constexpr int kRounds = 5000;
  // Fewer on a busy machine, where each turn of a thread has to be waited for.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  std::atomic<Promise<int>*> handed{nullptr};
  std::jthread setter([&](const std::stop_token& stop) {
    for (int i = 0;; ++i) {
      Promise<int>* promise;
      while ((promise = handed.exchange(nullptr)) == nullptr) {
        if (stop.stop_requested()) return;
        std::this_thread::yield();
      }
      promise->SetValue(i);
    }
  });
  for (int i = 0; i < kRounds && std::chrono::steady_clock::now() < end; ++i) {
    std::atomic<bool> woken{false};
    {
      Promise<int> promise;
      Future<int> future = promise.GetFuture();
      handed = &promise;
      if (i % 2 == 0) future.OnReady([&] { woken = true; });
      while (i % 2 == 0 ? !woken : !future.IsReady()) {
        std::this_thread::yield();
      }
      ASSERT_EQ(future.Take(), i);
    }
  }
}

}  // namespace
}  // namespace flare

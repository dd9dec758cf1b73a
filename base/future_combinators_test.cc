#include <algorithm>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "flare/base/future.h"
#include "flare/base/testing/rounds.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

template <class... Ts>
std::vector<Future<Ts...>> FuturesOf(std::vector<Promise<Ts...>>* promises) {
  std::vector<Future<Ts...>> futures;
  for (auto& promise : *promises) futures.push_back(promise.GetFuture());
  return futures;
}

TEST(WhenAll, WaitsForEachOfDifferentFutures) {
  Promise<int> number;
  Promise<> nothing;
  Promise<char, std::string> pair;
  auto all = WhenAll(number.GetFuture(), nothing.GetFuture(), pair.GetFuture());
  static_assert(std::is_same_v<decltype(all),
                               Future<int, std::tuple<char, std::string>>>);
  pair.SetValue('c', "s");
  number.SetValue(1);
  EXPECT_FALSE(all.IsReady());
  nothing.SetValue();
  ASSERT_TRUE(all.IsReady());
  const auto [first, second] = all.Take();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, std::make_tuple('c', "s"));
}

TEST(WhenAll, TakesPointers) {
  Future<int> one = MakeReadyFuture(1);
  Future<std::unique_ptr<int>> two = MakeReadyFuture(std::make_unique<int>(2));
  auto all = WhenAll(&one, &two);
  EXPECT_FALSE(one.valid());
  EXPECT_FALSE(two.valid());
  auto [first, second] = all.Take();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(*second, 2);
}

// Without futures there is nothing to wait for; a vector of them may be empty.
template <class... Futures>
concept CanWhenAll = requires(Futures... futures) {
  WhenAll(std::move(futures)...);
};
static_assert(CanWhenAll<Future<>> && CanWhenAll<Future<int>, Future<>>);
static_assert(!CanWhenAll<> && !CanWhenAll<int>);

TEST(WhenAll, OfFuturesWithoutValuesOrOfNone) {
  auto all = WhenAll(MakeReadyFuture(), MakeReadyFuture());
  static_assert(std::is_same_v<decltype(all), Future<>>);
  EXPECT_TRUE(all.IsReady());
}

TEST(WhenAll, VectorKeepsTheOrder) {
  std::vector<Promise<int>> promises(5);
  auto all = WhenAll(FuturesOf(&promises));
  static_assert(std::is_same_v<decltype(all), Future<std::vector<int>>>);
  for (const int i : {3, 0, 4, 1}) promises[i].SetValue(i * 10);
  EXPECT_FALSE(all.IsReady());
  promises[2].SetValue(20);
  EXPECT_EQ(all.Take(), (std::vector<int>{0, 10, 20, 30, 40}));
}

TEST(WhenAll, VectorsOfEveryKind) {
  EXPECT_EQ(WhenAll(std::vector<Future<int>>()).Take(), std::vector<int>());
  EXPECT_TRUE(WhenAll(std::vector<Future<>>()).IsReady());

  std::vector<Future<>> nothing;
  nothing.push_back(MakeReadyFuture());
  auto done = WhenAll(&nothing);
  static_assert(std::is_same_v<decltype(done), Future<>>);
  EXPECT_TRUE(done.IsReady());

  std::vector<Future<bool>> flags;
  for (int i = 0; i < 3; ++i) flags.push_back(MakeReadyFuture(i == 1));
  EXPECT_EQ(WhenAll(&flags).Take(), (std::vector<bool>{false, true, false}));

  std::vector<Future<int, char>> pairs;
  pairs.push_back(MakeReadyFuture(1, 'a'));
  EXPECT_EQ(WhenAll(std::move(pairs)).Take(),
            (std::vector<std::tuple<int, char>>{{1, 'a'}}));

  std::vector<Future<std::unique_ptr<int>>> pointers;
  pointers.push_back(MakeReadyFuture(std::make_unique<int>(9)));
  EXPECT_EQ(*WhenAll(&pointers).Take()[0], 9);
}

TEST(WhenAll, BreaksIfOneBreaks) {
  Future<std::vector<int>> all;
  Future<int, int> both;
  {
    std::vector<Promise<int>> promises(3);
    all = WhenAll(FuturesOf(&promises));
    Promise<int> one, two;
    both = WhenAll(one.GetFuture(), two.GetFuture());
    promises[0].SetValue(1);
    promises[2].SetValue(1);
    two.SetValue(2);
    EXPECT_FALSE(all.IsBroken());
  }
  EXPECT_TRUE(all.IsBroken());
  EXPECT_TRUE(both.IsBroken());
}

TEST(WhenAll, BreaksAfterTheLastOne) {
  Promise<int> pending;
  auto first = std::make_unique<Promise<int>>();
  auto both = WhenAll(first->GetFuture(), pending.GetFuture());
  first.reset();
  EXPECT_FALSE(both.IsBroken());
  pending.SetValue(1);
  EXPECT_TRUE(both.IsBroken());
}

TEST(WhenAny, TellsTheFirst) {
  std::vector<Promise<std::string>> promises(3);
  auto any = WhenAny(FuturesOf(&promises));
  static_assert(
      std::is_same_v<decltype(any), Future<std::size_t, std::string>>);
  EXPECT_FALSE(any.IsReady());
  promises[1].SetValue("one");
  promises[0].SetValue("zero");  // Too late: dropped.
  promises[2].SetValue("two");
  EXPECT_EQ(any.Take(), std::make_tuple(std::size_t{1}, "one"));
}

TEST(WhenAny, OfReadyOnesTheFirstInTheVector) {
  std::vector<Future<>> futures;
  Promise<> never;
  futures.push_back(never.GetFuture());
  futures.push_back(MakeReadyFuture());
  futures.push_back(MakeReadyFuture());
  auto any = WhenAny(&futures);
  static_assert(std::is_same_v<decltype(any), Future<std::size_t>>);
  EXPECT_EQ(any.Take(), 1u);
}

TEST(WhenAny, SeveralValuesComeAsATuple) {
  std::vector<Future<int, char>> futures;
  futures.push_back(MakeReadyFuture(5, 'x'));
  EXPECT_EQ(WhenAny(&futures).Take(),
            std::make_tuple(std::size_t{0}, std::make_tuple(5, 'x')));
}

TEST(WhenAny, BreaksOnlyIfAllBreak) {
  std::vector<Promise<int>> promises(2);
  auto any = WhenAny(FuturesOf(&promises));
  promises.pop_back();
  EXPECT_FALSE(any.IsBroken());
  promises[0].SetValue(3);
  EXPECT_EQ(any.Take(), std::make_tuple(std::size_t{0}, 3));

  std::vector<Promise<int>> lost(2);
  auto none = WhenAny(FuturesOf(&lost));
  lost.clear();
  EXPECT_TRUE(none.IsBroken());
}

TEST(Split, BothGetTheValues) {
  Promise<std::string, int> promise;
  auto [first, second] = Split(promise.GetFuture());
  std::vector<int> order;
  auto after_second = std::move(second).Then([&](std::string text, int number) {
    EXPECT_EQ(text, "text");
    EXPECT_EQ(number, 3);
    order.push_back(2);
  });
  auto after_first =
      std::move(first).Then([&](const std::string& text, int number) {
        EXPECT_EQ(text, "text");
        EXPECT_EQ(number, 3);
        order.push_back(1);
      });
  EXPECT_TRUE(order.empty());
  promise.SetValue("text", 3);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_TRUE(after_first.IsReady());
  EXPECT_TRUE(after_second.IsReady());
}

TEST(Split, OfReadyEmptyAndPointedTo) {
  auto ready = MakeReadyFuture(std::vector<int>{1, 2});
  auto [a, b] = Split(&ready);
  EXPECT_FALSE(ready.valid());
  EXPECT_EQ(a.Take(), (std::vector<int>{1, 2}));
  EXPECT_EQ(b.Take(), (std::vector<int>{1, 2}));
  auto [c, d] = Split(MakeReadyFuture());
  EXPECT_TRUE(c.IsReady() && d.IsReady());
  auto [e, f] = Split(std::move(d));  // Again.
  auto all = WhenAll(&c, &e, &f);
  EXPECT_TRUE(all.IsReady());
}

TEST(Split, BreaksBoth) {
  std::optional<Promise<int>> promise(std::in_place);
  auto [first, second] = Split(promise->GetFuture());
  promise.reset();
  EXPECT_TRUE(first.IsBroken());
  EXPECT_TRUE(second.IsBroken());
}

// Many threads complete the parts of one whole.
// One in the other they would overflow any stack.
TEST(FutureCombinators, LongChainsTakeNoStack) {
  Promise<int> promise;
  Future<int> future = promise.GetFuture();
  for (int i = 0; i < flare::testing::Rounds(50'000); ++i) {
    future = WhenAll(MakeReadyFuture(), std::move(future));
    std::vector<Future<int>> one;
    one.push_back(std::move(future));
    future = WhenAll(&one).Then([](std::vector<int> n) { return n[0]; });
    one.clear();
    one.push_back(std::move(future));
    future = WhenAny(&one).Then([](std::size_t, int n) { return n; });
    future = Split(&future).second;
  }
  promise.SetValue(7);
  EXPECT_EQ(future.Take(), 7);
}

TEST(FutureCombinators, ConcurrentCompletion) {
  constexpr int kThreads = 3;
  constexpr int kPerThread = 4;
  std::mt19937 random(17);
  for (int round = 0; round < 300; ++round) {
    std::vector<Promise<int>> for_all(kThreads * kPerThread);
    std::vector<Promise<int>> for_any(kThreads * kPerThread);
    std::vector<int> order(for_all.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::latch start(kThreads + 1);
    std::vector<std::jthread> threads;
    auto all_futures = FuturesOf(&for_all);
    auto any_futures = FuturesOf(&for_any);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        start.arrive_and_wait();
        for (int i = 0; i < kPerThread; ++i) {
          const int n = order[t * kPerThread + i];
          for_all[n].SetValue(n);
          for_any[n].SetValue(n);
        }
      });
    }
    start.arrive_and_wait();
    auto all = WhenAll(std::move(all_futures));  // Races with the setters.
    auto any = WhenAny(std::move(any_futures));
    threads.clear();
    ASSERT_TRUE(all.IsReady());
    ASSERT_TRUE(any.IsReady());
    std::sort(order.begin(), order.end());
    ASSERT_EQ(all.Take(), order);
    const auto [index, value] = any.Take();
    ASSERT_EQ(index, static_cast<std::size_t>(value));
  }
}

}  // namespace
}  // namespace flare

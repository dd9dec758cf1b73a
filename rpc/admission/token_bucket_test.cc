#include "flare/rpc/admission/token_bucket.h"

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kStart = 1000 * kSecond;

TEST(TokenBucket, BeginsFullAndRefillsWithTime) {
  const TokenRate rate = TokenRate::Of(/*per_second=*/10, /*burst=*/3);
  TokenBucket bucket;
  for (int i = 0; i != 3; ++i) EXPECT_EQ(bucket.Take(rate, kStart), 0);
  EXPECT_EQ(bucket.Take(rate, kStart), kSecond / 10);
  EXPECT_EQ(bucket.Take(rate, kStart + kSecond / 20), kSecond / 20);
  EXPECT_EQ(bucket.Take(rate, kStart + kSecond / 10), 0);
  EXPECT_EQ(bucket.Take(rate, kStart + kSecond / 10), kSecond / 10);
  // It holds no more than the burst, however long the pause.
  const std::int64_t later = kStart + 100 * kSecond;
  for (int i = 0; i != 3; ++i) EXPECT_EQ(bucket.Take(rate, later), 0);
  EXPECT_GT(bucket.Take(rate, later), 0);
}

TEST(TokenBucket, KeepsTheRateOverALongTime) {
  const TokenRate rate = TokenRate::Of(/*per_second=*/1000, /*burst=*/1);
  TokenBucket bucket;
  int taken = 0;
  for (int i = 0; i != 100'000; ++i) {  // Ten seconds, ten times the rate.
    if (bucket.Take(rate, kStart + i * 100'000LL) == 0) ++taken;
  }
  EXPECT_EQ(taken, 10'000);
}

TEST(TokenBucket, TakesTokensBack) {
  const TokenRate rate = TokenRate::Of(1, 2);
  TokenBucket bucket;
  EXPECT_EQ(bucket.Take(rate, kStart), 0);
  EXPECT_EQ(bucket.Take(rate, kStart), 0);
  bucket.GiveBack(rate);
  EXPECT_EQ(bucket.Take(rate, kStart), 0);
  EXPECT_GT(bucket.Take(rate, kStart), 0);
}

TEST(TokenBucket, AClockThatGoesBackALittleGivesNothing) {
  const TokenRate rate = TokenRate::Of(1, 2);
  TokenBucket bucket;
  EXPECT_EQ(bucket.Take(rate, kStart), 0);
  EXPECT_EQ(bucket.Take(rate, kStart - 2000), 2000);
}

TEST(TokenBucket, ThreadsGetEachTokenOnce) {
  const TokenRate rate = TokenRate::Of(1, 10'000);
  TokenBucket bucket;
  std::atomic<int> taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i != 4; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call != 5000; ++call) {
        if (bucket.Take(rate, kStart) == 0) taken.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken.load(), 10'000);
}

TEST(CallerBuckets, EachCallerHasItsOwn) {
  const TokenRate rate = TokenRate::Of(1, 1);
  CallerBuckets callers(/*max_callers=*/800);
  for (std::uint64_t caller = 0; caller != 100; ++caller) {
    EXPECT_EQ(callers.Find(caller, kStart)->Take(rate, kStart), 0) << caller;
  }
  for (std::uint64_t caller = 0; caller != 100; ++caller) {
    EXPECT_GT(callers.Find(caller, kStart)->Take(rate, kStart), 0) << caller;
  }
}

TEST(CallerBuckets, CallersBeyondTheCapShareABucket) {
  const TokenRate rate = TokenRate::Of(1, 1);
  CallerBuckets callers(/*max_callers=*/8);
  std::set<TokenBucket*> buckets;
  for (std::uint64_t caller = 0; caller != 8; ++caller) {
    TokenBucket* const bucket = callers.Find(caller * 2, kStart);
    EXPECT_FALSE(callers.IsShared(bucket));
    EXPECT_EQ(bucket->Take(rate, kStart), 0);
    buckets.insert(bucket);
  }
  EXPECT_EQ(buckets.size(), 8u);
  EXPECT_TRUE(callers.IsShared(callers.Find(100, kStart)));
  EXPECT_TRUE(callers.IsShared(callers.Find(200, kStart)));
  // A known caller isn't forgotten for their sake.
  EXPECT_GT(callers.Find(0, kStart)->Take(rate, kStart), 0);
}

TEST(CallerBuckets, TheOneThatIsFullForLongestGivesWay) {
  const TokenRate rate = TokenRate::Of(1, 1);
  CallerBuckets callers(/*max_callers=*/8);
  std::vector<TokenBucket*> buckets;
  for (std::uint64_t caller = 0; caller != 8; ++caller) {
    // Caller 3 is the first, and 0 the next.
    const std::int64_t at =
        caller == 3 ? kStart : kStart + 10 * (static_cast<int>(caller) + 1);
    buckets.push_back(callers.Find(caller * 2, at));
    EXPECT_EQ(buckets.back()->Take(rate, at), 0);
  }
  const std::int64_t refilled = kStart + kSecond + 1000;
  TokenBucket* const first = callers.Find(100, refilled);
  EXPECT_EQ(first, buckets[3]);
  EXPECT_EQ(first->Take(rate, refilled), 0);  // It has a full bucket.
  EXPECT_GT(first->Take(rate, refilled), 0);
  EXPECT_EQ(callers.Find(102, refilled), buckets[0]);
}

}  // namespace
}  // namespace flare::rpc

#include "example/rpc/call_recorder.h"

#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace example {
namespace {

using Failures = std::map<int, std::uint64_t>;

TEST(CallStatistics, StartsEmpty) {
  CallStatistics statistics;
  EXPECT_EQ(statistics.successes(), 0u);
  EXPECT_EQ(statistics.failure_count(), 0u);
}

TEST(CallStatistics, MergeAddsLatenciesAndFailures) {
  CallStatistics a;
  a.latency_ns.Record(100);
  a.failures = {{3, 2}, {104, 1}};
  CallStatistics b;
  b.latency_ns.Record(300);
  b.failures = {{3, 5}, {2, 1}};
  a.Merge(b);
  EXPECT_EQ(a.successes(), 2u);
  EXPECT_EQ(a.latency_ns.max(), 300);
  EXPECT_EQ(a.failures, (Failures{{2, 1}, {3, 7}, {104, 1}}));
  EXPECT_EQ(a.failure_count(), 9u);
  EXPECT_EQ(b.failure_count(), 6u);
}

TEST(CallRecorder, CountsChangesOfRecordedCalls) {
  CallRecorder recorder;
  recorder.HadOtherStatus(0, 3);
  CallStatistics total = recorder.Take();
  recorder.HadOtherStatus(0, 3);
  recorder.HadOtherStatus(1001, 0);
  recorder.HadOtherReply();
  total.Merge(recorder.Take());
  EXPECT_EQ(total.changes(), 4u);
  EXPECT_EQ(total.changed_replies, 1u);
  EXPECT_EQ((total.changed_statuses.at({0, 3})), 2u);
  EXPECT_EQ((total.changed_statuses.at({1001, 0})), 1u);
  EXPECT_EQ(recorder.Take().changes(), 0u);
}

TEST(CallRecorder, CountsMessages) {
  CallRecorder recorder;
  recorder.Succeeded(1000);
  recorder.HadMessages({.sent = 2, .received = 3});
  recorder.HadMessages({.sent = 1, .received = 0});
  CallStatistics taken = recorder.Take();
  EXPECT_EQ(taken.messages.sent, 3u);
  EXPECT_EQ(taken.messages.received, 3u);
  EXPECT_EQ(taken.messages.total(), 6u);
  // From a call that was taken between the two.
  recorder.HadMessages({.sent = 0, .received = 7});
  taken.Merge(recorder.Take());
  EXPECT_EQ(taken.messages.received, 10u);
  EXPECT_EQ(recorder.Take().messages.total(), 0u);
}

TEST(CallRecorder, TakeReturnsWhatWasRecordedOnce) {
  CallRecorder recorder;
  recorder.Succeeded(1000);
  recorder.Succeeded(3000);
  recorder.Failed(3);
  const CallStatistics first = recorder.Take();
  EXPECT_EQ(first.successes(), 2u);
  EXPECT_EQ(first.latency_ns.min(), 1000);
  EXPECT_EQ(first.latency_ns.max(), 3000);
  EXPECT_EQ(first.failures, (Failures{{3, 1}}));

  EXPECT_EQ(recorder.Take().successes(), 0u);
  EXPECT_EQ(recorder.Take().failure_count(), 0u);

  recorder.Failed(7);
  EXPECT_EQ(recorder.Take().failures, (Failures{{7, 1}}));
  recorder.Succeeded(5);
  EXPECT_EQ(recorder.Take().latency_ns.max(), 5);
}

TEST(CallRecorder, ThreadsHaveSlotsOfTheirOwn) {
  std::set<std::size_t> slots;
  for (std::size_t i = 0; i != kThreadSlots; ++i) {
    std::thread([&slots] {
      slots.insert(ThreadSlot());
      EXPECT_EQ(ThreadSlot(), ThreadSlot());
    }).join();
  }
  EXPECT_EQ(slots.size(), kThreadSlots);
}

// More threads than slots, and Take() in between: every call is in exactly
// one of the statistics.
TEST(CallRecorder, NothingIsLostNorCountedTwice) {
  constexpr std::uint64_t kThreads = kThreadSlots + 6;
  constexpr std::uint64_t kCalls = 1000;
  CallRecorder recorder;
  CallStatistics total;
  std::atomic<std::uint64_t> running{kThreads};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i != kThreads; ++i) {
    threads.emplace_back([&recorder, &running, i] {
      for (std::uint64_t call = 0; call != kCalls; ++call) {
        recorder.Succeeded(static_cast<std::int64_t>(call));
        if (call % 10 == 0) recorder.Failed(static_cast<int>(1 + i % 3));
      }
      running.fetch_sub(1);
    });
  }
  while (running.load() != 0) total.Merge(recorder.Take());
  for (auto& thread : threads) thread.join();
  total.Merge(recorder.Take());

  EXPECT_EQ(total.successes(), kThreads * kCalls);
  EXPECT_EQ(total.latency_ns.sum(), kThreads * kCalls * (kCalls - 1) / 2);
  EXPECT_EQ(total.failure_count(), kThreads * kCalls / 10);
  EXPECT_EQ(total.failures.size(), 3u);
}

}  // namespace
}  // namespace example

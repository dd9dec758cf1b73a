#include "flare/base/histogram.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <latch>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

using Buckets = HistogramBuckets;

constexpr double kQuantiles[] = {0.001, 0.01, 0.1,   0.25,   0.5,    0.75,
                                 0.9,   0.99, 0.999, 0.9999, 0.99999};

TEST(HistogramBuckets, CoverAllValuesWithoutGapOrOverlap) {
  EXPECT_EQ(Buckets::LowerBound(0), 0);
  for (std::size_t i = 0; i < Buckets::kCount; ++i) {
    const std::int64_t lower = Buckets::LowerBound(i);
    const std::int64_t upper = Buckets::UpperBound(i);
    ASSERT_LE(lower, upper);
    ASSERT_EQ(Buckets::IndexOf(lower), i);
    ASSERT_EQ(Buckets::IndexOf(upper), i);
    ASSERT_EQ(Buckets::IndexOf(lower + (upper - lower) / 2), i);
    if (i + 1 < Buckets::kCount) {
      ASSERT_EQ(Buckets::LowerBound(i + 1), upper + 1);
    } else {
      ASSERT_EQ(upper, Buckets::kMaxValue);
    }
    // The promise of the header: known to 1/128 of the value.
    ASSERT_LE(upper - lower, lower / 128);
  }
}

TEST(HistogramBuckets, ClampsToTheRange) {
  EXPECT_EQ(Buckets::Clamp(-1), 0);
  EXPECT_EQ(Buckets::Clamp(0), 0);
  EXPECT_EQ(Buckets::Clamp(Buckets::kMaxValue), Buckets::kMaxValue);
  EXPECT_EQ(Buckets::Clamp(Buckets::kMaxValue + 1), Buckets::kMaxValue);
  EXPECT_EQ(Buckets::Clamp(INT64_MAX), Buckets::kMaxValue);
  EXPECT_EQ(Buckets::Clamp(INT64_MIN), 0);
}

TEST(Histogram, EmptyOneIsAllZero) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.sum(), 0u);
  EXPECT_EQ(histogram.min(), 0);
  EXPECT_EQ(histogram.max(), 0);
  EXPECT_EQ(histogram.mean(), 0);
  for (const double q : {0.0, 0.5, 1.0}) {
    EXPECT_EQ(histogram.ValueAtQuantile(q), 0);
  }
  histogram.ForEachBucket([](const Histogram::Bucket&) { FAIL(); });
}

TEST(Histogram, OneValueIsEveryQuantile) {
  for (const std::int64_t value :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{255}, std::int64_t{256},
        std::int64_t{123'456'789}, Buckets::kMaxValue}) {
    Histogram histogram;
    histogram.Record(value);
    for (const double q : {-1.0, 0.0, 0.001, 0.5, 0.999, 1.0, 2.0}) {
      EXPECT_EQ(histogram.ValueAtQuantile(q), value) << q;
    }
    EXPECT_EQ(histogram.mean(), static_cast<double>(value));
  }
}

TEST(Histogram, SmallValuesAreExact) {
  Histogram histogram;
  for (int i = 100; i >= 1; --i) histogram.Record(i);
  for (int percent = 1; percent <= 100; ++percent) {
    EXPECT_EQ(histogram.ValueAtQuantile(percent / 100.0), percent);
  }
  EXPECT_EQ(histogram.ValueAtQuantile(0.5001), 51);
  EXPECT_EQ(histogram.ValueAtQuantile(0), 1);
  EXPECT_EQ(histogram.ValueAtQuantile(std::nan("")), 1);
  EXPECT_EQ(histogram.min(), 1);
  EXPECT_EQ(histogram.max(), 100);
  EXPECT_EQ(histogram.sum(), 5050u);
  EXPECT_EQ(histogram.mean(), 50.5);
}

TEST(Histogram, OutOfRangeValuesCountAtTheEnds) {
  Histogram histogram;
  histogram.Record(-5);
  histogram.Record(INT64_MAX);
  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_EQ(histogram.min(), 0);
  EXPECT_EQ(histogram.max(), Buckets::kMaxValue);
}

// Values spread over many magnitudes, as latencies are.
std::vector<std::int64_t> RandomValues(std::uint64_t seed, std::size_t n) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> distribution(
      std::uniform_real_distribution<double>(2, 22)(random), 2.0);
  std::vector<std::int64_t> values(n);
  for (std::int64_t& value : values) {
    value = Buckets::Clamp(
        static_cast<std::int64_t>(std::min(distribution(random), 1e15)));
  }
  return values;
}

void ExpectQuantiles(const Histogram& histogram,
                     std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  ASSERT_EQ(histogram.count(), values.size());
  EXPECT_EQ(histogram.min(), values.front());
  EXPECT_EQ(histogram.max(), values.back());
  for (const double q : kQuantiles) {
    const auto rank = static_cast<std::size_t>(
        std::ceil(q * static_cast<double>(values.size()) - 1e-9));
    const auto truth =
        static_cast<double>(values[std::max<std::size_t>(rank, 1) - 1]);
    const auto told = static_cast<double>(histogram.ValueAtQuantile(q));
    EXPECT_LE(std::abs(told - truth), truth * 0.01) << "at " << q;
  }
}

TEST(Histogram, QuantilesAreWithinOnePercentOfTheTruth) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const auto values = RandomValues(seed, 1 + seed * 1000);
    Histogram histogram;
    std::uint64_t sum = 0;
    for (const std::int64_t value : values) {
      histogram.Record(value);
      sum += static_cast<std::uint64_t>(value);
    }
    EXPECT_EQ(histogram.sum(), sum);
    ExpectQuantiles(histogram, values);
  }
}

TEST(Histogram, RecordManyIsManyRecords) {
  Histogram one, many;
  for (int i = 0; i < 1000; ++i) one.Record(777'777);
  many.RecordMany(777'777, 1000);
  many.RecordMany(1, 0);  // Absent from all results, even the minimum.
  EXPECT_EQ(one.ToString(), many.ToString());
  EXPECT_EQ(many.min(), 777'777);
}

TEST(Histogram, MergeEqualsRecordingInOne) {
  const auto left = RandomValues(100, 5000), right = RandomValues(101, 3000);
  Histogram a, b;
  for (const std::int64_t value : left) a.Record(value);
  for (const std::int64_t value : right) b.Record(value);
  a.Merge(b);
  std::vector<std::int64_t> all = left;
  all.insert(all.end(), right.begin(), right.end());
  ExpectQuantiles(a, all);
  const std::string before = a.ToString();
  a.Merge(Histogram());  // Nothing: the minimum stays, too.
  EXPECT_EQ(a.ToString(), before);
  Histogram empty;
  empty.Merge(a);
  EXPECT_EQ(empty.ToString(), before);
}

TEST(Histogram, ResetForgets) {
  Histogram histogram;
  histogram.Record(5);
  histogram.Reset();
  EXPECT_EQ(histogram.ToString(), Histogram().ToString());
  histogram.Record(9);
  EXPECT_EQ(histogram.min(), 9);
  EXPECT_EQ(histogram.max(), 9);
}

TEST(Histogram, ResetAfterItWasMovedFrom) {
  Histogram counts;
  counts.Record(7);
  const Histogram taken = std::move(counts);
  counts.Reset();
  counts.Record(9);
  EXPECT_EQ(counts.count(), 1u);
  EXPECT_EQ(counts.max(), 9);
  EXPECT_EQ(counts.ValueAtQuantile(0.5), 9);
  EXPECT_EQ(taken.max(), 7);
}

TEST(Histogram, ForEachBucketVisitsInOrderAndCountsAll) {
  const auto values = RandomValues(7, 4000);
  Histogram histogram;
  for (const std::int64_t value : values) histogram.Record(value);
  std::int64_t last = -1;
  std::uint64_t counted = 0;
  histogram.ForEachBucket([&](const Histogram::Bucket& bucket) {
    EXPECT_GT(bucket.lower, last);
    EXPECT_GE(bucket.upper, bucket.lower);
    last = bucket.upper;
    counted += bucket.count;
    EXPECT_EQ(bucket.count,
              std::count_if(values.begin(), values.end(), [&](std::int64_t v) {
                return v >= bucket.lower && v <= bucket.upper;
              }));
  });
  EXPECT_EQ(counted, values.size());
}

TEST(Histogram, CopiesAreIndependent) {
  Histogram one;
  one.Record(1);
  Histogram two = one;
  two.Record(100);
  EXPECT_EQ(one.count(), 1u);
  EXPECT_EQ(two.max(), 100);
}

TEST(Histogram, PrintsASummary) {
  Histogram histogram;
  for (int i = 1; i <= 10; ++i) histogram.Record(i);
  EXPECT_EQ(histogram.ToString(),
            "count=10 mean=5.5 min=1 p50=5 p90=9 p99=10 p99.9=10 max=10");
}

TEST(ConcurrentHistogram, EmptySnapshot) {
  const ConcurrentHistogram histogram;
  EXPECT_EQ(histogram.Snapshot().ToString(), Histogram().ToString());
}

TEST(ConcurrentHistogram, SnapshotEqualsAPlainHistogram) {
  ConcurrentHistogram concurrent;
  Histogram plain;
  for (const std::int64_t value : RandomValues(3, 10'000)) {
    concurrent.Record(value);
    plain.Record(value);
  }
  concurrent.Record(-7);
  plain.Record(-7);
  concurrent.RecordMany(300, 101);
  plain.RecordMany(300, 101);
  concurrent.RecordMany(1, 0);
  EXPECT_EQ(concurrent.Snapshot().ToString(), plain.ToString());
  concurrent.Reset();
  EXPECT_EQ(concurrent.Snapshot().count(), 0u);
  concurrent.Record(4);
  EXPECT_EQ(concurrent.Snapshot().min(), 4);
  EXPECT_EQ(concurrent.Snapshot().max(), 4);
}

TEST(ConcurrentHistogram, LosesNothingUnderManyWriters) {
  constexpr int kThreads = 4;
  ConcurrentHistogram histogram;
  std::vector<std::vector<std::int64_t>> values;
  std::vector<std::int64_t> all;
  for (int t = 0; t < kThreads; ++t) {
    values.push_back(RandomValues(50 + t, 30'000));
    all.insert(all.end(), values[t].begin(), values[t].end());
  }
  std::latch start(kThreads + 1);
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (const std::int64_t value : values[t]) histogram.Record(value);
    });
  }
  start.arrive_and_wait();
  std::uint64_t last = 0;
  while (last < all.size()) {  // Readers meanwhile see it grow.
    const Histogram snapshot = histogram.Snapshot();
    ASSERT_GE(snapshot.count(), last);
    ASSERT_LE(snapshot.min(), snapshot.max());
    last = snapshot.count();
  }
  threads.clear();
  std::uint64_t sum = 0;
  for (const std::int64_t value : all) sum += static_cast<std::uint64_t>(value);
  EXPECT_EQ(histogram.Snapshot().sum(), sum);
  ExpectQuantiles(histogram.Snapshot(), all);
}

}  // namespace
}  // namespace flare

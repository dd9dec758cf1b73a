#include "flare/rpc/metrics.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::metrics {
namespace {

class MetricsTest : public fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(MetricsTest);

// On workers and on plain threads at once.
TEST_P(MetricsTest, LosesNothing) {
  constexpr int kFibers = 20;
  constexpr int kThreads = 2;
  constexpr int kTimes = 1000;
  Counter counter;
  Gauge gauge;
  Histogram histogram({1, 2});
  const auto count = [&](int i) {
    counter.Add();
    counter.Add(2);
    gauge.Add(2);
    gauge.Subtract(1);
    histogram.Observe(i % 4);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t != kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i != kTimes; ++i) count(i);
    });
  }
  std::vector<Fiber> fibers;
  for (int f = 0; f != kFibers; ++f) {
    fibers.emplace_back([&] {
      for (int i = 0; i != kTimes; ++i) {
        count(i);
        if (i % 100 == 0) this_fiber::Yield();
      }
    });
  }
  for (Fiber& fiber : fibers) fiber.join();
  for (std::thread& thread : threads) thread.join();
  constexpr std::uint64_t kAll = (kFibers + kThreads) * kTimes;
  EXPECT_EQ(counter.Value(), 3 * kAll);
  EXPECT_EQ(gauge.Value(), kAll);
  const Histogram::Values values = histogram.Read();
  EXPECT_EQ(values.counts,
            (std::vector<std::uint64_t>{kAll / 2, kAll / 4, kAll / 4}));
  EXPECT_EQ(values.sum, 1.5 * kAll);
}

TEST_P(MetricsTest, ASetGaugeGoesOnFromThere) {
  Gauge gauge;
  OnBoth([&] {
    gauge.Add(3);
    gauge.Set(10.5);
    EXPECT_EQ(gauge.Value(), 10.5);
    gauge.Subtract(0.5);
    EXPECT_EQ(gauge.Value(), 10);
  });
}

// Counters of runtimes that come one after the other, the later with more
// workers.
TEST(MetricsRuntimesTest, CountersOutliveThem) {
  Counter counter;
  counter.Add();
  for (const int workers : {1, 3}) {
    fiber::RuntimeOptions options;
    options.concurrency = workers;
    ASSERT_TRUE(fiber::StartRuntime(options).ok());
    std::vector<Fiber> fibers;
    for (int i = 0; i != 100; ++i) fibers.emplace_back([&] { counter.Add(); });
    for (Fiber& fiber : fibers) fiber.join();
    fiber::TerminateRuntime();
  }
  EXPECT_EQ(counter.Value(), 201u);
}

TEST(HistogramMetricTest, BoundsBelongToTheirBuckets) {
  Histogram histogram({0.5, 1});
  for (const double value : {-1.0, 0.5, 0.6, 1.0, 1.1}) {
    histogram.Observe(value);
  }
  histogram.Observe(std::numeric_limits<double>::infinity());
  histogram.Observe(std::nan(""));
  EXPECT_EQ(histogram.Read().counts, (std::vector<std::uint64_t>{2, 2, 2}));
}

// Those of this process, by name.
Snapshot Find(const std::string& name) {
  for (Snapshot& snapshot : Collect()) {
    if (snapshot.name == name) return snapshot;
  }
  return {};
}

TEST(MetricNamesTest, CollectFindsWhatWasMade) {
  auto counter = NewCounter("test_made_total", "Made.");
  ASSERT_TRUE(counter) << counter.error();
  (*counter)->Add(5);
  auto gauge = NewGauge("test:made", "Made, too.");
  ASSERT_TRUE(gauge) << gauge.error();
  (*gauge)->Set(-1);
  auto histogram = NewHistogram("test_made_seconds", "Long.", {1});
  ASSERT_TRUE(histogram) << histogram.error();
  (*histogram)->Observe(3);
  ASSERT_TRUE(
      NewGaugeFunction("test_asked", "Asked.", [] { return 7.0; }).ok());

  const Snapshot made = Find("test_made_total");
  EXPECT_EQ(made.help, "Made.");
  EXPECT_EQ(made.type, Snapshot::Type::kCounter);
  ASSERT_EQ(made.series.size(), 1u);
  EXPECT_EQ(made.series[0].value, 5);
  EXPECT_EQ(Find("test:made").type, Snapshot::Type::kGauge);
  EXPECT_EQ(Find("test:made").series.at(0).value, -1);
  EXPECT_EQ(Find("test_made_seconds").type, Snapshot::Type::kHistogram);
  EXPECT_EQ(Find("test_made_seconds").series.at(0).histogram.sum, 3);
  EXPECT_EQ(Find("test_asked").series.at(0).value, 7);
}

TEST(MetricNamesTest, FamiliesHaveAMetricForEachValue) {
  auto pages =
      NewCounterFamily("test_pages_total", "Sent.", {"page", "status"});
  ASSERT_TRUE(pages) << pages.error();
  pages->With("/", "200")->Add();
  pages->With("/", "404")->Add(2);
  EXPECT_EQ(pages->With("/", "200"), pages->With("/", "200"));
  const Snapshot snapshot = Find("test_pages_total");
  EXPECT_EQ(snapshot.label_names, (std::vector<std::string>{"page", "status"}));
  ASSERT_EQ(snapshot.series.size(), 2u);
  EXPECT_EQ(snapshot.series[1].label_values,
            (std::vector<std::string>{"/", "404"}));
  EXPECT_EQ(snapshot.series[1].value, 2);

  auto sizes = NewHistogramFamily("test_sizes", "Sizes.", {"kind"}, {1, 10});
  ASSERT_TRUE(sizes) << sizes.error();
  sizes->With("small")->Observe(5);
  EXPECT_EQ(Find("test_sizes").series.at(0).histogram.counts,
            (std::vector<std::uint64_t>{0, 1, 0}));
  auto levels = NewGaugeFamily("test_levels", "Levels.", {"tank"});
  ASSERT_TRUE(levels) << levels.error();
  levels->With("a")->Set(2);
  EXPECT_EQ(Find("test_levels").series.at(0).value, 2);
}

TEST(MetricNamesTest, FamiliesAreBounded) {
  auto family = NewCounterFamily("test_many_total", "Many.", {"key"});
  ASSERT_TRUE(family) << family.error();
  for (std::size_t i = 0; i != kMaxSeries + 5; ++i) {
    family->With(std::to_string(i))->Add();
  }
  const Snapshot snapshot = Find("test_many_total");
  ASSERT_EQ(snapshot.series.size(), kMaxSeries + 1);
  for (const Series& series : snapshot.series) {
    EXPECT_EQ(series.value, series.label_values[0] == "(other)" ? 5 : 1);
  }
}

void ExpectError(const Status& status, const std::string& part) {
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(part), std::string::npos) << status;
}

TEST(MetricNamesTest, ErrorsSayWhatIsWrong) {
  ExpectError(NewCounter("", "x").error(), "\"\" can't name a metric");
  ExpectError(NewCounter("9x", "x").error(), "begin with no digit");
  ExpectError(NewCounter("a-b", "x").error(), "\"a-b\" can't name");
  ExpectError(NewGauge("flare_x", "x").error(), "the library's own");
  ExpectError(NewGaugeFunction("process_x", "x", [] { return 0.0; }),
              "the library's own");
  ExpectError(NewGaugeFunction("test_bad", "x", nullptr), "no function");
  ExpectError(NewCounterFamily("test_bad", "x", {"a:b"}).error(), "\"a:b\"");
  ExpectError(NewCounterFamily("test_bad", "x", {"__a"}).error(), "\"__a\"");
  ExpectError(NewHistogramFamily("test_bad", "x", {"le"}).error(), "\"le\"");
  ExpectError(NewCounterFamily("test_bad", "x", {"a", "a"}).error(), "twice");
  ExpectError(NewHistogram("test_bad", "x", {1, 1}).error(), "ascending");
  ExpectError(NewHistogram("test_bad", "x", {std::nan("")}).error(), "finite");
  EXPECT_EQ(Find("test_bad").name, "");
}

TEST(MetricNamesTest, NamesAreTakenOnce) {
  ASSERT_TRUE(NewHistogram("test_taken", "x"));
  for (const char* name : {"test_taken", "test_taken_count", "test_taken_sum",
                           "test_taken_bucket"}) {
    ExpectError(NewCounter(name, "x").error(),
                "there is a metric " + std::string(name) + " already");
  }
  ASSERT_TRUE(NewCounter("test_other_sum", "x"));
  ExpectError(NewHistogram("test_other", "x").error(), "test_other_sum");
}

}  // namespace
}  // namespace flare::metrics

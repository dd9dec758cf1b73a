#include "flare/rpc/call_cells.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <thread>
#include <vector>

#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Counts = std::map<int, std::uint64_t>;

std::uint64_t CountOfAll(const CallCells::Values& values) {
  return std::accumulate(values.seconds.counts.begin(),
                         values.seconds.counts.end(), std::uint64_t{0});
}

TEST(CallCells, BeginEmpty) {
  const CallCells::Values values = CallCells(200).Read();
  EXPECT_EQ(values.counts, (Counts{{200, 0}}));
  EXPECT_EQ(values.others, 0u);
  EXPECT_EQ(CountOfAll(values), 0u);
  EXPECT_EQ(values.seconds.counts.size(), values.seconds.bounds.size() + 1);
}

TEST(CallCells, TellStatusesApart) {
  CallCells cells(0);
  for (const int status : {0, 3, 0, -7, 3, 0}) cells.End(status, 1000);
  const CallCells::Values values = cells.Read();
  EXPECT_EQ(values.counts, (Counts{{0, 3}, {3, 2}, {-7, 1}}));
  EXPECT_EQ(CountOfAll(values), 6u);
}

TEST(CallCells, PutDurationsIntoTheirBuckets) {
  CallCells cells(0);
  const std::vector<double> bounds = cells.Read().seconds.bounds;
  const std::int64_t at_ns[] = {0,
                                16'383,
                                16'384,
                                1'000'000,
                                20'000'000'000,
                                40'000'000'000,
                                4'000'000'000'000};
  for (const std::int64_t ns : at_ns) {
    CallCells one(0);
    one.End(0, ns);
    const metrics::Histogram::Values values = one.Read().seconds;
    for (std::size_t i = 0; i != values.counts.size(); ++i) {
      const double seconds = static_cast<double>(ns) / 1e9;
      const bool here = (i == 0 || seconds >= bounds[i - 1]) &&
                        (i == bounds.size() || seconds < bounds[i]);
      EXPECT_EQ(values.counts[i], here ? 1u : 0u) << ns << ' ' << i;
    }
    EXPECT_DOUBLE_EQ(values.sum, static_cast<double>(ns) / 1e9);
  }
}

// A clock may step back between two CPUs.
TEST(CallCells, TakeANegativeDurationForNone) {
  CallCells cells(0);
  cells.End(0, -5);
  EXPECT_EQ(cells.Read().seconds.counts[0], 1u);
  EXPECT_EQ(cells.Read().seconds.sum, 0);
}

// A counter that falls is taken for one that begins anew.
TEST(CallCells, NeverCountFewerThanBefore) {
  constexpr std::uint64_t kTimes = 100'000;
  CallCells cells(0);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    std::uint64_t before = 0;
    while (!done) {
      const std::uint64_t now = cells.Read().counts.at(0);
      EXPECT_GE(now, before);
      before = now;
    }
  });
  for (std::uint64_t i = 0; i != kTimes; ++i) {
    cells.End(i % 8 == 0 ? 0 : 3, 1000);
  }
  done = true;
  reader.join();
  EXPECT_EQ(cells.Read().counts,
            (Counts{{0, kTimes / 8}, {3, kTimes / 8 * 7}}));
}

// With which a cell without a status is marked.
TEST(StatusCells, CountTheLeastStatusAmongTheOthers) {
  constexpr int kLeast = std::numeric_limits<int>::min();
  StatusCells cells;
  cells.Add(kLeast);
  cells.Add(3);
  EXPECT_EQ(cells.Read().counts, (Counts{{3, 1}}));
  EXPECT_EQ(cells.Read().others, 1u);
  CallCells calls(0);
  for (const int status : {0, kLeast, 3, 0}) calls.End(status, 1000);
  EXPECT_EQ(calls.Read().counts, (Counts{{0, 2}, {3, 1}}));
  EXPECT_EQ(calls.Read().others, 1u);
}

TEST(StatusCells, ShareOneBeyondTheLimit) {
  StatusCells cells;
  for (int status = 1; status <= 1000; ++status) cells.Add(status);
  const StatusCells::Values values = cells.Read();
  EXPECT_EQ(values.counts.size(), StatusCells::kMost);
  EXPECT_EQ(values.counts.at(1), 1u);
  EXPECT_EQ(values.others, 1000 - StatusCells::kMost);
}

class CallCellsTest : public fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(CallCellsTest);

// On workers and on plain threads at once, which meet statuses first.
TEST_P(CallCellsTest, LoseNothing) {
  constexpr int kFibers = 20;
  constexpr int kThreads = 2;
  constexpr int kTimes = 1000;
  constexpr std::uint64_t kAll = (kFibers + kThreads) * kTimes;
  CallCells cells(0);
  const auto count = [&] {
    for (int i = 0; i != kTimes; ++i) cells.End(i % 10, 50'000);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i != kThreads; ++i) threads.emplace_back(count);
  std::vector<Fiber> fibers;
  for (int i = 0; i != kFibers; ++i) fibers.emplace_back(count);
  for (Fiber& fiber : fibers) fiber.join();
  for (std::thread& thread : threads) thread.join();
  const CallCells::Values values = cells.Read();
  for (int status = 0; status != 10; ++status) {
    EXPECT_EQ(values.counts.at(status), kAll / 10) << status;
  }
  EXPECT_EQ(CountOfAll(values), kAll);
  EXPECT_NEAR(values.seconds.sum, static_cast<double>(kAll) * 50e-6, 1e-6);
}

}  // namespace
}  // namespace flare::rpc

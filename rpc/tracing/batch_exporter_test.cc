#include "flare/rpc/tracing/batch_exporter.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/testing/logged_lines.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using fiber::testing::Eventually;
using std::chrono::hours;
using std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

// Keeps the sizes of batches, and does what a test says.
class FakeExporter : public SpanExporter {
 public:
  Status Export(const SpanBatch& spans, TimePoint deadline) override {
    for (const auto& span : spans) {
      EXPECT_NE(span, nullptr);
    }
    {
      ScopedLock guard(lock_);
      sizes_.push_back(spans.size());
    }
    count += spans.size();
    return on_export ? on_export(deadline) : Status();
  }
  std::vector<std::size_t> sizes() {
    ScopedLock guard(lock_);
    return sizes_;
  }

  std::atomic<std::size_t> count{0};
  std::function<Status(TimePoint)> on_export;

 private:
  Spinlock lock_;
  std::vector<std::size_t> sizes_;
};

class BatchExporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(fiber::StartRuntime({.concurrency = 2}).ok());
  }
  void TearDown() override {
    batches_.reset();
    fiber::TerminateRuntime();
  }

  static constexpr milliseconds kTimeout{500};

  void Start(std::size_t max_queue, std::size_t max_batch,
             std::chrono::nanoseconds interval = hours(1)) {
    batches_ = std::make_unique<BatchExporter>(
        BatchExporter::Options{.exporters = {fake_, second_},
                               .max_queue = max_queue,
                               .max_batch = max_batch,
                               .interval = interval,
                               .timeout = kTimeout});
  }
  void Add(int n) {
    for (int i = 0; i != n; ++i) {
      batches_->Add(std::make_shared<const SpanData>());
    }
  }
  // Returns when the exporter has a first batch of them, which it keeps until
  // `go` is set.
  void AddAndHold(int n, fiber::Event* go) {
    const auto began = std::make_shared<fiber::Event>();
    fake_->on_export = [began, go](TimePoint) {
      began->Set();
      go->Wait();
      return Status();
    };
    Add(n);
    began->Wait();
  }

  const std::shared_ptr<FakeExporter> fake_ = std::make_shared<FakeExporter>();
  const std::shared_ptr<FakeExporter> second_ =
      std::make_shared<FakeExporter>();
  std::unique_ptr<BatchExporter> batches_;
};

TEST_F(BatchExporterTest, FullBatchesGoAtOnce) {
  Start(/*max_queue=*/100, /*max_batch=*/10);
  Add(10);
  EXPECT_TRUE(Eventually([&] { return fake_->count == 10; }));
  Add(9);
  batches_->Close();
  EXPECT_EQ(fake_->sizes(), (std::vector<std::size_t>{10, 9}));
  EXPECT_EQ(batches_->statistics().exported, 19u);
  EXPECT_EQ(batches_->statistics().dropped, 0u);
}

TEST_F(BatchExporterTest, OthersGoAfterTheInterval) {
  Start(100, 10, milliseconds(1));
  Add(1);
  EXPECT_TRUE(Eventually([&] { return fake_->count == 1; }));
}

TEST_F(BatchExporterTest, BatchesWithoutMemoryAreDropped) {
  std::atomic<bool> memory{false};
  fake_->on_export = [&](TimePoint) {
    if (!memory) throw std::bad_alloc();
    return Status();
  };
  Start(100, 10);
  Add(10);
  EXPECT_TRUE(Eventually([&] { return batches_->statistics().dropped == 10; }));
  memory = true;
  Add(10);
  batches_->Close();
  EXPECT_EQ(batches_->statistics().exported, 10u);
  EXPECT_EQ(batches_->statistics().dropped, 10u);
}

TEST_F(BatchExporterTest, ExportersThatThrowStopNoOthers) {
  const rpc::testing::LoggedLines warnings(google::WARNING);
  bool memory = true;
  fake_->on_export = [&](TimePoint) -> Status {
    if (!memory) throw std::bad_alloc();
    throw std::runtime_error("no ink");
  };
  Start(100, 10);
  Add(10);
  EXPECT_TRUE(Eventually([&] { return batches_->statistics().failed == 10; }));
  EXPECT_TRUE(
      warnings.Have("an exporter has thrown std::runtime_error: no ink"))
      << warnings.All();
  memory = false;
  Add(10);
  batches_->Close();
  EXPECT_EQ(batches_->statistics().dropped, 10u);
  EXPECT_EQ(second_->count, 20u);
}

TEST_F(BatchExporterTest, ClosingExportsTheRestInBatches) {
  Start(100, 10);
  fiber::Event go;
  AddAndHold(10, &go);
  Add(25);
  go.Set();
  batches_->Close();
  EXPECT_EQ(fake_->sizes(), (std::vector<std::size_t>{10, 10, 10, 5}));
  Add(1);  // Too late.
  EXPECT_EQ(batches_->statistics().dropped, 1u);
  EXPECT_EQ(fake_->count, 35u);
}

TEST_F(BatchExporterTest, SpansBeyondTheQueueAreDroppedAndCounted) {
  Start(/*max_queue=*/20, /*max_batch=*/10);
  fiber::Event go;
  AddAndHold(10, &go);
  Add(50);
  EXPECT_EQ(batches_->statistics().dropped, 30u);
  go.Set();
  batches_->Close();
  EXPECT_EQ(fake_->count, 30u);
  EXPECT_EQ(batches_->statistics().exported, 30u);
}

TEST_F(BatchExporterTest, BatchesThatFailAreCountedAndLoggedOnce) {
  const rpc::testing::LoggedLines warnings(google::WARNING);
  Start(100, 10);
  fake_->on_export = [](TimePoint) { return Status(4711, "no room"); };
  Add(30);
  batches_->Close();
  EXPECT_EQ(batches_->statistics().failed, 30u);
  EXPECT_EQ(batches_->statistics().exported, 0u);
  EXPECT_TRUE(warnings.Have("no room")) << warnings.All();
  EXPECT_TRUE(warnings.Have("traces can't be exported")) << warnings.All();
}

// So closing takes about as long as two of them, however much waits.
TEST_F(BatchExporterTest, LastBatchesShareADeadline) {
  Start(100, 10);
  std::set<TimePoint> deadlines;
  fake_->on_export = [&](TimePoint deadline) {
    deadlines.insert(deadline);
    this_fiber::SleepUntil(deadline);
    return Status(4711, "too slow");
  };
  const TimePoint began = std::chrono::steady_clock::now();
  Add(100);
  const auto waited = std::chrono::steady_clock::now() - began;
  batches_->Close();  // While the first one takes its time.
  EXPECT_EQ(batches_->statistics().failed, 100u);
  // Those that ended before had their own.
  EXPECT_LE(deadlines.size(), 3u + static_cast<std::size_t>(waited / kTimeout));
}

// Each span is exported or dropped, whatever comes together.
TEST_F(BatchExporterTest, StressOfAddersAndTheEnd) {
  for (int round = 0; round != 20; ++round) {
    const std::size_t before = fake_->count;
    Start(64, 8, milliseconds(1));
    constexpr int kThreads = 3;
    constexpr int kSpans = 500;
    std::vector<std::thread> threads;
    for (int i = 0; i != kThreads; ++i) {
      threads.emplace_back([&] { Add(kSpans); });
    }
    if (round % 2 == 0) batches_->Close();  // Amid them.
    for (auto& thread : threads) thread.join();
    batches_->Close();
    const BatchExporter::Statistics s = batches_->statistics();
    EXPECT_EQ(s.exported + s.dropped, std::size_t{kThreads} * kSpans);
    EXPECT_EQ(fake_->count - before, s.exported);
  }
}

}  // namespace
}  // namespace flare

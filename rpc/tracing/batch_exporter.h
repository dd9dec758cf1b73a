// Hands ended spans to exporters in batches, on a fiber of its own.
#ifndef FLARE_RPC_TRACING_BATCH_EXPORTER_H_
#define FLARE_RPC_TRACING_BATCH_EXPORTER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/semaphore.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/tracing/span_exporter.h"

namespace flare {

class BatchExporter {
 public:
  struct Options {
    std::vector<std::shared_ptr<SpanExporter>> exporters;  // One at least.
    std::size_t max_queue;              // Spans that wait; at least 1.
    std::size_t max_batch;              // Spans; 1 to max_queue.
    std::chrono::nanoseconds interval;  // Between batches that aren't full.
    std::chrono::nanoseconds timeout;   // For one Export().
  };
  struct Statistics {
    std::uint64_t exported = 0;  // By all exporters.
    // The queue was full, or had been closed, or there was no memory to export.
    std::uint64_t dropped = 0;
    std::uint64_t failed = 0;  // By one exporter at least.
  };

  // In a running runtime.
  explicit BatchExporter(Options options);
  // Does Close().
  ~BatchExporter();
  BatchExporter(const BatchExporter&) = delete;
  BatchExporter& operator=(const BatchExporter&) = delete;

  // Any thread or fiber; doesn't block.
  void Add(std::shared_ptr<const SpanData> span);

  // Exports the spans that wait, and ends the fiber. Blocks the fiber or
  // thread: for the timeout at most, and as long again if an Export() is under
  // way. By one caller; no effect a second time.
  void Close();

  // Any thread.
  Statistics statistics() const;

 private:
  // Counts `n` spans that can't be exported.
  void Drop(std::size_t n);
  void Run();
  void TakeAll();
  std::chrono::steady_clock::time_point Deadline(const std::stop_token& stop);
  void Export(const SpanBatch& batch,
              std::chrono::steady_clock::time_point deadline);

  const Options options_;
  Spinlock lock_;
  SpanBatch queue_ FLARE_GUARDED_BY(lock_);  // Has room for max_queue.
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  fiber::Semaphore full_{0};  // [BE2]
  std::atomic<std::uint64_t> exported_{0};
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<std::uint64_t> failed_{0};
  // The fiber's.
  SpanBatch taken_;  // Has room for max_queue.
  rpc::LogThrottle failure_log_{60'000'000'000};
  std::optional<std::chrono::steady_clock::time_point> last_deadline_;
  std::stop_source stop_;
  Fiber fiber_;
};

}  // namespace flare

#endif  // FLARE_RPC_TRACING_BATCH_EXPORTER_H_

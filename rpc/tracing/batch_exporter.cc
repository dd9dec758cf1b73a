// The queue, between the callers of Add() and the fiber:
//
//  [BE1] queue_ never has more than max_queue spans. A span that finds it full
//        or closed is dropped and counted, so that calls never wait for a
//        collector. As many more may be in the fiber's hands. Close() closes it
//        first: the fiber's last look finds all spans that were not dropped.
//  [BE2] The caller that makes the queue as long as a batch gives a unit to
//        full_. The fiber takes all batches each time it wakes up, so that a
//        unit too many costs it a look, and one that it has taken early no more
//        than the rest of an interval.
#include "flare/rpc/tracing/batch_exporter.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/describe_exception.h"
#include "flare/base/string.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare {

namespace {

// Other exceptions than std::bad_alloc become errors.
Status ExportBy(SpanExporter* exporter, const SpanBatch& batch,
                std::chrono::steady_clock::time_point deadline) {
  try {
    return exporter->Export(batch, deadline);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    const std::exception_ptr thrown = std::current_exception();
    if (thrown == nullptr) throw;  // The end of a thread.
    return Status(rpc::STATUS_FAILED,
                  "an exporter has thrown " + DescribeException(thrown));
  }
}

}  // namespace

BatchExporter::BatchExporter(Options options) : options_(std::move(options)) {
  queue_.reserve(options_.max_queue);
  taken_.reserve(options_.max_queue);
  fiber_ = Fiber([this] { Run(); });
}

BatchExporter::~BatchExporter() { Close(); }

void BatchExporter::Add(std::shared_ptr<const SpanData> span) {
  bool full = false;
  {
    ScopedLock guard(lock_);
    if (!closed_ && queue_.size() < options_.max_queue) {
      queue_.push_back(std::move(span));  // Within its capacity.
      full = queue_.size() == options_.max_batch;
    }
  }
  if (span != nullptr) {  // [BE1]
    Drop(1);
  } else if (full) {
    full_.release();  // [BE2]
  }
}

// relaxed, here and below: counts that order nothing else.
void BatchExporter::Drop(std::size_t n) {
  dropped_.fetch_add(n, std::memory_order_relaxed);
}

void BatchExporter::Close() {
  if (!fiber_.joinable()) return;
  {
    ScopedLock guard(lock_);
    closed_ = true;
  }
  stop_.request_stop();
  fiber_.join();
}

void BatchExporter::Run() {
  const std::stop_token stop = stop_.get_token();
  for (bool last = false; !last;) {
    static_cast<void>(full_.try_acquire_for(stop, options_.interval));
    last = stop.stop_requested();
    TakeAll();
    for (auto at = taken_.begin(); at != taken_.end();) {
      const auto size = std::min(options_.max_batch,
                                 static_cast<std::size_t>(taken_.end() - at));
      const auto end = at + static_cast<std::ptrdiff_t>(size);
      try {
        Export(SpanBatch(at, end), Deadline(stop));
      } catch (const std::bad_alloc&) {  // The next ones may find memory.
        Drop(size);
      }
      at = end;
    }
  }
}

void BatchExporter::TakeAll() {
  taken_.clear();
  ScopedLock guard(lock_);
  taken_.swap(queue_);
}

// The time for the next Export(). All that come after the stop share one.
std::chrono::steady_clock::time_point BatchExporter::Deadline(
    const std::stop_token& stop) {
  const auto deadline = ReadSteadyClock() + options_.timeout;
  if (!stop.stop_requested()) return deadline;
  if (!last_deadline_) last_deadline_ = deadline;
  return *last_deadline_;
}

void BatchExporter::Export(const SpanBatch& batch,
                           std::chrono::steady_clock::time_point deadline) {
  Status failure;
  bool memory = true;
  for (const auto& exporter : options_.exporters) {
    try {
      Status status = ExportBy(exporter.get(), batch, deadline);
      if (!status.ok()) failure = std::move(status);
    } catch (const std::bad_alloc&) {  // The others may find some.
      memory = false;
    }
  }
  if (!memory) return Drop(batch.size());
  if (failure.ok()) {
    exported_.fetch_add(batch.size(), std::memory_order_relaxed);
    return;
  }
  if (const auto left_out = failure_log_.Admit()) {
    LOG(WARNING) << CountOf(batch.size(), "span")
                 << " of traces can't be exported: "
                 << OneLine(failure.ToString())
                 << rpc::LogThrottle::Note(*left_out);
  }
  failed_.fetch_add(batch.size(), std::memory_order_relaxed);
}

BatchExporter::Statistics BatchExporter::statistics() const {
  return {.exported = exported_.load(std::memory_order_relaxed),
          .dropped = dropped_.load(std::memory_order_relaxed),
          .failed = failed_.load(std::memory_order_relaxed)};
}

}  // namespace flare

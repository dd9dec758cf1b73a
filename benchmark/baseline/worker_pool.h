// Threads that serve calls behind one shared queue: the workers of gdt-tp.

#ifndef BENCHMARK_BASELINE_WORKER_POOL_H_
#define BENCHMARK_BASELINE_WORKER_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "benchmark/baseline/call.h"
#include "benchmark/baseline/server_connection.h"
#include "example/rpc/work.h"

namespace baseline {

class WorkerPool {
 public:
  WorkerPool(std::size_t threads, const example::WorkSource& work);
  // Waits for running calls; calls that are still queued are dropped. Before
  // the loops whose connections they came from are destroyed.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // In order, each by the first worker that is free; their loops send the
  // replies. Thread-safe; blocks for a short lock only.
  void Submit(CallQueue&& calls);

 private:
  void Work();

  const example::WorkSource work_;
  // Guards the next members.
  std::mutex mutex_;
  std::condition_variable wanted_;
  CallQueue queue_;
  std::size_t waiting_ = 0;
  bool stopped_ = false;

  std::vector<std::thread> threads_;
};

// Collects the calls of a read, for the pool.
class PoolHandler final : public CallHandler {
 public:
  explicit PoolHandler(WorkerPool* pool) : pool_(pool) {}
  void Handle(Call* call) override { calls_.PushBack(call); }
  void EndOfBatch() override {
    if (!calls_.empty()) pool_->Submit(std::move(calls_));
  }

 private:
  WorkerPool* const pool_;
  CallQueue calls_;
};

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_WORKER_POOL_H_

// The threads that blocking regions (blocking_region.h) run on; one pool for a
// runtime. Rules in blocking_pool.cc.

#ifndef FLARE_FIBER_BLOCKING_POOL_H_
#define FLARE_FIBER_BLOCKING_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/scheduler/blocking_visit.h"
#include "flare/fiber/scheduler/carrier.h"

namespace flare::fiber {

class BlockingPool;
class SchedulingGroup;
class Shutdown;

// One thread of the pool: serves regions, one at a time.
class BlockingThread {
 public:
  BlockingThread(BlockingPool* pool, std::uint64_t number);

  BlockingThread(const BlockingThread&) = delete;
  BlockingThread& operator=(const BlockingThread&) = delete;

  // The visit of the region that is served by the calling thread; nullptr if it
  // is no such thread, or idle. Never inlined, like CurrentWorker().
  static BlockingVisit* CurrentVisit() noexcept;

 private:
  friend class BlockingPool;
  friend class BlockingRegion;

  void Main();
  void Serve(BlockingVisit* visit);
  void RunVisit(BlockingVisit* visit);
  void RunNear(SchedulingGroup* group);
  // Ends the idle wait, with a region to serve or (nullptr) none any more.
  void Assign(BlockingVisit* visit);

  BlockingPool* const pool_;
  const std::uint64_t number_;

  // Idle wait [BP2].
  std::atomic<std::uint32_t> assigned_{0};
  BlockingVisit* assignment_ = nullptr;
  BlockingThread* idle_previous_ = nullptr;
  BlockingThread* idle_next_ = nullptr;
  bool idle_ = false;

  // This thread's, while it serves one.
  BlockingVisit* visit_ = nullptr;
  SchedulingGroup* group_ = nullptr;  // The thread is bound to its CPUs.
  int* errno_ = nullptr;
  Carrier::ExceptionGlobals* exception_globals_ = nullptr;
  void* stack_pointer_ = nullptr;
  const void* stack_bottom_ = nullptr;  // For AddressSanitizer.
  std::size_t stack_size_ = 0;
  void* tsan_fiber_ = nullptr;
  void* fake_stack_ = nullptr;

  std::thread thread_;
};

class BlockingPool {
 public:
  // At most `limit` threads, each ending after `idle_ns` without work.
  BlockingPool(std::size_t limit, std::int64_t idle_ns, Shutdown* shutdown);
  ~BlockingPool();

  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  // Has `visit` served, by a thread that is idle or new or, at the limit, as
  // soon as one is done. On a worker, after the region's fiber was left.
  void Run(BlockingVisit* visit);

  // Ends all threads. No region is left; nobody calls Run() any more.
  void Stop();

  // Threads now, idle ones included.
  std::size_t threads() const noexcept {
    return live_.load(std::memory_order_relaxed);  // A statistic.
  }

  Shutdown* shutdown() const noexcept { return shutdown_; }

 private:
  friend class BlockingThread;

  void Queue(BlockingVisit* visit) FLARE_REQUIRES(lock_);
  BlockingVisit* Dequeue() FLARE_REQUIRES(lock_);
  void AddIdle(BlockingThread* thread) FLARE_REQUIRES(lock_);
  void RemoveIdle(BlockingThread* thread) FLARE_REQUIRES(lock_);
  void StartThread(BlockingVisit* visit, std::uint64_t number);
  // Waits for the visit that `thread` is to serve next, and returns it.
  // nullptr: the thread is to end.
  BlockingVisit* Next(BlockingThread* thread);
  // False: it isn't to end, there is something to serve.
  bool End(BlockingThread* thread);

  const std::size_t limit_;
  const std::int64_t idle_ns_;
  Shutdown* const shutdown_;

  Spinlock lock_;
  BlockingVisit* queue_head_ FLARE_GUARDED_BY(lock_) = nullptr;
  BlockingVisit* queue_tail_ FLARE_GUARDED_BY(lock_) = nullptr;
  BlockingThread* idle_ FLARE_GUARDED_BY(lock_) = nullptr;   // Latest first.
  BlockingThread* ended_ FLARE_GUARDED_BY(lock_) = nullptr;  // To be joined.
  std::uint64_t started_ FLARE_GUARDED_BY(lock_) = 0;
  bool stopping_ FLARE_GUARDED_BY(lock_) = false;
  std::atomic<std::uint32_t> live_{0};  // Changed under lock_.
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_BLOCKING_POOL_H_

// Returns the memory that a burst of work has left behind: that of stacks that
// aren't needed any more (stack.h), and free memory of the general allocator
// (free_memory.h in base/).
//
// A thread of its own does it, since that takes long after a large burst, and
// workers have better things to do. It looks every few seconds while workers
// run, until all have been idle long enough and there is nothing left to
// return. Then it sleeps without limit, until a worker wakes up.

#ifndef FLARE_FIBER_MEMORY_WATCH_H_
#define FLARE_FIBER_MEMORY_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "flare/fiber/scheduler/poked_thread.h"

namespace flare::fiber {

class SchedulingGroup;

class MemoryWatch {
 public:
  struct Options {
    // Stacks that weren't needed for half of this, up to all of it, return
    // their memory. 0: never.
    std::int64_t stack_idle_ns = 10'000'000'000;
    // All free memory of the allocator is returned when no task has run for so
    // long. While some do, every half of this: with jemalloc, memory that has
    // been free for long; with glibc all of it, if few tasks run. 0: never.
    std::int64_t heap_idle_ns = 10'000'000'000;
  };

  MemoryWatch(std::vector<SchedulingGroup*> groups, const Options& options);
  ~MemoryWatch();  // Stop() first.

  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  // Throws std::system_error if there is no thread.
  void Start();
  void Stop();

  // For workers to poke: one has woken, and there may be something to return
  // later [MW1].
  PokedThread* thread() noexcept { return &thread_; }

  // Does it sleep without limit? For tests.
  bool asleep() const noexcept { return thread_.asleep(); }

 private:
  void Main();
  // Whether a worker is awake, or has been since the last look.
  bool Changed() const;
  // Looks at the workers. True: one is awake.
  bool Look(std::int64_t now_ns);
  void TrimStacks(std::int64_t now_ns);
  bool HasWarmStacks() const;
  void TrimHeap(std::int64_t now_ns);
  // For an allocator that doesn't know how old free memory is.
  void SearchHeap(std::int64_t now_ns);
  std::int64_t NextLook() const;

  const std::vector<SchedulingGroup*> groups_;
  const Options options_;
  std::uint64_t rouses_seen_ = 0;
  std::uint64_t tasks_seen_ = 0;
  std::int64_t last_active_ns_ = 0;  // When a task was last seen to run.
  std::int64_t next_stacks_ns_ = 0;
  std::int64_t next_heap_ns_ = 0;
  bool heap_returned_ = false;  // All of it, since then; or it never is.
  // SearchHeap()'s.
  std::uint64_t tasks_then_ = 0;
  std::size_t resident_then_ = 0;
  std::int64_t next_search_ns_ = 0;
  int stretched_ = 1;  // How many looks it is from one search to the next.
  PokedThread thread_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_MEMORY_WATCH_H_

// Work that threads do besides running fibers: the guards of fiber/diagnostics,
// which would otherwise be below the code that they look at. A runtime puts
// them here as it starts.

#ifndef FLARE_FIBER_THREAD_HOOKS_H_
#define FLARE_FIBER_THREAD_HOOKS_H_

namespace flare::fiber {

struct WaitReason;  // carrier.h

// Each of the three may be null.
struct ThreadHooks {
  // First and last on each thread that runs fibers: a worker's, or one of the
  // blocking pool's.
  void (*start)() = nullptr;
  void (*end)() = nullptr;
  // On a worker whose thread holds a ThreadMutex, in the fiber that is about to
  // be suspended.
  void (*suspension_under_lock)(const WaitReason& reason) = nullptr;
};

// For the whole process. Before threads that run fibers start.
void SetThreadHooks(const ThreadHooks& hooks);

void OnFiberThreadStart();
void OnFiberThreadEnd();
[[gnu::noinline, gnu::cold]] void OnSuspensionUnderLock(
    const WaitReason& reason);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_HOOKS_H_

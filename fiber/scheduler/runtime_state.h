// The running runtime, as far as its groups and blocking threads, for code
// inside fiber/. fiber/runtime.h starts and ends it.

#ifndef FLARE_FIBER_RUNTIME_STATE_H_
#define FLARE_FIBER_RUNTIME_STATE_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace flare::fiber {

class BlockingPool;
class SchedulingGroup;

struct RuntimeState {
  RuntimeState();
  ~RuntimeState();

  RuntimeState(const RuntimeState&) = delete;
  RuntimeState& operator=(const RuntimeState&) = delete;

  std::vector<std::unique_ptr<SchedulingGroup>> groups;
  std::unique_ptr<BlockingPool> blocking;  // Threads of blocking regions.
};

// The running one; nullptr: none is. Any thread.
RuntimeState* CurrentRuntime() noexcept;
// Returns the running state, or ends the process with a clear message if there
// is none.
RuntimeState* MustBeRunning();

// Makes `state` the running one, before its workers start; nullptr: none, after
// they have ended. Returns the one before. By fiber/runtime.h, and in a forked
// child: async-signal-safe.
RuntimeState* SetCurrentRuntime(RuntimeState* state) noexcept;

// The group of the calling worker; for a plain thread the one that was dealt to
// it. Dies as MustBeRunning() does.
SchedulingGroup* NearestGroup();

SchedulingGroup* GetGroup(std::size_t index);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_RUNTIME_STATE_H_

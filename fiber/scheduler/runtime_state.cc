#include "flare/fiber/scheduler/runtime_state.h"

#include <atomic>

#include "flare/fiber/scheduler/blocking_pool.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// Set before the workers start and cleared after they ended; read by everyone.
std::atomic<RuntimeState*> current_runtime{nullptr};

// Deals plain threads out over the groups. noinline: the functions that call
// this run on fibers, too, where it isn't reached.
[[gnu::noinline]] std::size_t ThreadTurn() {
  static std::atomic<std::size_t> next{0};
  // relaxed: only the number matters.
  static thread_local const std::size_t turn =
      next.fetch_add(1, std::memory_order_relaxed);
  return turn;
}

}  // namespace

RuntimeState::RuntimeState() = default;
RuntimeState::~RuntimeState() = default;

RuntimeState* CurrentRuntime() noexcept {
  // acquire: pairs with the release in SetCurrentRuntime.
  return current_runtime.load(std::memory_order_acquire);
}

RuntimeState* MustBeRunning() {
  RuntimeState* const current = CurrentRuntime();
  if (current == nullptr && IsForkedChild()) DieAsForkedChild();
  CHECK(current != nullptr)
      << "the fiber runtime is not running: call this inside flare::Start() "
         "(or between fiber::StartRuntime() and TerminateRuntime())";
  return current;
}

RuntimeState* SetCurrentRuntime(RuntimeState* state) noexcept {
  // acq_rel: release pairs with the acquire in CurrentRuntime; the caller reads
  // the one before.
  return current_runtime.exchange(state, std::memory_order_acq_rel);
}

SchedulingGroup* GetGroup(std::size_t index) {
  RuntimeState* const state = MustBeRunning();
  CHECK_LT(index, state->groups.size()) << "no such scheduling group";
  return state->groups[index].get();
}

SchedulingGroup* NearestGroup() {
  if (Worker* const worker = CurrentWorker()) return worker->group();
  RuntimeState* const state = MustBeRunning();  // A forked child fails here.
  if (SchedulingGroup* const group = CurrentRegionGroup()) return group;
  return state->groups[ThreadTurn() % state->groups.size()].get();
}

}  // namespace flare::fiber

// The way of a fiber through a region:
//
//   on a worker          Enter() switches to another carrier, as SuspendFiber()
//   on that carrier      ... whose hook hands the region to the pool
//   on a thread of it    BlockingThread::RunVisit() switches to the fiber
//   on that thread       Leave() switches back to the thread's own stack
//   on its own stack     ... which queues the fiber in its group
//   on a worker          the fiber arrives, as one that was suspended
//
// [BR1] As everywhere, nobody can switch to the fiber before its registers are
//       saved: the step that makes it reachable runs on the stack that was
//       switched to (carrier.h [C2]).
// [BR2] errno and the exception globals go with the fiber at each step, and the
//       thread that is left has none (carrier.h [C4]).
// [BR3] From before the worker is left until after the fiber is queued again it
//       counts as an outsider, for whom the shutdown waits (shutdown.cc [SD3]).
// [BR4] During the region the carrier shows as suspended, by "BlockingRegion",
//       without a stack pointer: nobody may walk a stack that is in use.
#include "flare/fiber/blocking_region.h"

#include <atomic>

#include "flare/fiber/scheduler/blocking_pool.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/shutdown.h"
#include "flare/fiber/scheduler/thread_hooks.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/sanitizer.h"

namespace flare::fiber {

BlockingRegion::BlockingRegion() {
  Worker* const worker = CurrentWorker();
  if (worker != nullptr) Enter(worker);
}

BlockingRegion::~BlockingRegion() {
  if (visit_.carrier != nullptr) Leave();
}

void BlockingRegion::Enter(Worker* worker) {
  Carrier* const self = worker->current_;
  visit_.carrier = self;
  visit_.group = worker->group_;
  MustBeRunning()->blocking->shutdown()->AddOutsider();  // [BR3]

  Worker::Bump(worker->counters_.suspends);
  self->errno_ = *worker->errno_;  // [BR2]
  self->exception_globals_ = *worker->exception_globals_;
  *worker->exception_globals_ = {};
  self->reason = {"BlockingRegion", this};
  self->suspended_at_ns = worker->estimate_since_ns_;
  // relaxed: a reader knows that it sees a snapshot.
  self->suspended.store(true, std::memory_order_relaxed);

  worker->hook_ = [](void* visit) {  // [BR1]
    MustBeRunning()->blocking->Run(static_cast<BlockingVisit*>(visit));
  };
  worker->hook_argument_ = &visit_;
  if (worker->thread_locks_held_ != 0) OnSuspensionUnderLock(self->reason);
  Carrier* const next = worker->NextCarrier();
  worker->current_ = next;
  sanitizer::StartSwitch(
      &self->asan_fake_stack_,
      static_cast<char*>(next->low_) + next->stacks_->guard_size(),
      next->stacks_->stack_size() - next->stacks_->guard_size(),
      next->tsan_fiber_);
  void* const now = flare_switch_context(&self->stack_pointer_,
                                         next->TakeStackPointer(), worker);
  if (visit_.thread == nullptr) {  // The pool had no thread for it.
    visit_.carrier = nullptr;
    ArriveOnWorker(static_cast<Worker*>(now));
    return;
  }
  BlockingThread* const thread = visit_.thread;
  const void* bottom = nullptr;
  std::size_t size = 0;
  sanitizer::FinishSwitch(self->asan_fake_stack_, &bottom, &size);
  if (thread->stack_size_ == 0) {
    thread->stack_bottom_ = bottom;
    thread->stack_size_ = size;
  }
  *thread->errno_ = self->errno_;  // [BR2]
  *thread->exception_globals_ = self->exception_globals_;
}

void BlockingRegion::Leave() {
  Carrier* const self = visit_.carrier;
  BlockingThread* const thread = visit_.thread;
  self->errno_ = *thread->errno_;  // [BR2]
  self->exception_globals_ = *thread->exception_globals_;
  *thread->exception_globals_ = {};
  sanitizer::StartSwitch(&self->asan_fake_stack_, thread->stack_bottom_,
                         thread->stack_size_, thread->tsan_fiber_);
  void* const now = flare_switch_context(&self->stack_pointer_,
                                         thread->stack_pointer_, nullptr);
  ArriveOnWorker(static_cast<Worker*>(now));
}

// As at the end of SuspendFiber().
void BlockingRegion::ArriveOnWorker(Worker* worker) {
  Carrier* const self = worker->current_;
  worker->AfterSwitch(self);
  // relaxed: as in Enter.
  self->suspended.store(false, std::memory_order_relaxed);
  *worker->errno_ = self->errno_;  // [BR2]
  *worker->exception_globals_ = self->exception_globals_;
}

}  // namespace flare::fiber

// The way of a fiber through a region:
//
//   on a worker          Enter() switches to another carrier, as SuspendFiber()
//   on that carrier      ... whose hook hands the region to the pool
//   on a thread of it    RunOn() switches to the fiber: the region begins
//   on that thread       Leave() switches back to the thread's own stack
//   on its own stack     ... which queues the fiber in its group
//   on a worker          the fiber arrives, as one that was suspended
//
// [BR1] As everywhere, nobody can switch to the fiber before its registers are
//       saved: what makes it reachable runs on the stack that was switched to
//       (carrier.h [C2]).
// [BR2] errno and the exception globals go with the fiber at each step, and the
//       thread that is left has none (carrier.h [C4]).
// [BR3] From before the worker is left until after the fiber is queued again it
//       counts as an outsider, for whom the shutdown waits (shutdown.cc [SD3]).
// [BR4] During the region the carrier shows as suspended, by "BlockingRegion",
//       without a stack pointer: nobody may walk a stack that is in use.
#include "flare/fiber/blocking_region.h"

#include <atomic>

#include "flare/fiber/diagnostics/thread_lock_check.h"
#include "flare/fiber/scheduler/blocking_pool.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/shutdown.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/startup/runtime_state.h"

namespace flare::fiber {

BlockingRegion::BlockingRegion() {
  Worker* const worker = CurrentWorker();
  if (worker != nullptr) Enter(worker);
}

BlockingRegion::~BlockingRegion() {
  if (carrier_ != nullptr) Leave();
}

void BlockingRegion::Enter(Worker* worker) {
  Carrier* const self = worker->current_;
  carrier_ = self;
  group_ = worker->group_;
  GetBlockingPool()->shutdown()->AddOutsider();  // [BR3]

  Worker::Bump(worker->counters_.suspends);
  self->errno_ = *worker->errno_;  // [BR2]
  self->exception_globals_ = *worker->exception_globals_;
  *worker->exception_globals_ = {};
  self->reason = {"BlockingRegion", this};
  self->suspended_at_ns = worker->estimate_since_ns_;
  // relaxed: whoever looks knows that what it sees is a snapshot.
  self->suspended.store(true, std::memory_order_relaxed);

  worker->hook_ = [](void* region) {  // [BR1]
    GetBlockingPool()->Run(static_cast<BlockingRegion*>(region));
  };
  worker->hook_argument_ = this;
  if (worker->thread_locks_held_ != 0) ReportSuspensionUnderLock(self->reason);
  Carrier* const next = worker->NextCarrier();
  worker->current_ = next;
  sanitizer::StartSwitch(
      &self->asan_fake_stack_,
      static_cast<char*>(next->low_) + next->stacks_->guard_size(),
      next->stacks_->stack_size() - next->stacks_->guard_size(),
      next->tsan_fiber_);
  void* const now = flare_switch_context(&self->stack_pointer_,
                                         next->TakeStackPointer(), worker);
  if (thread_ == nullptr) {  // The pool had no thread for it.
    carrier_ = nullptr;
    ArriveOnWorker(static_cast<Worker*>(now));
    return;
  }
  BlockingThread* const thread = thread_;
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

void BlockingRegion::RunOn(BlockingThread* thread) {
  thread_ = thread;
  sanitizer::StartSwitch(
      &thread->fake_stack_,
      static_cast<char*>(carrier_->low_) + carrier_->stacks_->guard_size(),
      carrier_->stacks_->stack_size() - carrier_->stacks_->guard_size(),
      carrier_->tsan_fiber_);
  flare_switch_context(&thread->stack_pointer_, carrier_->TakeStackPointer(),
                       thread);  // [BR4]
  sanitizer::FinishSwitch(thread->fake_stack_);
}

void BlockingRegion::Leave() {
  Carrier* const self = carrier_;
  BlockingThread* const thread = thread_;
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

Carrier* CurrentFiber() {
  if (Carrier* const carrier = CurrentCarrier()) return carrier;
  const BlockingRegion* const region = BlockingThread::CurrentRegion();
  return region == nullptr ? nullptr : region->carrier_;
}

SchedulingGroup* CurrentRegionGroup() noexcept {
  const BlockingRegion* const region = BlockingThread::CurrentRegion();
  return region == nullptr ? nullptr : region->group_;
}

}  // namespace flare::fiber

#include "flare/fiber/scheduler/carrier.h"

#include <cerrno>
#include <new>

#include "flare/fiber/diagnostics/thread_lock_check.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/sanitizer.h"
#include "flare/fiber/stack/stack.h"
#include "flare/fiber/stack_profile.h"
#include "glog/logging.h"

namespace flare::fiber {

Carrier::Carrier(StackAllocator* stacks, void* low)
    : stacks_(stacks), low_(low) {
  resume_.run = &Carrier::Resume;
  resume_.carrier = this;
  tsan_fiber_ = sanitizer::CreateTsanFiber();
  // Everything below this object is the stack.
  stack_pointer_ = MakeContext(this, &Carrier::Enter, this);
}

Carrier* Carrier::Create(StackAllocator* stacks) {
  void* const low = stacks->Allocate();
  if (low == nullptr) return nullptr;
  char* const place =
      static_cast<char*>(low) + stacks->stack_size() - kCarrierBytes;
  return new (place) Carrier(stacks, low);
}

void Carrier::Destroy() {
  sanitizer::DestroyTsanFiber(tsan_fiber_);
#ifdef FLARE_ASAN
  // Frames that were switched away from for good left their shadow poisoned.
  __asan_unpoison_memory_region(
      static_cast<char*>(low_) + stacks_->guard_size(),
      stacks_->stack_size() - stacks_->guard_size());
#endif
  StackAllocator* const stacks = stacks_;
  void* const low = low_;
  this->~Carrier();
  stacks->Free(low);
}

void Carrier::Enter(void* self, void* worker) {
  static_cast<Worker*>(worker)->AfterSwitch(static_cast<Carrier*>(self));
  if (IsStackProfileOn()) {
    Worker::Loop<true>(static_cast<Carrier*>(self));
  } else {
    Worker::Loop<false>(static_cast<Carrier*>(self));
  }
}

// The function of resume tasks, by which they are known.
void Carrier::Resume(Task*) {
  LOG(FATAL) << "a resume task is for the loop to see to, not to be called";
}

// Inlined into its two callers: see SwitchContext().
inline Worker* Worker::SwitchTo(Carrier* from, Carrier* to) {
  current_ = to;
  sanitizer::StartSwitch(
      &from->asan_fake_stack_,
      static_cast<char*>(to->low_) + to->stacks_->guard_size(),
      to->stacks_->stack_size() - to->stacks_->guard_size(), to->tsan_fiber_);
  auto* const now = static_cast<Worker*>(
      SwitchContext(&from->stack_pointer_, to->TakeStackPointer(), this));
  now->AfterSwitch(from);
  return now;
}

// Not noexcept: an exception that leaves a task finds no handler up to the end
// of the stack, and so ends the process where it was thrown, with nothing
// unwound (terminate_handler.h).
template <bool kProfiled>
void Worker::Loop(Carrier* self) {
  if constexpr (kProfiled) StartStackProfile(*self);
  Worker* worker = CurrentWorker();
  Task* task = worker->NextOnArrival();
  for (;;) {
    if (task == nullptr) worker->LeaveToThread();
    if (Worker::IsResumption(task)) {
      // This carrier, with no task on it, becomes a spare; the thread continues
      // the suspended fiber. It comes back when the spare is needed.
      Bump(worker->counters_.resumes);
      worker->vacated_ = self;
      worker = worker->SwitchTo(
          self, static_cast<Carrier::ResumeTask*>(task)->carrier);
      task = worker->NextOnArrival();
      continue;
    }
    self->entry = task->run;
    task->run(task);
    worker = CurrentWorker();  // Possibly another one than before [C3].
    if (self->locals != nullptr) [[unlikely]] {
      DestroyFiberLocals(self);  // May block, as part of the task.
      worker = CurrentWorker();
    }
    RestoreFloatingPointModes();  // [C5]
    self->fiber_id = 0;
    self->name = nullptr;
    if constexpr (kProfiled) RecordStackUse(*self);
    task = worker->Next();
  }
}

void SuspendFiber(WaitReason reason, void (*hook)(void*), void* argument) {
  Worker* const worker = CurrentWorker();
  Carrier* const self = worker->current_;
  Worker::Bump(worker->counters_.suspends);

  self->group_ = worker->group_;
  self->errno_ = *worker->errno_;  // [C4]
  Carrier::ExceptionGlobals* const exceptions = worker->exception_globals_;
  const bool in_exception =
      exceptions->caught != nullptr || exceptions->uncaught != 0;
  if (in_exception) [[unlikely]] {
    self->exception_globals_ = *exceptions;
    *exceptions = {};
  }

  self->reason = reason;
  self->suspended_at_ns = worker->estimate_since_ns_;
  // relaxed: whoever looks knows that what it sees is a snapshot.
  self->suspended.store(true, std::memory_order_relaxed);

  worker->hook_ = hook;
  worker->hook_argument_ = argument;
  // Here, where all arguments are stored away, it costs nothing.
  if (worker->thread_locks_held_ != 0) [[unlikely]] {
    ReportSuspensionUnderLock(self->reason);
  }
  Worker* const now = worker->SwitchTo(self, worker->NextCarrier());  // [C3]
  self->suspended.store(false, std::memory_order_relaxed);  // As above.
  *now->errno_ = self->errno_;
  if (in_exception) [[unlikely]] {
    *now->exception_globals_ = self->exception_globals_;
  }
}

void ResumeFiber(Carrier* carrier) {
  SchedulingGroup* const group = carrier->group_;
  Worker* const worker = CurrentWorker();
  if (worker != nullptr && worker->group() == group) [[likely]] {
    worker->Push(carrier->resume_task());
  } else {
    group->Inject(carrier->resume_task());
  }
}

Carrier* CurrentCarrier() {
  Worker* const worker = CurrentWorker();
  return worker == nullptr ? nullptr : worker->current();
}

// Where to go on when the current task suspends: straight in the fiber that is
// next in the queue, if that is what comes next, and else in the loop.
Carrier* Worker::NextCarrier() {
  if (--until_maintenance_ == 0) [[unlikely]] {
    until_maintenance_ = 1;  // For the loop.
    return TakeSpare();
  }
  Task* const task = run_queue_.Pop();
  if (task == nullptr) return TakeSpare();
  if (!IsResumption(task)) {
    handed_to_loop_ = task;
    return TakeSpare();
  }
  Bump(counters_.tasks);
  Bump(counters_.resumes);
  return static_cast<Carrier::ResumeTask*>(task)->carrier;
}

// Arriving on `self`, maybe on another thread than it was left by.
void Worker::AfterSwitch(Carrier* self) {
  const void* bottom = nullptr;
  std::size_t size = 0;
  sanitizer::FinishSwitch(self->asan_fake_stack_, &bottom, &size);
  if (thread_stack_size_ == 0) {  // The first switch of this thread.
    thread_stack_bottom_ = bottom;
    thread_stack_size_ = size;
  }
  if (vacated_ != nullptr) {  // [C2]
    AddSpare(vacated_);
    vacated_ = nullptr;
  } else if (hook_ != nullptr) {
    void (*const hook)(void*) = hook_;
    hook_ = nullptr;
    hook(hook_argument_);
  }
}

}  // namespace flare::fiber

#include "flare/fiber/carrier.h"

#include <cerrno>
#include <new>

#include "flare/fiber/context.h"
#include "flare/fiber/sanitizer.h"
#include "flare/fiber/scheduling_group.h"
#include "flare/fiber/stack.h"
#include "flare/fiber/worker.h"
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
  constexpr std::size_t kSize = (sizeof(Carrier) + 63) & ~std::size_t{63};
  char* const place = static_cast<char*>(low) + stacks->stack_size() - kSize;
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
  Worker::Loop();
}

// Runs on the loop of some carrier, which has no task on it: that one becomes a
// spare, and the thread continues the suspended fiber.
void Carrier::Resume(Task* task) {
  Carrier* const fiber = static_cast<ResumeTask*>(task)->carrier;
  Worker* const worker = CurrentWorker();
  Carrier* const empty = worker->current_;
  Worker::Bump(worker->counters_.resumes);
  worker->vacated_ = empty;
  worker->SwitchTo(empty, fiber);
  // Much later: `empty` has been taken as a spare and goes on with its loop.
}

void SuspendFiber(WaitReason reason, void (*hook)(void*), void* argument) {
  Worker* const worker = CurrentWorker();
  Carrier* const self = worker->current_;
  Worker::Bump(worker->counters_.suspends);

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
  Worker* const now = worker->SwitchTo(self, worker->TakeSpare());  // [C3]
  self->suspended.store(false, std::memory_order_relaxed);          // As above.
  *now->errno_ = self->errno_;
  if (in_exception) [[unlikely]] {
    *now->exception_globals_ = self->exception_globals_;
  }
}

Carrier* CurrentCarrier() {
  Worker* const worker = CurrentWorker();
  return worker == nullptr ? nullptr : worker->current();
}

Worker* Worker::SwitchTo(Carrier* from, Carrier* to) {
  current_ = to;
  sanitizer::StartSwitch(
      &from->asan_fake_stack_,
      static_cast<char*>(to->low_) + to->stacks_->guard_size(),
      to->stacks_->stack_size() - to->stacks_->guard_size(), to->tsan_fiber_);
  auto* const now = static_cast<Worker*>(
      flare_switch_context(&from->stack_pointer_, to->stack_pointer_, this));
  now->AfterSwitch(from);
  return now;
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

Carrier* Worker::TakeSpare() {
  if (spares_ != nullptr) {
    Carrier* const carrier = spares_;
    spares_ = carrier->next_spare_;
    --spare_count_;
    return carrier;
  }
  Carrier* const carrier = Carrier::Create(group_->stacks());
  LOG_IF(FATAL, carrier == nullptr)
      << "No memory for another fiber stack of "
      << group_->stacks()->stack_size() << " bytes; "
      << group_->stacks()->allocated() << " are in use. Lower "
      << "--flare_fiber_stack_size or the number of calls served at once.";
  return carrier;
}

void Worker::AddSpare(Carrier* carrier) {
  constexpr std::size_t kMaxSpares = 64;
  if (spare_count_ >= kMaxSpares) {
    carrier->Destroy();
    return;
  }
  carrier->next_spare_ = spares_;
  spares_ = carrier;
  ++spare_count_;
}

}  // namespace flare::fiber

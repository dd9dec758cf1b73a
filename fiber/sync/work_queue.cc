// [WQ1] drain_ is queued or running exactly while draining_ is set. The caller
//       that makes the queue non-empty sets it and submits drain_; Drain()
//       clears it when it finds the queue empty, under the lock.
// [WQ2] done_ is set once: by Stop() if nothing is left then, else by the
//       Drain() that finds the queue empty and stopped. Nobody touches the
//       queue after that: it may be destroyed.
#include "flare/fiber/work_queue.h"

#include <utility>

#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/context.h"
#include "glog/logging.h"

namespace flare::fiber {

WorkQueue::WorkQueue() {
  drain_.queue = this;
  drain_.run = &DrainTask::Run;
}

WorkQueue::~WorkQueue() {
  Stop();
  Join();
}

void WorkQueue::Join() {
  {
    ScopedLock guard(lock_);
    LOG_IF(FATAL, fiber_ != nullptr && fiber_ == CurrentFiber())
        << "a closure of a WorkQueue joins or destroys the queue: it would "
           "wait "
           "for its own end";
  }
  done_.Wait();
}

bool WorkQueue::PushItem(Item* item) {
  bool taken;
  bool submit;
  {
    ScopedLock guard(lock_);
    taken = !stopped_;
    if (taken) items_.PushBack(item);
    submit = taken && !std::exchange(draining_, true);
  }
  // From here on an item that was taken may be gone, and, unless drain_ is to
  // be submitted, the queue too [WQ1].
  if (submit) Submit(&drain_);
  if (!taken) {
    item->refused = true;
    item->run(item);
  }
  return taken;
}

void WorkQueue::Stop() {
  {
    ScopedLock guard(lock_);
    if (std::exchange(stopped_, true) || draining_) return;
  }
  done_.Set();  // [WQ2]
}

void WorkQueue::Drain() {
  // So many before others on this worker have their turn.
  constexpr int kBatch = 64;
  const Carrier* const self = CurrentCarrier();
  for (int i = 0; i < kBatch; ++i) {
    Task* item;
    bool done;
    {
      ScopedLock guard(lock_);
      item = items_.PopFront();
      if (item == nullptr) draining_ = false;
      fiber_ = item == nullptr ? nullptr : self;
      done = item == nullptr && stopped_;
    }
    if (done) done_.Set();  // [WQ2]
    if (item == nullptr) return;
    item->run(item);
    RestoreFloatingPointModes();  // As after other tasks (carrier.h [C5]).
  }
  {
    ScopedLock guard(lock_);
    fiber_ = nullptr;
  }
  Submit(&drain_);
}

}  // namespace flare::fiber

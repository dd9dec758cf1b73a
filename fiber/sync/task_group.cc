// [TG1] children_ counts the children spawned and not ended. It falls to zero
//       only under lock_, and a waiter looks at it under lock_: so a waiter
//       that finds it zero knows that the last child is done with the group, or
//       will only let go of the lock, and may destroy the group.
// [TG2] The thread that ends the last child takes the waiters off their list
//       under the lock and wakes them after it, without touching the group
//       again.
// [TG3] The stop state is made when first asked for, outside of the lock, and
//       put in place under it. A request marks stop_requested_ under the lock:
//       whichever of the two comes second sees the other and requests the stop
//       of the state.
#include "flare/fiber/task_group.h"

#include <cerrno>

#include "flare/base/describe_exception.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/worker.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

TaskGroup* CurrentTaskGroup() {
  const Carrier* const carrier = CurrentFiber();  // Also in a region.
  return carrier == nullptr ? nullptr : carrier->task_group;
}

}  // namespace

std::stop_token CurrentStopToken() {
  TaskGroup* const group = CurrentTaskGroup();
  return group == nullptr ? std::stop_token() : group->stop_token();
}

TaskGroup::TaskGroup(const std::stop_token& parent) {
  if (parent.stop_possible()) parent_stops_.emplace(parent, StopThis{this});
}

TaskGroup::~TaskGroup() {
  // Nobody stops it from outside any more. May wait for a callback that runs on
  // another thread: for as long as a request to stop takes.
  parent_stops_.reset();
  // acquire: pairs with the release in ChildEnds [TG1].
  if (children_.load(std::memory_order_acquire) != 0) RequestStop();
  static_cast<void>(WaitForChildren(WaitLimit()));
  LOG_IF(ERROR, exception_ != nullptr && !exception_seen_)
      << "a TaskGroup was destroyed without Wait() after one of its children "
         "had thrown an exception: "
      << DescribeException(exception_);
}

void TaskGroup::RequestStop() {
  std::stop_source source(std::nostopstate);
  {
    ScopedLock guard(lock_);
    // relaxed: under the lock.
    stop_requested_.store(true, std::memory_order_relaxed);
    source = stop_source_;
  }
  source.request_stop();  // [TG3]
}

std::stop_source TaskGroup::StopSource() {
  {
    ScopedLock guard(lock_);
    if (stop_source_.stop_possible()) return stop_source_;
  }
  std::stop_source fresh;
  std::stop_source source(std::nostopstate);
  bool stop;
  {
    ScopedLock guard(lock_);
    if (!stop_source_.stop_possible()) stop_source_.swap(fresh);
    source = stop_source_;
    // relaxed: under the lock.
    stop = stop_requested_.load(std::memory_order_relaxed);
  }
  if (stop) source.request_stop();  // [TG3]
  return source;
}

void TaskGroup::ChildBegins() { CurrentCarrier()->task_group = this; }

void TaskGroup::ChildFails(Status status) {
  {
    ScopedLock guard(lock_);
    if (std::exchange(failed_, true)) return;
    status_ = std::move(status);
  }
  RequestStop();
}

void TaskGroup::ChildFails(std::exception_ptr exception) {
  {
    ScopedLock guard(lock_);
    if (std::exchange(failed_, true)) return;
    exception_ = std::move(exception);
  }
  RequestStop();
}

void TaskGroup::ChildEnds() {
  EndFiberLocals();
  CurrentCarrier()->task_group = nullptr;
  // relaxed: the exchange looks again.
  std::size_t children = children_.load(std::memory_order_relaxed);
  while (children > 1) {
    // release: pairs with the acquire of the waiter that finds zero [TG1].
    if (children_.compare_exchange_weak(children, children - 1,
                                        std::memory_order_release,
                                        std::memory_order_relaxed)) {
      return;
    }
  }
  Waiter* waiters = nullptr;
  {
    ScopedLock guard(lock_);
    // acq_rel: acquire pairs with the releases above and here, for the values
    // that waiters see through the lock [TG1].
    if (children_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      waiters = waiters_.TakeAll();
    }
  }
  WaitList::WakeTaken(waiters);  // [TG2]
}

WaitResult TaskGroup::WaitForChildren(const WaitLimit& limit) {
  ScopedLock guard(lock_);
  // acquire: pairs with the release in ChildEnds [TG1].
  if (children_.load(std::memory_order_acquire) == 0) {
    return WaitResult::kWoken;
  }
  return waiters_.Wait(&guard, {"TaskGroup", this}, limit);
}

Status TaskGroup::Wait(const WaitLimit& limit) {
  CHECK(CurrentTaskGroup() != this)
      << "a child of a TaskGroup waits for all of that group's children: it "
         "would wait for itself";
  switch (WaitForChildren(limit)) {
    case WaitResult::kWoken:
      break;
    case WaitResult::kTimedOut:
      ChildFails(Status(ETIMEDOUT,
                        "the children of a TaskGroup were asked to stop: the "
                        "deadline of waiting for them has passed"));
      static_cast<void>(WaitForChildren(WaitLimit()));
      break;
    case WaitResult::kStopped:
      ChildFails(Status(ECANCELED,
                        "the children of a TaskGroup were asked to stop: who "
                        "waits for them was"));
      static_cast<void>(WaitForChildren(WaitLimit()));
      break;
  }
  bool failed;
  {
    ScopedLock guard(lock_);
    failed = failed_;
    exception_seen_ = failed_;
  }
  if (!failed) return Status();
  if (exception_ != nullptr) std::rethrow_exception(exception_);
  return status_;
}

}  // namespace flare::fiber

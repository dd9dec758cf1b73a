// How a fiber's end and its handle meet. The body, one pooled node, is the
// fiber's until it has ended, then the handle's:
//
//  [FB1] Under lock_: the fiber sets `ended`, or finds `detached` and frees the
//        body itself; the handle frees it if it finds `ended`, or else waits or
//        sets `detached`.
//  [FB2] The code that ended the fiber doesn't touch the body after letting go
//        of the lock, except if it frees it: a joiner that is woken, or gets
//        the lock, may free it.
//  [FB3] `carrier` is the one that the fiber runs on, from its start until it
//        sets `ended`. A caller that finds its own there, under lock_ and
//        before the end, is that fiber: it stays on its carrier, which then is
//        nobody else's.
#include "flare/fiber/fiber.h"

#include <atomic>
#include <new>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/fiber_local.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/task.h"
#include "glog/logging.h"

namespace flare {

struct Fiber::Body : fiber::Task {
  static Body* Make(Function<void()> f) {
    static_assert(sizeof(Body) <= fiber::kSpawnNodeBytes);
    return new (fiber::AllocateSpawnNode().memory) Body(std::move(f));
  }

  void Free() {
    this->~Body();
    fiber::FreeSpawnNode(this);
  }

  void Run() {
    // relaxed: read by others only to see that it isn't theirs [FB3].
    carrier.store(fiber::CurrentCarrier(), std::memory_order_relaxed);
    f();
    f = nullptr;              // Its captures end before the join returns,
    fiber::EndFiberLocals();  // and so do these.
    fiber::Waiter* joiner;
    {
      ScopedLock guard(lock);
      // relaxed: read by others only to see that it isn't theirs [FB3].
      carrier.store(nullptr, std::memory_order_relaxed);
      ended = true;
      joiner = joiners.TakeAll();
      if (detached) {  // [FB1]
        guard.unlock();
        Free();
        return;
      }
    }
    fiber::WaitList::WakeTaken(joiner);  // [FB2]
  }

  static void RunTask(Task* self) { static_cast<Body*>(self)->Run(); }

  explicit Body(Function<void()> f) : f(std::move(f)) { run = &Body::RunTask; }

  Function<void()> f;
  std::atomic<const fiber::Carrier*> carrier{nullptr};  // [FB3]
  Spinlock lock;
  bool ended FLARE_GUARDED_BY(lock) = false;
  bool detached FLARE_GUARDED_BY(lock) = false;
  fiber::WaitList joiners FLARE_GUARDED_BY(lock);  // One at most.
};

void Fiber::Start(const Attributes& attributes, Function<void()> f) {
  if (attributes.execution_context != nullptr) {
    f = [f = std::move(f), context = attributes.execution_context]() mutable {
      fiber::WithExecutionContextIfPresent(std::move(context), f);
    };
  }
  body_ = Body::Make(std::move(f));
  if (attributes.scheduling_group) {
    fiber::SubmitTo(*attributes.scheduling_group, body_);
  } else {
    fiber::Submit(body_);
  }
}

Fiber::~Fiber() {
  CHECK(!joinable()) << "a Fiber must be joined or detached before it is "
                        "destroyed";
}

Fiber& Fiber::operator=(Fiber&& other) noexcept {
  CHECK(!joinable()) << "a Fiber must be joined or detached before it is "
                        "assigned to";
  body_ = std::exchange(other.body_, nullptr);
  return *this;
}

bool Fiber::Join(const fiber::WaitLimit& limit) {
  CHECK(joinable()) << "join() of a Fiber that isn't joinable";
  {
    ScopedLock guard(body_->lock);
    // relaxed: see Body::Run.
    const fiber::Carrier* const runs_on =
        body_->carrier.load(std::memory_order_relaxed);
    LOG_IF(FATAL, runs_on != nullptr && runs_on == fiber::CurrentFiber())
        << "a Fiber joins itself: it would wait for its own end";
    if (!body_->ended && body_->joiners.Wait(&guard, {"Fiber", this}, limit) !=
                             fiber::WaitResult::kWoken) {
      return false;
    }
  }
  std::exchange(body_, nullptr)->Free();
  return true;
}

void Fiber::detach() {
  CHECK(joinable()) << "detach() of a Fiber that isn't joinable";
  Body* const body = std::exchange(body_, nullptr);
  {
    ScopedLock guard(body->lock);
    body->detached = true;
    if (!body->ended) return;  // It frees itself.
  }
  body->Free();
}

void StartFiberFromPthread(Function<void()> f) { fiber::Spawn(std::move(f)); }

}  // namespace flare

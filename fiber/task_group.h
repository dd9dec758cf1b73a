// TaskGroup: fibers that have all ended before a scope does.
//
//   fiber::TaskGroup group;
//   for (auto& shard : shards) {
//     group.Spawn([&](std::stop_token stop) { return shard.Load(stop); });
//   }
//   if (Status status = group.Wait(); !status.ok()) return status;
//
// Children may use whatever outlives the group by reference: its destructor
// asks them to stop and waits for them. The first failure, an error returned or
// an exception thrown by a child, asks the others to stop, and Wait() returns
// it. Stopping is a request (std::stop_token): a child that doesn't look at it
// runs to its end, and so does a wait that wasn't given it. The call of a stub
// takes no token; a callback ends it:
//
//   group.Spawn([&](std::stop_token stop) {
//     RpcClientController controller;
//     std::stop_callback cancel(stop, [&] { controller.StartCancel(); });
//     return Use(stub.Load(request, &controller));
//   });
//
// A group made by a child of another group, however deep in its calls, is
// stopped together with that one. Each group below takes about 100 bytes of the
// stack of the fiber or thread that requests the stop (or ends the first child
// that failed): more than a thousand groups inside of each other, all of whose
// stop tokens are in use, overflow a fiber's 128 KiB.
//
// A child costs one pooled node (closures beyond about 90 bytes: the heap) and
// a few atomic operations. The group's stop state is allocated only if somebody
// asks for a token. For single results see Async (async.h); for fibers that
// nobody waits for, Spawn() (task.h).

#ifndef FLARE_FIBER_TASK_GROUP_H_
#define FLARE_FIBER_TASK_GROUP_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <optional>
#include <stop_token>
#include <type_traits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/sync/wait_list.h"
#include "flare/fiber/task.h"

namespace flare::fiber {

// Returns the stop token of the group whose child the calling fiber is; one
// that can't be stopped elsewhere. For waits deep inside of calls that pass no
// token.
std::stop_token CurrentStopToken();

// Usable from fibers and plain threads. Spawn(), RequestStop() and
// stop_token() are thread-safe; children may spawn siblings. The group must be
// destroyed by somebody who isn't its child, after all other calls returned.
class TaskGroup {
 public:
  // Stopped together with CurrentStopToken().
  TaskGroup() : TaskGroup(CurrentStopToken()) {}
  // Stopped when `parent` is; never by others if that can't be stopped.
  explicit TaskGroup(const std::stop_token& parent);
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  // Asks the children to stop and waits, blocking the calling fiber or thread,
  // until they have ended. Failures are dropped; an exception that no Wait()
  // has thrown is logged.
  ~TaskGroup();

  // Runs `f()`, or `f(stop_token)` if it takes one, on a fiber in the caller's
  // execution context. `f` returns nothing or a Status, and may throw. It is
  // destroyed, as the FiberLocals of its fiber are, before it counts as ended.
  // A child spawned after a stop was requested is run none the less. Never
  // blocks.
  template <class F>
  void Spawn(F&& f) {
    Submit(MakeChild(std::forward<F>(f)));
  }
  // Spawns `f` in the same way, in a given scheduling group (runtime.h).
  template <class F>
  void SpawnTo(std::size_t scheduling_group, F&& f) {
    SubmitTo(scheduling_group, MakeChild(std::forward<F>(f)));
  }

  // Blocks the calling fiber or thread until there are no children. OK: none
  // has failed. Otherwise the first failure: the Status that was returned, or
  // the exception, which is thrown here. After OK the group may be used again;
  // a failure stays. Dies if called by a child of this group.
  Status Wait() { return Wait(WaitLimit()); }

  // Waits with limits: when the deadline passes or `stop` is requested, asks
  // the children to stop, and goes on waiting for their end. Counts as a
  // failure, with the code ETIMEDOUT or ECANCELED.
  Status Wait(const std::stop_token& stop) {
    return Wait(WaitLimit{kNoDeadline, &stop});
  }
  template <class Rep, class Period>
  Status WaitFor(std::chrono::duration<Rep, Period> length) {
    return Wait(WaitLimit{ToSteadyNs(length)});
  }
  template <class Rep, class Period>
  Status WaitFor(const std::stop_token& stop,
                 std::chrono::duration<Rep, Period> length) {
    return Wait(WaitLimit{ToSteadyNs(length), &stop});
  }
  template <class Clock, class Duration>
  Status WaitUntil(std::chrono::time_point<Clock, Duration> at) {
    return Wait(WaitLimit{ToSteadyNs(at)});
  }
  template <class Clock, class Duration>
  Status WaitUntil(const std::stop_token& stop,
                   std::chrono::time_point<Clock, Duration> at) {
    return Wait(WaitLimit{ToSteadyNs(at), &stop});
  }

  // Asks the children, also those to come, to stop. That is no failure.
  // Callbacks of the token run here; they must not suspend their fiber.
  void RequestStop();
  bool stop_requested() const noexcept {
    // relaxed: a request only, which publishes nothing.
    return stop_requested_.load(std::memory_order_relaxed);
  }
  std::stop_token stop_token() { return StopSource().get_token(); }

 private:
  struct ChildTask : Task {
    TaskGroup* group = nullptr;
    RefPtr<ExecutionContext> context;
  };
  template <class F>
  struct Child;
  struct StopThis {
    TaskGroup* group;
    void operator()() const { group->RequestStop(); }
  };

  template <class F>
  Task* MakeChild(F&& f);
  // Around a child's life, on its fiber.
  void ChildBegins();
  void ChildFails(Status status);
  void ChildFails(std::exception_ptr exception);
  void ChildEnds();

  Status Wait(const WaitLimit& limit);
  WaitResult WaitForChildren(const WaitLimit& limit);
  std::stop_source StopSource();

  // Rules: task_group.cc.
  std::atomic<std::size_t> children_{0};
  std::atomic<bool> stop_requested_{false};
  Spinlock lock_;
  bool failed_ FLARE_GUARDED_BY(lock_) = false;
  bool exception_seen_ FLARE_GUARDED_BY(lock_) = false;
  std::stop_source stop_source_ FLARE_GUARDED_BY(lock_){std::nostopstate};
  WaitList waiters_ FLARE_GUARDED_BY(lock_);
  // Written once, with failed_; read after the children's end.
  Status status_;
  std::exception_ptr exception_;

  std::optional<std::stop_callback<StopThis>> parent_stops_;
};

template <class F>
struct TaskGroup::Child : ChildTask {
  template <class G>
  explicit Child(G&& g) : f(std::forward<G>(g)) {
    run = &Child::Run;
  }

  static void Run(Task* task) {
    auto* const self = static_cast<Child*>(task);
    TaskGroup* const group = self->group;
    group->ChildBegins();
    try {
      WithExecutionContextIfPresent(std::move(self->context),
                                    [&] { Call(group, self->f); });
    } catch (...) {
      group->ChildFails(std::current_exception());
    }
    FreeSpawned(self);
    group->ChildEnds();
  }

  static void Call(TaskGroup* group, F& f) {
    const auto call = [&]() -> decltype(auto) {
      if constexpr (std::is_invocable_v<F&&, std::stop_token>) {
        return std::invoke(std::move(f), group->stop_token());
      } else {
        return std::invoke(std::move(f));
      }
    };
    using R = decltype(call());
    static_assert(std::is_void_v<R> || std::is_same_v<R, Status>,
                  "a child of a TaskGroup returns nothing or a Status");
    if constexpr (std::is_void_v<R>) {
      call();
    } else if (Status status = call(); !status.ok()) {
      group->ChildFails(std::move(status));
    }
  }

  F f;
};

template <class F>
Task* TaskGroup::MakeChild(F&& f) {
  auto* const child = MakeSpawned<Child<std::decay_t<F>>>(std::forward<F>(f));
  child->group = this;
  child->context = ExecutionContext::Capture();
  // relaxed: the spawner is known to the waiter already: the owner, or a child
  // that hasn't ended [TG1].
  children_.fetch_add(1, std::memory_order_relaxed);
  return child;
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_TASK_GROUP_H_

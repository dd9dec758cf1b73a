#include "flare/fiber/timer.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <variant>

#include "flare/base/clock.h"
#include "flare/base/object_pool.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/timer_wheel.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/task.h"
#include "glog/logging.h"

namespace flare::fiber {

void ArmTimer(Timer* timer, std::int64_t deadline_ns) {
  if (Worker* const worker = CurrentWorker()) {
    worker->timers().Arm(timer, deadline_ns);
    return;
  }
  // From a plain thread: some worker's wheel, and if that worker sleeps it has
  // to look at its deadline again (scheduling_group.cc [P2] [P5]).
  static std::atomic<std::size_t> turn{0};
  SchedulingGroup* const group = NearestGroup();
  // relaxed: only to spread them.
  const std::size_t index =
      turn.fetch_add(1, std::memory_order_relaxed) % group->limit();
  group->worker(index)->timers().Arm(timer, deadline_ns);
  group->WakeWorker(index);  // [P2]
}

bool CancelTimer(Timer* timer) {
  TimerWheel* const wheel = timer->wheel_;
  return wheel != nullptr && wheel->Cancel(timer);
}

namespace {

// A closure on a timer. Two references: the id's, and one of whatever will run
// next (the armed timer, or the task).
class UserTimer : public Task {
 public:
  using Closure = std::variant<Function<void()>, Function<void(TimerId)>>;

  UserTimer(std::int64_t due_ns, std::int64_t interval_ns, Closure f)
      // Far from where differences overflow.
      : due_ns_(std::max<std::int64_t>(due_ns, 0)),
        interval_ns_(interval_ns),
        f_(std::move(f)) {
    run = &UserTimer::RunTask;
    timer_.owner = this;
    timer_.set_callback([](Timer* timer) {
      UserTimer* const self = static_cast<Node*>(timer)->owner;
      // release: pairs with the acquire in Kill. It can't be under the lock,
      // under which Kill waits for this.
      self->armed_.store(false, std::memory_order_release);
      Submit(self);
    });
    timer_.set_on_runtime_end(
        [](Timer* timer) { static_cast<Node*>(timer)->owner->Abandon(); });
  }

  // Makes one and arms it. It may be gone when this returns: killed by itself.
  static TimerId Set(std::int64_t due_ns, std::int64_t interval_ns, Closure f) {
    auto* const self = new UserTimer(due_ns, interval_ns, std::move(f));
    const TimerId id = self->id();
    ArmTimer(&self->timer_, self->due_ns_);
    return id;
  }
  static TimerId SetPeriodic(std::int64_t due_ns,
                             std::chrono::nanoseconds interval, Closure f) {
    CHECK_GT(interval.count(), 0) << "the interval of a periodic timer";
    return Set(due_ns, interval.count(), std::move(f));
  }

  // From the pool.
  static void* operator new(std::size_t) {
    return PoolAllocate<sizeof(UserTimer)>();
  }
  static void operator delete(void* memory) {
    PoolFree<sizeof(UserTimer)>(memory);
  }

  static UserTimer* FromId(TimerId id) {
    CHECK_NE(id, 0u) << "0 is no timer's id";
    return reinterpret_cast<UserTimer*>(id);
  }

  void Kill() {
    bool cancelled = false;
    {
      ScopedLock guard(lock_);
      killed_ = true;
      // The callback only submits: waiting for it under the lock is short. One
      // that has begun is on no wheel, and that which it was on may be gone.
      // acquire: pairs with the release in the callback and in Abandon.
      cancelled =
          armed_.load(std::memory_order_acquire) && CancelTimer(&timer_);
    }
    if (cancelled) Unref();
    Unref();
  }

  void Unref() {
    // acq_rel: release of this side's writes; the side that frees it acquires.
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  struct Node : Timer {
    UserTimer* owner = nullptr;
  };

  // By the runtime's end.
  void Abandon() {
    // release: pairs with the acquire in Kill.
    armed_.store(false, std::memory_order_release);
    Unref();
  }

  TimerId id() const { return reinterpret_cast<TimerId>(this); }

  static void RunTask(Task* self) { static_cast<UserTimer*>(self)->Go(); }

  void Go() {
    bool killed;
    {
      ScopedLock guard(lock_);
      killed = killed_;
    }
    if (killed) return Unref();  // May be the end of `lock_`, too.
    if (const auto* const f = std::get_if<Function<void()>>(&f_)) {
      (*f)();
    } else {
      std::get<Function<void(TimerId)>>(f_)(id());
    }
    if (interval_ns_ > 0) {
      ScopedLock guard(lock_);
      // Timers that are always due would keep the runtime from its end.
      if (!killed_ && !NearestGroup()->ending()) {
        // The next turn that isn't over already.
        const std::int64_t late = std::max<std::int64_t>(NowNs() - due_ns_, 0);
        due_ns_ += late / interval_ns_ * interval_ns_;
        due_ns_ = SaturatingAdd(due_ns_, interval_ns_);
        // relaxed: under the lock that Kill takes, and before the callback.
        armed_.store(true, std::memory_order_relaxed);
        ArmTimer(&timer_, due_ns_);
        return;
      }
    }
    Unref();
  }

  Node timer_;
  Spinlock lock_;  // Arming and killing exclude each other.
  bool killed_ FLARE_GUARDED_BY(lock_) = false;
  std::atomic<bool> armed_{true};  // Set under the lock, cleared without it.
  std::int64_t due_ns_;
  const std::int64_t interval_ns_;
  const Closure f_;
  std::atomic<int> references_{2};
};

}  // namespace

TimerId SetTimer(std::chrono::steady_clock::time_point at, Function<void()> f) {
  return UserTimer::Set(ToSteadyNs(at), 0, std::move(f));
}

TimerId SetTimer(std::chrono::steady_clock::time_point at,
                 std::chrono::nanoseconds interval, Function<void()> f) {
  return UserTimer::SetPeriodic(ToSteadyNs(at), interval, std::move(f));
}

TimerId SetTimer(std::chrono::nanoseconds interval, Function<void()> f) {
  return UserTimer::SetPeriodic(ToSteadyNs(interval), interval, std::move(f));
}

TimerId SetTimer(std::chrono::steady_clock::time_point at, TimerFunction f) {
  return UserTimer::Set(ToSteadyNs(at), 0, std::move(f.call));
}

TimerId SetTimer(std::chrono::steady_clock::time_point at,
                 std::chrono::nanoseconds interval, TimerFunction f) {
  return UserTimer::SetPeriodic(ToSteadyNs(at), interval, std::move(f.call));
}

TimerId SetTimer(std::chrono::nanoseconds interval, TimerFunction f) {
  return UserTimer::SetPeriodic(ToSteadyNs(interval), interval,
                                std::move(f.call));
}

void SetDetachedTimer(std::chrono::steady_clock::time_point at,
                      Function<void()> f) {
  DetachTimer(SetTimer(at, std::move(f)));
}

void SetDetachedTimer(std::chrono::steady_clock::time_point at,
                      std::chrono::nanoseconds interval, Function<void()> f) {
  DetachTimer(SetTimer(at, interval, std::move(f)));
}

void KillTimer(TimerId id) { UserTimer::FromId(id)->Kill(); }

void DetachTimer(TimerId id) { UserTimer::FromId(id)->Unref(); }

}  // namespace flare::fiber

// Four parties meet here: the first watcher of a call's context, which brings
// the watch about; the stopper of the connection's calls (OnClosed(), the end
// of input, Server::Join()); the timer of the deadline; and the end of the
// call.
//
// [CW1] A watch is begun by ServerCall::OnWatched(), under the context's lock,
//       and only while nobody has claimed the call's end [CE1]. The end claims
//       the call, calls Disown(), which takes that lock, and then ends the
//       watch. So the end finds the whole watch, or none begins any more, and
//       the connection lives while it begins.
// [CW2] Under WatchedCalls::lock_ a watch is added or finds the cause of an
//       earlier StopAll(). So each call that is watched is stopped, whichever
//       comes first.
// [CW3] A watch is in the list from Add() until StopAll() or End() takes it
//       out, under the lock. StopAll() takes a reference to its context under
//       the same lock, and doesn't touch the watch any more: it may be gone.
// [CW4] The timer has a reference to the context, and none to the watch. So
//       nobody waits for it, and a stop that it is about to request may come
//       after the call's end.
// [CW5] A caller may leave alone, of the connection's. The protocol notes that
//       before StopLeft() looks at the list, and a watch asks the protocol when
//       it is in the list.
#include "flare/rpc/server/call_watch.h"

#include <array>
#include <optional>
#include <stop_token>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/object_pool.h"
#include "flare/fiber/task.h"
#include "flare/rpc/server/handler_exception.h"

namespace flare::rpc {

using fiber::ExecutionContext;
using fiber::StopCause;

// A callback of NotifyOnStop(), with a reference of its watch's and one of the
// task that runs it.
class StopNotification final : public RefCounted<StopNotification>,
                               private fiber::Task {
 public:
  StopNotification(google::protobuf::Closure* callback, StopNotification* next)
      : next(next), callback_(callback) {
    run = &StopNotification::RunTask;
  }

  void Listen(const std::stop_token& token) {
    on_stop_.emplace(token, OnStop{this});
  }

  // Runs the callback, unless that is the task's part.
  void End() {
    on_stop_.reset();  // Waits for one that runs.
    if (!submitted_) Run();
    Deref();
  }

  StopNotification* const next;

 private:
  struct OnStop {
    StopNotification* self;
    void operator()() const noexcept {
      self->submitted_ = true;
      self->Ref();
      fiber::Submit(self);
    }
  };

  static void RunTask(fiber::Task* task) {
    auto* const self = static_cast<StopNotification*>(task);
    self->Run();
    self->Deref();
  }

  void Run() {
    try {
      callback_->Run();
    } catch (...) {
      TakeHandlerException("a callback of NotifyOnCancel()");
    }
  }

  google::protobuf::Closure* const callback_;
  bool submitted_ = false;  // The end of the stop callback orders it.
  std::optional<std::stop_callback<OnStop>> on_stop_;
};

std::size_t WatchedCalls::StopAll(StopCause cause) {
  std::size_t stopped = 0;
  for (;;) {
    RefPtr<ExecutionContext> context;
    {
      ScopedLock guard(lock_);
      // relaxed, both: under the lock.
      if (cause_.load(std::memory_order_relaxed) == StopCause::kNone) {
        cause_.store(cause, std::memory_order_relaxed);
      }
      CallWatch* const watch = first_;
      if (watch == nullptr) return stopped;
      Unlink(watch);
      context = watch->context_;  // [CW3]
    }
    if (context->RequestStop(cause)) ++stopped;
  }
}

void WatchedCalls::StopLeft() {
  // Several at a time, since each walk looks at all of them.
  std::array<RefPtr<ExecutionContext>, 64> left;
  for (std::size_t n = left.size(); n == left.size();) {
    n = 0;
    {
      ScopedLock guard(lock_);
      for (CallWatch* watch = first_; watch != nullptr && n != left.size();) {
        CallWatch* const next = watch->next_;
        if (watch->CallerLeft()) {
          Unlink(watch);
          left[n++] = watch->context_;  // [CW3]
        }
        watch = next;
      }
    }
    for (std::size_t i = 0; i != n; ++i) {
      std::exchange(left[i], nullptr)->RequestStop(StopCause::kCancelled);
    }
  }
}

StopCause WatchedCalls::Add(CallWatch* watch) {
  ScopedLock guard(lock_);
  // relaxed: under the lock.
  const StopCause cause = cause_.load(std::memory_order_relaxed);
  if (cause != StopCause::kNone) return cause;  // [CW2]
  watch->next_ = first_;
  if (first_ != nullptr) first_->place_ = &watch->next_;
  watch->place_ = &first_;
  first_ = watch;
  return StopCause::kNone;
}

void WatchedCalls::Unlink(CallWatch* watch) {
  *watch->place_ = watch->next_;
  if (watch->next_ != nullptr) watch->next_->place_ = watch->place_;
  watch->place_ = nullptr;
}

void WatchedCalls::Remove(CallWatch* watch) {
  ScopedLock guard(lock_);
  if (watch->place_ != nullptr) Unlink(watch);  // [CW3]
}

void* CallWatch::operator new(std::size_t) {
  return PoolAllocate<sizeof(CallWatch)>();
}

void CallWatch::operator delete(void* memory) {
  PoolFree<sizeof(CallWatch)>(memory);
}

StopCause CallWatch::Begin(WatchedCalls* calls, std::int64_t deadline_ns) {
  if (deadline_ns != 0) {
    if (NowNs() >= deadline_ns) return StopCause::kDeadline;
    timer_ = fiber::SetTimer(ToTimePoint(deadline_ns),
                             [context = context_] {  // [CW4]
                               context->RequestStop(StopCause::kDeadline);
                             });
  }
  calls_ = calls;
  const StopCause cause = calls->Add(this);
  // Behind Add(): either this sees that the caller has left, or StopLeft() sees
  // the watch [CW5].
  return cause == StopCause::kNone && CallerLeft() ? StopCause::kCancelled
                                                   : cause;
}

void CallWatch::NotifyOnStop(google::protobuf::Closure* callback) {
  notifications_ = new StopNotification(callback, notifications_);
  notifications_->Listen(context_->stop_token());
}

void CallWatch::End() {
  if (calls_ != nullptr) calls_->Remove(this);
  if (timer_ != 0) fiber::KillTimer(timer_);
  while (notifications_ != nullptr) {
    std::exchange(notifications_, notifications_->next)->End();
  }
  delete this;
}

}  // namespace flare::rpc

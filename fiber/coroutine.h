// Coroutines of C++20: a function that returns a Future may be one. It waits
// for other futures by co_await, and has no stack of its own meanwhile.
//
//   Future<int> Sum(Future<int> a, Future<int> b) {
//     co_return co_await a + co_await b;
//   }
//   int sum = fiber::BlockingGet(Sum(First(), Second()));
//
// A fiber waits at any depth of ordinary calls and needs none of this. Use
// coroutines for very many waits at a time, of some hundred bytes each, for
// methods of an AsyncX, and for loops over futures.
//
// Start: a call runs the body at once, in the caller, up to the first co_await
// that has to wait; then the caller goes on. So coroutines that are called one
// after the other wait side by side, as calls of an async stub do. (A future
// can't start anything: a coroutine that waits to be started would need a type
// of its own, and would do nothing if its result were dropped.)
//
// co_await consumes the future and gives its value: nothing, T, or a tuple. If
// the value is there it goes on at once. Else the body goes on later as a task
// (task.h) of the scheduling group and in the execution context in which it
// began to wait, never inside SetValue(): it has nothing to do with the locks
// and the stack of the code that sets the value. The task may block like any
// other; it is a fiber then. Things of a fiber or a thread must not span a
// co_await: locks, values of FiberLocals and thread-locals, an
// ExecutionContextScope, a ScopedSpan (rpc/tracing), a BlockingRegion.
//
// End: the future gets its value when the local variables and the parameters
// are gone. References among them, and what a lambda has captured, must live
// until the coroutine has ended: take arguments by value.
//
// A co_await of a broken future ends the coroutine: its variables are
// destroyed, in a task as well, and its own future breaks, before parameters
// are destroyed. An exception that leaves the body breaks it, too, and is
// logged: Then() and BlockingGet() know no exceptions.
//
// A co_await that has to wait needs the runtime, until the coroutine goes on;
// any thread may begin it. A waiting coroutine whose future breaks after the
// runtime has ended is destroyed by the thread that drops the promise. Other
// awaitables work, and say themselves where the body goes on. gcc 12 destroys
// some temporaries twice: docs/coroutines.md lists faults of compilers.

#ifndef FLARE_FIBER_COROUTINE_H_
#define FLARE_FIBER_COROUTINE_H_

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>

#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "glog/logging.h"

namespace flare::fiber {

// Memory of coroutines. Any thread; doesn't block.
void* AllocateCoroutine(std::size_t size);
void FreeCoroutine(void* memory, std::size_t size) noexcept;

// In a `catch (...)`: logs that the exception has left a coroutine.
void LogCoroutineException();

// A suspended coroutine, as the task in which it goes on. Part of its frame, so
// it is gone when that is.
class SuspendedCoroutine : private Task {
 public:
  SuspendedCoroutine() = default;
  SuspendedCoroutine(const SuspendedCoroutine&) = delete;
  SuspendedCoroutine& operator=(const SuspendedCoroutine&) = delete;

  // Notes where and in what context it is to go on.
  void Suspend(std::coroutine_handle<> coroutine);

  // Each is the last access: another worker may run the task at once.
  void Resume();
  void Destroy();

 private:
  // Queues `(coroutine_.*kStep)()`.
  template <auto kStep>
  void GoOn();

  std::coroutine_handle<> coroutine_;
  std::size_t group_ = 0;
  RefPtr<ExecutionContext> context_;
};

// The callback that a coroutine sets for a future: resumes it, or destroys it
// if it is dropped uncalled.
class CoroutineWaker {
 public:
  explicit CoroutineWaker(SuspendedCoroutine* coroutine)
      : coroutine_(coroutine) {}
  CoroutineWaker(CoroutineWaker&& other) noexcept
      : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
  ~CoroutineWaker() {
    if (coroutine_ != nullptr) coroutine_->Destroy();
  }

  void operator()() { std::exchange(coroutine_, nullptr)->Resume(); }

 private:
  SuspendedCoroutine* coroutine_;
};

// The state that a coroutine's frame begins with. Parameters outlive it in the
// frame, so the result is handed over by End.
template <class... Ts>
class CoroutineState {
 public:
  // The body is over: destroys the rest, then hands the result over, or breaks
  // the future if there is none.
  struct End {
    bool await_ready() const noexcept { return false; }

    // noinline: its variables must not be in the frame, as in FutureAwaiter.
    template <class P>
    [[gnu::noinline]] void await_suspend(
        std::coroutine_handle<P> coroutine) const noexcept {
      CoroutineState& state = coroutine.promise();
      Promise<Ts...> promise = std::move(state.promise_);
      std::optional<std::tuple<Ts...>> result = std::move(state.result_);
      coroutine.destroy();
      if (result) promise.SetTuple(*std::move(result));
    }

    void await_resume() const noexcept {}
  };

  CoroutineState() = default;
  CoroutineState(const CoroutineState&) = delete;
  CoroutineState& operator=(const CoroutineState&) = delete;

  // NOLINTNEXTLINE(misc-new-delete-overloads): compilers know the size.
  static void* operator new(std::size_t size) {
    return AllocateCoroutine(size);
  }
  static void operator delete(void* memory, std::size_t size) noexcept {
    FreeCoroutine(memory, size);
  }

  Future<Ts...> get_return_object() { return promise_.GetFuture(); }
  std::suspend_never initial_suspend() noexcept { return {}; }
  End final_suspend() noexcept { return {}; }
  void unhandled_exception() {
    result_.reset();  // There is one if a variable's destructor has thrown.
    LogCoroutineException();
  }

 protected:
  template <class... Us>
  void SetResult(Us&&... values) {
    result_.emplace(std::forward<Us>(values)...);
  }

 private:
  Promise<Ts...> promise_;
  std::optional<std::tuple<Ts...>> result_;
};

template <class... Ts>
class CoroutinePromise : public CoroutineState<Ts...> {
  using Value = typename Future<Ts...>::Value;

 public:
  // Several values are returned as a tuple.
  template <class U = Value>
  requires std::convertible_to<U&&, Value>
  void return_value(U&& value) { this->SetResult(std::forward<U>(value)); }
};
template <>
class CoroutinePromise<> : public CoroutineState<> {
 public:
  void return_void() { SetResult(); }
};

// A coroutine waits for a future.
template <class... Ts>
class FutureAwaiter {
 public:
  explicit FutureAwaiter(Future<Ts...> future) : future_(std::move(future)) {
    CHECK(future_.valid()) << "co_await of a future that has been consumed";
  }

  bool await_ready() const noexcept { return future_.IsReady(); }

  // noinline: the coroutine may go on, and end, while this still returns. If
  // it were inlined, clang might keep its variables in the coroutine's frame.
  template <class... Us>
  [[gnu::noinline]] void await_suspend(
      std::coroutine_handle<CoroutinePromise<Us...>> coroutine) {
    suspended_.Suspend(coroutine);
    future_.OnReady(CoroutineWaker(&suspended_));
  }

  typename Future<Ts...>::Value await_resume() { return future_.Take(); }

 private:
  Future<Ts...> future_;
  SuspendedCoroutine suspended_;
};

}  // namespace flare::fiber

template <class... Ts, class... Args>
struct std::coroutine_traits<flare::Future<Ts...>, Args...> {
  using promise_type = flare::fiber::CoroutinePromise<Ts...>;
};

namespace flare {

// Consume the future, as Then() does.
template <class... Ts>
fiber::FutureAwaiter<Ts...> operator co_await(Future<Ts...>&& future) {
  return fiber::FutureAwaiter<Ts...>(std::move(future));
}
template <class... Ts>
fiber::FutureAwaiter<Ts...> operator co_await(Future<Ts...>& future) {
  return fiber::FutureAwaiter<Ts...>(std::move(future));
}

}  // namespace flare

#endif  // FLARE_FIBER_COROUTINE_H_

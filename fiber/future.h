// Waits for futures (base/future.h): blocks the calling fiber, or the thread
// where it isn't one.
//
//   int n = fiber::BlockingGet(fiber::Async([] { return 42; }));

#ifndef FLARE_FIBER_FUTURE_H_
#define FLARE_FIBER_FUTURE_H_

#include <chrono>
#include <stop_token>
#include <utility>

#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/event.h"

namespace flare::fiber {

// Tells a waiter that a future's callback has been called, or dropped because
// the promise has gone without a value.
class FutureWaiter {
 public:
  template <class... Ts>
  explicit FutureWaiter(Future<Ts...>* future) {
    future->OnReady([token = Token(shared_)] {});
  }

  // Waits as Event::Wait, WaitFor and WaitUntil do. True: nothing more will
  // come.
  template <class... Limits>
  bool Wait(const Limits&... limits) {
    if constexpr (sizeof...(limits) == 0) {
      shared_->event.Wait();
      return true;
    } else {
      return shared_->event.Wait(limits...);
    }
  }
  template <class... Limits>
  bool WaitFor(const Limits&... limits) {
    return shared_->event.WaitFor(limits...);
  }
  template <class... Limits>
  bool WaitUntil(const Limits&... limits) {
    return shared_->event.WaitUntil(limits...);
  }

 private:
  struct Shared : RefCounted<Shared> {
    Event event;
  };

  // The callback's destruction follows its call.
  class Token {
   public:
    explicit Token(RefPtr<Shared> shared) : shared_(std::move(shared)) {}
    Token(Token&&) noexcept = default;
    ~Token() {
      if (shared_ != nullptr) shared_->event.Set();
    }

   private:
    RefPtr<Shared> shared_;
  };

  RefPtr<Shared> shared_ = MakeRefCounted<Shared>();
};

// Waits for the future's value and returns it: nothing for Future<>, T for
// Future<T>, a tuple for more. Consumes the future. Dies if the promise was
// dropped without a value.
template <class... Ts>
auto BlockingGet(Future<Ts...> future) {
  FutureWaiter(&future).Wait();
  return future.Take();
}

// Waits in the same way, with limits: an empty optional (false for Future<>)
// when `timeout` passes, `at` is reached, or a stop is requested before there
// is a value; or the promise was dropped. A result that comes later is dropped.
template <class... Ts, class Rep, class Period>
auto BlockingTryGet(Future<Ts...> future,
                    std::chrono::duration<Rep, Period> timeout) {
  FutureWaiter(&future).WaitFor(timeout);
  return future.TryGet();
}
template <class... Ts, class Clock, class Duration>
auto BlockingTryGet(Future<Ts...> future,
                    std::chrono::time_point<Clock, Duration> at) {
  FutureWaiter(&future).WaitUntil(at);
  return future.TryGet();
}
template <class... Ts>
auto BlockingTryGet(Future<Ts...> future, const std::stop_token& stop) {
  FutureWaiter(&future).Wait(stop);
  return future.TryGet();
}
template <class... Ts, class Rep, class Period>
auto BlockingTryGet(Future<Ts...> future, const std::stop_token& stop,
                    std::chrono::duration<Rep, Period> timeout) {
  FutureWaiter(&future).WaitFor(stop, timeout);
  return future.TryGet();
}
template <class... Ts, class Clock, class Duration>
auto BlockingTryGet(Future<Ts...> future, const std::stop_token& stop,
                    std::chrono::time_point<Clock, Duration> at) {
  FutureWaiter(&future).WaitUntil(stop, at);
  return future.TryGet();
}

// The future is consumed.
template <class... Ts>
auto BlockingGet(Future<Ts...>* future) {
  return BlockingGet(std::move(*future));
}
template <class... Ts, class... Limits>
auto BlockingTryGet(Future<Ts...>* future, const Limits&... limits) {
  return BlockingTryGet(std::move(*future), limits...);
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_FUTURE_H_

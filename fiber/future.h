// Waiting for futures (base/future.h): blocks the calling fiber, or the thread
// where it isn't one.
//
//   int n = fiber::BlockingGet(fiber::Async([] { return 42; }));

#ifndef FLARE_FIBER_FUTURE_H_
#define FLARE_FIBER_FUTURE_H_

#include <chrono>
#include <cstdint>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/event.h"
#include "flare/fiber/wait_list.h"

namespace flare::fiber {

// Tells a waiter that a future's callback has been called, or dropped because
// the promise has gone without a value.
class FutureWaiter {
 public:
  template <class... Ts>
  explicit FutureWaiter(Future<Ts...>* future) {
    future->OnReady([token = Token(shared_)] {});
  }

  bool WaitUntil(std::int64_t deadline_ns) {
    return shared_->event.WaitUntil(deadline_ns);
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

// What the future holds: nothing for Future<>, T for Future<T>, a tuple for
// more. Consumes the future. Dies if the promise was dropped without a value.
template <class... Ts>
auto BlockingGet(Future<Ts...> future) {
  FutureWaiter(&future).WaitUntil(kNoDeadline);
  return future.Take();
}

// The same, for at most `timeout`; an empty optional (false for Future<>) when
// that passes first, or the promise was dropped. A result that comes later is
// dropped.
template <class... Ts, class Rep, class Period>
auto BlockingTryGet(Future<Ts...> future,
                    std::chrono::duration<Rep, Period> timeout) {
  FutureWaiter(&future).WaitUntil(ToSteadyNs(timeout));
  return future.TryGet();
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_FUTURE_H_

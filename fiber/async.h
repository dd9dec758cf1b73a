// fiber::Async: runs a function on a fiber and gives a future of its result.
//
//   Future<int> f = fiber::Async([&] { return Fetch(); });
//   int value = fiber::BlockingGet(std::move(f));   // future.h

#ifndef FLARE_FIBER_ASYNC_H_
#define FLARE_FIBER_ASYNC_H_

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "flare/base/future.h"
#include "flare/fiber/task.h"

namespace flare::fiber {

template <class R>
struct AsyncResult {
  using Future = flare::Future<R>;
  using Promise = flare::Promise<R>;
};
template <>
struct AsyncResult<void> {
  using Future = flare::Future<>;
  using Promise = flare::Promise<>;
};

// Runs `f(args...)` (decay-copied) on a fiber of the caller's group. Callable
// from any thread; never blocks. An exception that leaves `f` terminates.
template <class F, class... Args>
auto Async(F&& f, Args&&... args) {
  using R = std::invoke_result_t<std::decay_t<F>, std::decay_t<Args>...>;
  typename AsyncResult<R>::Promise promise;
  auto future = promise.GetFuture();
  Spawn([promise = std::move(promise), f = std::forward<F>(f),
         args = std::make_tuple(std::forward<Args>(args)...)]() mutable {
    if constexpr (std::is_void_v<R>) {
      std::apply(std::move(f), std::move(args));
      promise.SetValue();
    } else {
      promise.SetValue(std::apply(std::move(f), std::move(args)));
    }
  });
  return future;
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_ASYNC_H_

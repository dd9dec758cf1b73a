// fiber::Async: runs a function on a fiber and gives a future of its result.
//
//   Future<int> f = fiber::Async([&] { return Fetch(); });
//   int value = fiber::BlockingGet(std::move(f));   // future.h
//
// Use TaskGroup (task_group.h) to start several functions that must all have
// ended before a scope does, or that one failure is to stop.

#ifndef FLARE_FIBER_ASYNC_H_
#define FLARE_FIBER_ASYNC_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"

namespace flare::fiber {

// Says how the caller goes on after it has queued the new fiber.
enum class Launch : std::uint8_t {
  Post,      // Goes on.
  Dispatch,  // Lets it run first, with whatever is queued before it.
};

// The result of Async for a function that returns R.
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

// Runs `f(args...)` (decay-copied) on a fiber in the given scheduling group
// (none: the caller's) and execution context (nullptr: none). Callable from any
// thread; blocks only as Launch::Dispatch does. The future gets its value when
// `f` has returned and the context has been left; `f` itself is destroyed after
// that. An exception that leaves `f` ends the process: a Future has no place
// for it. Return an Expected or a Status, or use a TaskGroup.
template <class F, class... Args>
requires std::invocable<std::decay_t<F>, std::decay_t<Args>...>
auto Async(Launch policy, std::optional<std::size_t> scheduling_group,
           RefPtr<ExecutionContext> context, F&& f, Args&&... args) {
  using R = std::invoke_result_t<std::decay_t<F>, std::decay_t<Args>...>;
  typename AsyncResult<R>::Promise promise;
  auto future = promise.GetFuture();
  auto body = [promise = std::move(promise), context = std::move(context),
               f = std::forward<F>(f),
               args = std::tuple<std::decay_t<Args>...>(
                   std::forward<Args>(args)...)]() mutable {
    const auto call = [&]() -> R {
      return std::apply(std::move(f), std::move(args));
    };
    if constexpr (std::is_void_v<R>) {
      WithExecutionContextIfPresent(std::move(context), call);
      promise.SetValue();
    } else {
      promise.SetValue(WithExecutionContextIfPresent(std::move(context), call));
    }
  };
  if (scheduling_group) {
    SpawnTo(*scheduling_group, std::move(body));
  } else {
    Spawn(std::move(body));
  }
  if (policy == Launch::Dispatch) this_fiber::Yield();
  return future;
}

// Runs `f(args...)` in the same way, in the caller's execution context.
template <class F, class... Args>
requires std::invocable<std::decay_t<F>, std::decay_t<Args>...>
auto Async(Launch policy, std::optional<std::size_t> scheduling_group, F&& f,
           Args&&... args) {
  return Async(policy, scheduling_group, ExecutionContext::Capture(),
               std::forward<F>(f), std::forward<Args>(args)...);
}

template <class F, class... Args>
requires std::invocable<std::decay_t<F>, std::decay_t<Args>...>
auto Async(Launch policy, F&& f, Args&&... args) {
  return Async(policy, std::nullopt, ExecutionContext::Capture(),
               std::forward<F>(f), std::forward<Args>(args)...);
}

template <class F, class... Args>
requires std::invocable<std::decay_t<F>, std::decay_t<Args>...>
auto Async(F&& f, Args&&... args) {
  return Async(Launch::Post, std::nullopt, ExecutionContext::Capture(),
               std::forward<F>(f), std::forward<Args>(args)...);
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_ASYNC_H_

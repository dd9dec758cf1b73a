// flare::Fiber: a thread of execution on the fiber runtime, with the interface
// of std::thread.
//
//   flare::Fiber f([&] { Work(); });
//   f.join();                          // suspends the caller, fiber or thread
//
// fiber::Spawn() (task.h) is cheaper if nobody waits for the end.
// fiber::Async() (async.h) gives a result.

#ifndef FLARE_FIBER_FIBER_H_
#define FLARE_FIBER_FIBER_H_

#include <chrono>
#include <concepts>
#include <cstddef>
#include <optional>
#include <stop_token>
#include <tuple>
#include <type_traits>
#include <utility>

#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare {

namespace fiber {

// Where and how a fiber starts.
struct Attributes {
  // Scheduling group; none: the caller's. One that doesn't exist ends the
  // process.
  std::optional<std::size_t> scheduling_group;
  // The context that it runs in (execution_context.h); nullptr: none. It isn't
  // inherited: ExecutionContext::Capture() is the caller's.
  RefPtr<ExecutionContext> execution_context;
};

}  // namespace fiber

class Fiber {
 public:
  using Attributes = fiber::Attributes;

  // No fiber; joinable() is false.
  Fiber() = default;

  // Runs `f(args...)` on a fiber: in the caller's scheduling group, and in no
  // execution context, unless `attributes` say otherwise. The arguments are
  // decay-copied, as by std::thread. An exception that leaves `f` terminates
  // the process. Any thread while the runtime runs; doesn't block.
  template <class F, class... Args>
  requires std::invocable<std::decay_t<F>, std::decay_t<Args>...>
  explicit Fiber(F&& f, Args&&... args)
      : Fiber(Attributes(), std::forward<F>(f), std::forward<Args>(args)...) {}

  template <class F, class... Args>
  requires std::invocable<std::decay_t<F>, std::decay_t<Args>...> Fiber(
      const Attributes& attributes, F&& f, Args&&... args) {
    Start(attributes,
          [f = std::forward<F>(f), args = std::tuple<std::decay_t<Args>...>(
                                       std::forward<Args>(args)...)]() mutable {
            std::apply(std::move(f), std::move(args));
          });
  }

  Fiber(Fiber&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  // Both end the process if this fiber is joinable, as those of std::thread do.
  Fiber& operator=(Fiber&& other) noexcept;
  ~Fiber();

  bool joinable() const noexcept { return body_ != nullptr; }

  // Blocks the calling fiber or thread until the fiber has ended, and its
  // FiberLocals with it. The fiber's actions are visible after that. One caller
  // at a time. Ends the process if the fiber isn't joinable, or is the caller.
  void join() { static_cast<void>(Join({})); }

  // join() with limits. False: the deadline passed, or a stop was requested,
  // before the fiber ended; it is still joinable then. The fiber learns nothing
  // of this: give it the token, too, if it is to end.
  [[nodiscard]] bool join(const std::stop_token& stop) {
    return Join({kNoDeadline, &stop});
  }
  template <class Rep, class Period>
  [[nodiscard]] bool try_join_for(std::chrono::duration<Rep, Period> length) {
    return Join({ToSteadyNs(length)});
  }
  template <class Rep, class Period>
  [[nodiscard]] bool try_join_for(const std::stop_token& stop,
                                  std::chrono::duration<Rep, Period> length) {
    return Join({ToSteadyNs(length), &stop});
  }
  template <class Clock, class Duration>
  [[nodiscard]] bool try_join_until(
      std::chrono::time_point<Clock, Duration> at) {
    return Join({ToSteadyNs(at)});
  }
  template <class Clock, class Duration>
  [[nodiscard]] bool try_join_until(
      const std::stop_token& stop,
      std::chrono::time_point<Clock, Duration> at) {
    return Join({ToSteadyNs(at), &stop});
  }

  // Lets it run on its own. Ends the process if the fiber isn't joinable.
  void detach();

 private:
  struct Body;

  void Start(const Attributes& attributes, Function<void()> f);
  bool Join(const fiber::WaitLimit& limit);

  Body* body_ = nullptr;
};

// Runs `f` on a fiber and doesn't wait. For code on plain threads.
void StartFiberFromPthread(Function<void()> f);

}  // namespace flare

#endif  // FLARE_FIBER_FIBER_H_

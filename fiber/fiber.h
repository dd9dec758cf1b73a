// flare::Fiber: a thread of execution on the fiber runtime, with the interface
// of std::thread.
//
//   flare::Fiber f([&] { Work(); });
//   f.join();                          // suspends the caller, fiber or thread
//
// Where nobody waits for the end, fiber::Spawn() (task.h) is cheaper; where a
// result is wanted, fiber::Async() (async.h).

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
#include "flare/fiber/event.h"

namespace flare {

namespace fiber {

// Where and how a fiber starts.
struct Attributes {
  // Scheduling group; none: the caller's.
  std::optional<std::size_t> scheduling_group;
};

}  // namespace fiber

class Fiber {
 public:
  using Attributes = fiber::Attributes;

  // No fiber; joinable() is false.
  Fiber() = default;

  // Runs `f(args...)` on a fiber. The arguments are decay-copied, as by
  // std::thread. An exception that leaves `f` terminates the process.
  template <class F, class... Args>
  requires std::invocable<std::decay_t<F>, std::decay_t<Args>...>
  explicit Fiber(F&& f, Args&&... args)
      : Fiber(Attributes(), std::forward<F>(f), std::forward<Args>(args)...) {}

  template <class F, class... Args>
  requires std::invocable<std::decay_t<F>, std::decay_t<Args>...> Fiber(
      const Attributes& attributes, F&& f, Args&&... args) {
    Start(attributes,
          [f = std::forward<F>(f),
           args = std::make_tuple(std::forward<Args>(args)...)]() mutable {
            std::apply(std::move(f), std::move(args));
          });
  }

  Fiber(Fiber&&) noexcept = default;
  // Dies if this fiber is joinable, as std::thread does.
  Fiber& operator=(Fiber&& other) noexcept;
  ~Fiber();

  bool joinable() const noexcept { return end_ != nullptr; }

  // Blocks the caller until the fiber has ended. What the fiber did is visible
  // after it.
  void join();

  // join() with limits. False: the deadline passed, or a stop was requested,
  // before the fiber ended; it is still joinable then. The fiber learns nothing
  // of this: give it the token, too, if it is to end.
  [[nodiscard]] bool join(const std::stop_token& stop) {
    return Joined(MustBeJoinable()->event.Wait(stop));
  }
  template <class Rep, class Period>
  [[nodiscard]] bool try_join_for(std::chrono::duration<Rep, Period> length) {
    return Joined(MustBeJoinable()->event.WaitFor(length));
  }
  template <class Rep, class Period>
  [[nodiscard]] bool try_join_for(const std::stop_token& stop,
                                  std::chrono::duration<Rep, Period> length) {
    return Joined(MustBeJoinable()->event.WaitFor(stop, length));
  }
  template <class Clock, class Duration>
  [[nodiscard]] bool try_join_until(
      std::chrono::time_point<Clock, Duration> at) {
    return Joined(MustBeJoinable()->event.WaitUntil(at));
  }
  template <class Clock, class Duration>
  [[nodiscard]] bool try_join_until(
      const std::stop_token& stop,
      std::chrono::time_point<Clock, Duration> at) {
    return Joined(MustBeJoinable()->event.WaitUntil(stop, at));
  }

  // Lets it run on its own.
  void detach();

 private:
  struct End : RefCounted<End> {
    fiber::Event event;
  };

  void Start(const Attributes& attributes, Function<void()> f);
  End* MustBeJoinable() const;
  bool Joined(bool ended);

  RefPtr<End> end_;
};

// For code on plain threads: runs `f` on a fiber, doesn't wait.
void StartFiberFromPthread(Function<void()> f);

}  // namespace flare

#endif  // FLARE_FIBER_FIBER_H_

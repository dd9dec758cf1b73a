// Values that will be there later. Knows nothing of threads or fibers: it never
// blocks; to wait for a future see fiber::BlockingGet in fiber/future.h.
//
//   Promise<int> promise;
//   Future<int> future = promise.GetFuture();
//   auto text = future.Then([](int n) { return std::to_string(n); });
//   promise.SetValue(42);              // Runs the callback, here and now.
//
//   auto all = WhenAll(&first, &second);          // Future<First, Second>
//   auto each = WhenAll(std::move(many));         // Future<std::vector<T>>
//   auto any = WhenAny(std::move(many));          // Future<std::size_t, T>
//   auto [one, two] = Split(std::move(future));   // Both get the values.
//
// A future has any number of values, also none: Future<> tells only that
// something has happened. There is no slot for an error; use a value of type
// Expected or Status.
//
// Callbacks run in the thread (or fiber) that sets the value, inside SetValue;
// or inside Then, if the value is there already. They must not throw (that ends
// the process) and should be short. Each future has one value, one consumer,
// one callback.
// A chain of Thens, WhenAlls and the like takes no stack, however long; but one
// through the first of Split's futures does, and so does one of others than
// Thens whose promise breaks. What a callback itself makes run, by SetValue or
// by Then of a future that is ready, runs nested in it, too, at some 550 bytes
// of stack each time: a loop whose steps return Then(the next step) of what is
// ready already overflows a fiber's after two hundred. Let a fiber wait
// instead.
//
// A promise that goes without having been given a value is *broken*: callbacks
// are destroyed without having been called, futures made from it by Then,
// WhenAll and WhenAny break as well: of WhenAll once no other one is pending,
// of WhenAny if all are broken.
//
// One Promise or Future object is not thread-safe, but the two of a pair may be
// used by different threads at the same time; the promise may also be destroyed
// as soon as its value has been seen, even though SetValue has not returned.
// What happened before SetValue happens before what sees the value.
// Costs: one pooled allocation per pair, one atomic operation on each side.

#ifndef FLARE_BASE_FUTURE_H_
#define FLARE_BASE_FUTURE_H_

#include <atomic>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "flare/base/function.h"
#include "flare/base/future_state.h"
#include "flare/base/ref_ptr.h"
#include "glog/logging.h"

namespace flare {

template <class... Ts>
class Future;
template <class... Ts>
class Promise;

// How the values of a future are handed over as one: nothing (void), the value
// itself, or a tuple of them.
template <class... Ts>
struct FutureValueOf {
  using Type = std::tuple<Ts...>;
};
template <>
struct FutureValueOf<> {
  using Type = void;
};
template <class T>
struct FutureValueOf<T> {
  using Type = T;
};

// The future that Then returns for a callback that returns R.
template <class R>
struct FutureOf {
  using Type = Future<R>;
};
template <>
struct FutureOf<void> {
  using Type = Future<>;
};
template <class... Ts>
struct FutureOf<Future<Ts...>> {
  using Type = Future<Ts...>;
};

template <class T>
inline constexpr bool kIsFuture = false;
template <class... Ts>
inline constexpr bool kIsFuture<Future<Ts...>> = true;

template <class... Ts>
class [[nodiscard]] Future {
 public:
  // void, T, or std::tuple<Ts...>.
  using Value = typename FutureValueOf<Ts...>::Type;

  // Without a promise: only assignment and valid() make sense.
  Future() = default;
  Future(Future&&) noexcept = default;
  Future& operator=(Future&&) noexcept = default;

  // False after default construction and after the value has been consumed by
  // Then, Take, TryGet, WhenAll or WhenAny.
  bool valid() const noexcept { return state_ != nullptr; }

  // Is the value there?
  bool IsReady() const noexcept { return state_->IsReady(); }

  // Has the promise gone without a value?
  bool IsBroken() const noexcept { return state_->IsBroken(); }

  // The value; IsReady() must be true. Consumes the future.
  Value Take() {
    CHECK(IsReady()) << "Take() from a future that is not ready";
    const auto state = std::move(state_);
    if constexpr (sizeof...(Ts) == 1) {
      return std::move(std::get<0>(state->values()));
    } else if constexpr (sizeof...(Ts) > 1) {
      return std::move(state->values());
    }
  }

  // Take() if it is ready, otherwise nullopt and the future stays as it is. For
  // Future<>: whether it was ready.
  auto TryGet() {
    if constexpr (sizeof...(Ts) == 0) {
      return IsReady() ? (state_.Reset(), true) : false;
    } else {
      return IsReady() ? std::optional<Value>(Take()) : std::nullopt;
    }
  }

  // Calls `callback` with the values, as rvalues, once they are there. Returns
  // the future of what it returns; of the inner future's values if that is a
  // future itself. Consumes the future.
  template <class F>
  auto Then(F&& callback) ->
      typename FutureOf<std::invoke_result_t<F, Ts...>>::Type;

  // Calls `callback`, without arguments, once the value is there; the future
  // remains, to take the value from. For code that waits: the callback wakes
  // the waiter. It is destroyed uncalled if the promise breaks.
  template <class F>
  void OnReady(F&& callback) {
    RunFutureSteps(FutureState<Ts...>::SetCallback(
        state_, [callback = std::forward<F>(callback)](
                    std::tuple<Ts...>* values) mutable {
          if (values != nullptr) callback();
          return FutureStep();
        }));
  }

  // Calls `callback(std::tuple<Ts...>&)` with the values together; it may move
  // from them, and may return a FutureStep, which is done when it is no more.
  // Consumes the future.
  template <class F>
  void OnValues(F&& callback) {
    RunFutureSteps(FutureState<Ts...>::SetCallback(
        std::move(state_), [callback = std::forward<F>(callback)](
                               std::tuple<Ts...>* values) mutable {
          if (values == nullptr) return FutureStep();
          if constexpr (std::is_same_v<decltype(callback(*values)),
                                       FutureStep>) {
            return callback(*values);
          } else {
            static_cast<void>(callback(*values));
            return FutureStep();
          }
        }));
  }

 private:
  friend class Promise<Ts...>;
  template <class... Us>
  friend class Future;
  explicit Future(RefPtr<FutureState<Ts...>> state)
      : state_(std::move(state)) {}

  RefPtr<FutureState<Ts...>> state_;
};

template <class... Ts>
class Promise {
 public:
  Promise() : state_(MakeRefCounted<FutureState<Ts...>>()) {}
  Promise(Promise&&) noexcept = default;
  Promise& operator=(Promise&& other) noexcept {
    if (this != &other) {
      Break();
      state_ = std::move(other.state_);
    }
    return *this;
  }
  ~Promise() { Break(); }

  // Once.
  Future<Ts...> GetFuture() {
    state_->MarkFutureTaken();
    return Future<Ts...>(state_);
  }

  // Once. Runs the future's callback, if it has one already.
  template <class... Us>
  requires(sizeof...(Us) == sizeof...(Ts) &&
           std::is_constructible_v<std::tuple<Ts...>,
                                   Us...>) void SetValue(Us&&... values) {
    RunFutureSteps(state_->SetValues(std::forward<Us>(values)...));
  }

  // The same with the values together.
  void SetTuple(std::tuple<Ts...> values) {
    RunFutureSteps(SetTupleStep(std::move(values)));
  }
  // For callbacks of OnValues: hands back what is to be done with them, instead
  // of doing it here.
  FutureStep SetTupleStep(std::tuple<Ts...> values) {
    return state_->SetTuple(std::move(values));
  }

 private:
  template <class... Us>
  friend class Future;

  void Break() {
    if (state_ != nullptr) RunFutureSteps(state_->BreakIfUnset());
  }
  // The same, and it is a promise of nothing then.
  FutureStep Drop() {
    const auto state = std::move(state_);
    return state->BreakIfUnset();
  }

  RefPtr<FutureState<Ts...>> state_;
};

// A future whose values are there.
template <class... Ts>
Future<std::decay_t<Ts>...> MakeReadyFuture(Ts&&... values) {
  Promise<std::decay_t<Ts>...> promise;
  promise.SetValue(std::forward<Ts>(values)...);
  return promise.GetFuture();
}

template <class... Ts>
template <class F>
auto Future<Ts...>::Then(F&& callback) ->
    typename FutureOf<std::invoke_result_t<F, Ts...>>::Type {
  using R = std::invoke_result_t<F, Ts...>;
  using Result = typename FutureOf<R>::Type;
  const auto launch = [&]<class... Us>(Promise<Us...> promise) {
    Result result = promise.GetFuture();
    // Each ends with what is left to do [FS6].
    RunFutureSteps(FutureState<Ts...>::SetCallback(
        std::move(state_),
        [promise = std::move(promise), callback = std::forward<F>(callback)](
            std::tuple<Ts...>* values) mutable {
          if (values == nullptr) return promise.Drop();
          if constexpr (kIsFuture<R>) {
            return FutureState<Us...>::SetCallback(
                std::apply(callback, std::move(*values)).state_,
                [promise =
                     std::move(promise)](std::tuple<Us...>* inner) mutable {
                  if (inner == nullptr) return promise.Drop();
                  return promise.state_->SetTuple(std::move(*inner));
                });
          } else if constexpr (std::is_void_v<R>) {
            std::apply(callback, std::move(*values));
            return promise.state_->SetValues();
          } else {
            return promise.state_->SetValues(
                std::apply(callback, std::move(*values)));
          }
        }));
    return result;
  };
  return [&]<class... Us>(std::type_identity<Future<Us...>>) {
    return launch(Promise<Us...>());
  }(std::type_identity<Result>());
}

}  // namespace flare

#include "flare/base/future_combinators.h"

#endif  // FLARE_BASE_FUTURE_H_

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
// one callback. A chain of Thens, WhenAlls and the like takes no stack, however
// long; but one through the first of Split's futures does, and so does one of
// others than Thens whose promise breaks. A callback that runs another one, by
// SetValue or by Then of a future that is ready, nests it, at some 550 bytes of
// stack each time: a loop whose steps return Then(the next step) of ready
// futures overflows a fiber's stack after two hundred. Let a fiber wait
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
// Actions before SetValue are visible to code that sees the value. Costs: one
// pooled allocation per pair, one atomic operation on each side.

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
  // the future of its result; of the inner future's values if the result is a
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

  // Sets the values together.
  void SetTuple(std::tuple<Ts...> values) {
    RunFutureSteps(SetTupleStep(std::move(values)));
  }
  // Sets the values, for callbacks of OnValues: hands back the step to be done
  // with them, instead of doing it here.
  FutureStep SetTupleStep(std::tuple<Ts...> values) {
    return state_->SetTuple(std::move(values));
  }

 private:
  template <class... Us>
  friend class Future;

  void Break() {
    if (state_ != nullptr) RunFutureSteps(state_->BreakIfUnset());
  }
  // Drops the value; the promise is empty then.
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
    // Each ends with the steps that are left to do [FS6].
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

// --- WhenAll, WhenAny and Split ---
//
// Any thread; nothing blocks. The futures that are given may become ready on
// different threads at the same time; callbacks of the result run where the
// future that decides it became ready.

// The part that one input adds to the values of WhenAll's result: nothing for
// Future<>, T for Future<T>, one tuple for several.
template <class... Ts>
using FutureContribution =
    std::conditional_t<sizeof...(Ts) <= 1, std::tuple<Ts...>,
                       std::tuple<std::tuple<Ts...>>>;

// Collects the values of different futures; freed with the last callback.
template <class... Contributions>
class FutureGatherer : public RefCounted<FutureGatherer<Contributions...>> {
  using Result = decltype(std::tuple_cat(std::declval<Contributions>()...));
  template <class>
  struct PromiseOf;
  template <class... Rs>
  struct PromiseOf<std::tuple<Rs...>> {
    using Type = Promise<Rs...>;
  };

 public:
  auto GetFuture() { return promise_.GetFuture(); }

  template <std::size_t kIndex, class... Ts>
  void Watch(Future<Ts...> future) {
    future.OnValues([self = RefPtr<FutureGatherer>(ref_ptr, this)](
                        std::tuple<Ts...>& values) {
      std::get<kIndex>(self->parts_).emplace(std::move(values));
      return self->CountDown();
    });
  }

 private:
  FutureStep CountDown() {
    // acq_rel: release pairs with the acquire of the last one, which then sees
    // all parts [FG1].
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return {};
    return promise_.SetTupleStep(std::apply(
        [](auto&... parts) { return std::tuple_cat(std::move(*parts)...); },
        parts_));
  }

  std::atomic<std::size_t> left_{sizeof...(Contributions)};
  typename PromiseOf<Result>::Type promise_;
  std::tuple<std::optional<Contributions>...> parts_;
};

// WhenAll() for any number of futures of one type.
template <class... Ts>
class FutureVectorGatherer : public RefCounted<FutureVectorGatherer<Ts...>> {
  using Value = typename FutureValueOf<Ts...>::Type;

 public:
  explicit FutureVectorGatherer(std::size_t size)
      : left_(size + 1), parts_(size) {}

  auto GetFuture() { return promise_.GetFuture(); }

  void Watch(std::size_t index, Future<Ts...> future) {
    future.OnValues([self = RefPtr<FutureVectorGatherer>(ref_ptr, this),
                     index](std::tuple<Ts...>& values) {
      self->parts_[index].emplace(std::move(values));
      return self->CountDown();
    });
  }

  // Once per future, and once when all are watched.
  FutureStep CountDown() {
    // acq_rel: as in FutureGatherer [FG1].
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return {};
    if constexpr (sizeof...(Ts) == 0) {
      return promise_.SetTupleStep({});
    } else {
      std::vector<Value> values;
      values.reserve(parts_.size());
      for (auto& part : parts_) {
        if constexpr (sizeof...(Ts) == 1) {
          values.push_back(std::move(std::get<0>(*part)));
        } else {
          values.push_back(std::move(*part));
        }
      }
      return promise_.SetTupleStep({std::move(values)});
    }
  }

 private:
  using ResultPromise = typename std::conditional_t<
      sizeof...(Ts) == 0, std::type_identity<Promise<>>,
      std::type_identity<Promise<std::vector<
          std::conditional_t<std::is_void_v<Value>, int, Value>>>>>::type;

  std::atomic<std::size_t> left_;
  ResultPromise promise_;
  std::vector<std::optional<std::tuple<Ts...>>> parts_;
};

// Takes the value of whichever future is first.
template <class... Ts>
class FutureRace : public RefCounted<FutureRace<Ts...>> {
 public:
  auto GetFuture() { return promise_.GetFuture(); }

  void Watch(std::size_t index, Future<Ts...> future) {
    future.OnValues([self = RefPtr<FutureRace>(ref_ptr, this),
                     index](std::tuple<Ts...>& values) {
      // relaxed: only decides which one is first; its values go through the
      // promise.
      if (self->decided_.exchange(true, std::memory_order_relaxed)) {
        return FutureStep();
      }
      return self->promise_.SetTupleStep(
          std::tuple_cat(std::tuple<std::size_t>(index),
                         FutureContribution<Ts...>(std::move(values))));
    });
  }

 private:
  using ResultPromise = typename std::conditional_t<
      sizeof...(Ts) == 0, std::type_identity<Promise<std::size_t>>,
      std::type_identity<Promise<
          std::size_t,
          std::conditional_t<sizeof...(Ts) == 0, int,
                             typename FutureValueOf<Ts...>::Type>>>>::type;

  std::atomic<bool> decided_{false};
  ResultPromise promise_;
};

// A future of all values: those of Future<> vanish, several values of one
// future stay together as a tuple. WhenAll(Future<int>, Future<>,
// Future<char, bool>) gives Future<int, std::tuple<char, bool>>.
template <class... Futures>
requires(sizeof...(Futures) > 0 &&
         (kIsFuture<Futures> && ...)) auto WhenAll(Futures... futures) {
  return [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    const auto contribution = []<class... Ts>(const Future<Ts...>&)
        -> std::type_identity<FutureContribution<Ts...>> { return {}; };
    const auto gatherer = MakeRefCounted<
        FutureGatherer<typename decltype(contribution(futures))::type...>>();
    auto result = gatherer->GetFuture();
    (gatherer->template Watch<kIndices>(std::move(futures)), ...);
    return result;
  }
  (std::index_sequence_for<Futures...>());
}

// Does so for futures by pointer, which are consumed.
template <class... Futures>
requires(sizeof...(Futures) > 0 &&
         (kIsFuture<Futures> && ...)) auto WhenAll(Futures*... futures) {
  return WhenAll(std::move(*futures)...);
}

// Future<std::vector<T>>, in the order of the futures; Future<> if they have no
// values. Ready at once if there are none.
template <class... Ts>
auto WhenAll(std::vector<Future<Ts...>> futures) {
  const auto gatherer =
      MakeRefCounted<FutureVectorGatherer<Ts...>>(futures.size());
  auto result = gatherer->GetFuture();
  for (std::size_t i = 0; i < futures.size(); ++i) {
    gatherer->Watch(i, std::move(futures[i]));
  }
  RunFutureSteps(gatherer->CountDown());
  return result;
}

template <class... Ts>
auto WhenAll(std::vector<Future<Ts...>>* futures) {
  return WhenAll(std::move(*futures));
}

// The index of the future that was ready first, and its value, if it has any
// (std::tuple for several). The values of the others are dropped. There must be
// at least one. Breaks if all of them break.
template <class... Ts>
auto WhenAny(std::vector<Future<Ts...>> futures) {
  CHECK(!futures.empty()) << "WhenAny of no futures would never be ready";
  const auto race = MakeRefCounted<FutureRace<Ts...>>();
  auto result = race->GetFuture();
  for (std::size_t i = 0; i < futures.size(); ++i) {
    race->Watch(i, std::move(futures[i]));
  }
  return result;
}

template <class... Ts>
auto WhenAny(std::vector<Future<Ts...>>* futures) {
  return WhenAny(std::move(*futures));
}

// Two futures of the same values, for two consumers; the first one's callback
// runs first. Values are copied once. Both break if the future does.
template <class... Ts>
requires(std::is_copy_constructible_v<Ts>&&...)
    std::pair<Future<Ts...>, Future<Ts...>> Split(Future<Ts...> future) {
  Promise<Ts...> first;
  Promise<Ts...> second;
  std::pair result(first.GetFuture(), second.GetFuture());
  future.OnValues([first = std::move(first), second = std::move(second)](
                      std::tuple<Ts...>& values) mutable {
    first.SetTuple(values);
    return second.SetTupleStep(std::move(values));
  });
  return result;
}

template <class... Ts>
auto Split(Future<Ts...>* future) {
  return Split(std::move(*future));
}

}  // namespace flare

#endif  // FLARE_BASE_FUTURE_H_

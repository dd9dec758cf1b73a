// WhenAll, WhenAny and Split. Include flare/base/future.h.
//
// Any thread; nothing blocks. The futures that are given may become ready on
// different threads at the same time; callbacks of the result run where the
// future that decides it became ready.

#ifndef FLARE_BASE_FUTURE_COMBINATORS_H_
#define FLARE_BASE_FUTURE_COMBINATORS_H_

#include <atomic>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "flare/base/future.h"
#include "flare/base/ref_ptr.h"
#include "glog/logging.h"

namespace flare {

// What one input adds to the values of WhenAll's result: nothing for Future<>,
// T for Future<T>, one tuple for several.
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
    // acq_rel: release pairs with the acquire of whoever comes last, which then
    // sees all parts [FG1].
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return {};
    return promise_.SetTupleStep(std::apply(
        [](auto&... parts) { return std::tuple_cat(std::move(*parts)...); },
        parts_));
  }

  std::atomic<std::size_t> left_{sizeof...(Contributions)};
  typename PromiseOf<Result>::Type promise_;
  std::tuple<std::optional<Contributions>...> parts_;
};

// The same for any number of futures of one type.
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
      // relaxed: only decides who is first; what it publishes goes through the
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

// The same; the futures are consumed.
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

#endif  // FLARE_BASE_FUTURE_COMBINATORS_H_

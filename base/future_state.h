// The state that a Promise and its Future share: room for the values and for
// one callback and the word that says which of them are there. Internal to
// future.h.
//
// Rules:
//  [FS1] The values are written once, by the promise, before kValue is set; the
//        callback once, by the future, before kCallback is set.
//  [FS2] The side that sets the second of these bits runs the callback: exactly
//        one side sees the other's bit in the result of its fetch_or.
//  [FS3] A callback that is set owns a reference to the state, dropped after it
//        has run or has been thrown away. So the promise and the future may be
//        destroyed meanwhile, by the callback itself, too.
//  [FS4] After its fetch_or, a side that doesn't run the callback touches the
//        state no more: the other side may destroy it.
//  [FS5] kBroken (the promise has gone without a value) is set in the place of
//        kValue; then the callback is called without values.
//  [FS6] A future that a callback makes ready is not finished inside of it, but
//        handed back as a FutureStep, which is done when the callback is no
//        more: so chains, however long, run in a loop.

#ifndef FLARE_BASE_FUTURE_STATE_H_
#define FLARE_BASE_FUTURE_STATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#include "flare/base/function.h"
#include "flare/base/object_pool.h"
#include "flare/base/ref_ptr.h"
#include "glog/logging.h"

namespace flare {

// The step left to be done for a state that has both its outcome and its
// callback; nothing if `run` is nullptr. Owns the callback's reference [FS3].
struct [[nodiscard]] FutureStep {
  void* state = nullptr;
  FutureStep (*run)(void* state) = nullptr;
};

// Does it, and the steps that follow from it [FS6].
inline void RunFutureSteps(FutureStep step) {
  while (step.run != nullptr) step = step.run(step.state);
}

template <class... Ts>
class FutureState : public RefCounted<FutureState<Ts...>> {
 public:
  // Gets the values, which it may move from; nullptr: there won't be any. Must
  // not throw.
  using Callback = Function<FutureStep(std::tuple<Ts...>*)>;

  // Pooled, so that a future costs no call of the general allocator; but pools
  // of large memory would only be waste.
  static void* operator new(std::size_t) {
    static_assert(alignof(FutureState) <= 64, "over-aligned values");
    if constexpr (kPooled<FutureState>) {
      return PoolAllocate<sizeof(FutureState)>();
    } else {
      return ::operator new(sizeof(FutureState), kAlign);
    }
  }
  static void operator delete(void* memory) {
    if constexpr (kPooled<FutureState>) {
      PoolFree<sizeof(FutureState)>(memory);
    } else {
      ::operator delete(memory, kAlign);
    }
  }

  // Promise's side, one thread.

  template <class... Us>
  FutureStep SetValues(Us&&... values) {
    CHECK(!values_.has_value()) << "a promise was given its value twice";
    values_.emplace(std::forward<Us>(values)...);
    return Publish(kValue);
  }

  FutureStep SetTuple(std::tuple<Ts...>&& values) {
    CHECK(!values_.has_value()) << "a promise was given its value twice";
    values_.emplace(std::move(values));
    return Publish(kValue);
  }

  // The promise is going: once. Nothing happens if it has given its value.
  FutureStep BreakIfUnset() {
    return values_.has_value() ? FutureStep() : Publish(kBroken);
  }

  // The one future of this state is being handed out.
  void MarkFutureTaken() {
    CHECK(!future_taken_) << "GetFuture() was called twice on one promise";
    future_taken_ = true;
  }

  // Future's side, one thread.

  bool IsReady() const noexcept {
    // acquire: pairs with the release in Publish [FS1].
    return (flags_.load(std::memory_order_acquire) & kValue) != 0;
  }

  bool IsBroken() const noexcept {
    // acquire: pairs with the release in Publish, as for IsReady [FS5].
    return (flags_.load(std::memory_order_acquire) & kBroken) != 0;
  }

  // Requires IsReady().
  std::tuple<Ts...>& values() noexcept { return *values_; }

  // Consumes a reference to `state` [FS3]. The step runs the callback, if the
  // values are there.
  static FutureStep SetCallback(RefPtr<FutureState> state, Callback callback) {
    CHECK(!state->callback_taken_) << "only one callback can wait for a future";
    state->callback_taken_ = true;
    state->callback_ = std::move(callback);
    FutureState* const raw = state.Leak();
    // acq_rel: release pairs with the acquire in Publish, acquire with its
    // release [FS1] [FS2].
    const std::uint32_t before =
        raw->flags_.fetch_or(kCallback, std::memory_order_acq_rel);
    return before != 0 ? FutureStep{raw, &Finish} : FutureStep();  // [FS4]
  }

 private:
  // A template, so that it is only looked at when the class is complete.
  template <class State>
  static constexpr bool kPooled = sizeof(State) <= 1024;
  static constexpr std::align_val_t kAlign{64};

  static constexpr std::uint32_t kValue = 1;
  static constexpr std::uint32_t kBroken = 2;
  static constexpr std::uint32_t kCallback = 4;

  FutureStep Publish(std::uint32_t outcome) {
    // acq_rel: release pairs with the acquires in IsReady, IsBroken and
    // SetCallback, acquire with the release in SetCallback [FS1] [FS2].
    const std::uint32_t before =
        flags_.fetch_or(outcome, std::memory_order_acq_rel);
    return (before & kCallback) != 0 ? FutureStep{this, &Finish}
                                     : FutureStep();  // [FS4]
  }

  static FutureStep Finish(void* self) noexcept {
    const RefPtr<FutureState> state(adopt_ref,
                                    static_cast<FutureState*>(self));  // [FS3]
    const FutureStep next =
        state->callback_(state->values_ ? &*state->values_ : nullptr);
    state->callback_ = nullptr;  // Before the reference is dropped.
    return next;
  }

  std::atomic<std::uint32_t> flags_{0};
  bool future_taken_ = false;    // Promise's side.
  bool callback_taken_ = false;  // Future's side.
  Callback callback_;
  std::optional<std::tuple<Ts...>> values_;
};

}  // namespace flare

#endif  // FLARE_BASE_FUTURE_STATE_H_

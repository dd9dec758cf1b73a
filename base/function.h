// Function<R(Args...)>: a move-only std::function.
//
//   Function<void(int)> f = [p = std::make_unique<int>(1)](int x) { ... };
//   f(2);
//
// Callables of up to 48 bytes that move without throwing are stored inside,
// without an allocation; the whole object is one cache line. Larger ones cost
// one `new`. Calling an empty Function is a programming error (crashes). An
// object isn't thread-safe, like any value.

#ifndef FLARE_BASE_FUNCTION_H_
#define FLARE_BASE_FUNCTION_H_

#include <cstddef>
#include <functional>
#include <new>
#include <type_traits>
#include <utility>

#include "glog/logging.h"

namespace flare {

template <class Signature>
class Function;

template <class R, class... Args>
class Function<R(Args...)> {
 public:
  // Callables of at most this size need no allocation.
  static constexpr std::size_t kInlineSize = 48;

  Function() noexcept = default;
  Function(std::nullptr_t) noexcept {}

  // A null function pointer (or member pointer) makes an empty Function.
  template <class F, class D = std::decay_t<F>>
  requires(!std::is_same_v<D, Function> &&
           std::is_invocable_r_v<R, D&, Args...>) Function(F&& f) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<F>> ||
                  std::is_member_pointer_v<D>) {
      if (f == nullptr) return;
    }
    if constexpr (StoredInside<D>()) {
      ::new (storage_) D(std::forward<F>(f));
      invoke_ = &InvokeInside<D>;
      manage_ = &ManageInside<D>;
    } else {
      ::new (storage_) D*(new D(std::forward<F>(f)));
      invoke_ = &InvokeOutside<D>;
      manage_ = &ManageOutside<D>;
    }
  }

  Function(Function&& other) noexcept { MoveFrom(other); }
  Function& operator=(Function&& other) noexcept {
    if (this != &other) {
      Reset();
      MoveFrom(other);
    }
    return *this;
  }
  Function& operator=(std::nullptr_t) noexcept {
    Reset();
    return *this;
  }
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;
  ~Function() { Reset(); }

  // Also through const, as std::function's, so that a Function may be called
  // in a lambda that isn't `mutable`. The callable itself isn't const: it may
  // change, and two threads may call it at a time only if it allows that.
  R operator()(Args... args) const {
    DCHECK(invoke_ != nullptr) << "Called an empty Function.";
    return invoke_(storage_, std::forward<Args>(args)...);
  }

  explicit operator bool() const noexcept { return invoke_ != nullptr; }
  friend bool operator==(const Function& f, std::nullptr_t) noexcept {
    return !f;
  }

 private:
  // Moves the callable from `from` to `to` (raw storage) and destroys the
  // source; with a null `to` it only destroys.
  using Manage = void (*)(void* from, void* to) noexcept;

  template <class D>
  static constexpr bool StoredInside() {
    return sizeof(D) <= kInlineSize &&
           alignof(D) <= alignof(std::max_align_t) &&
           std::is_nothrow_move_constructible_v<D>;
  }

  template <class D>
  static R Call(D& f, Args&&... args) {
    if constexpr (std::is_void_v<R>) {
      static_cast<void>(std::invoke(f, std::forward<Args>(args)...));
    } else {
      return std::invoke(f, std::forward<Args>(args)...);
    }
  }

  template <class D>
  static R InvokeInside(void* storage, Args&&... args) {
    return Call(*static_cast<D*>(storage), std::forward<Args>(args)...);
  }
  template <class D>
  static R InvokeOutside(void* storage, Args&&... args) {
    return Call(**static_cast<D**>(storage), std::forward<Args>(args)...);
  }

  template <class D>
  static void ManageInside(void* from, void* to) noexcept {
    D* source = static_cast<D*>(from);
    if (to) ::new (to) D(std::move(*source));
    source->~D();
  }
  template <class D>
  static void ManageOutside(void* from, void* to) noexcept {
    D* callable = *static_cast<D**>(from);
    if (to) {
      ::new (to) D*(callable);
    } else {
      delete callable;
    }
  }

  void Reset() noexcept {
    if (!invoke_) return;
    // Emptied first: the callable's destructor may look at this object.
    invoke_ = nullptr;
    std::exchange(manage_, nullptr)(storage_, nullptr);
  }

  void MoveFrom(Function& other) noexcept {
    if (!other.invoke_) return;
    other.manage_(other.storage_, storage_);
    invoke_ = std::exchange(other.invoke_, nullptr);
    manage_ = std::exchange(other.manage_, nullptr);
  }

  alignas(std::max_align_t) mutable std::byte storage_[kInlineSize];
  R (*invoke_)(void* storage, Args&&... args) = nullptr;
  Manage manage_ = nullptr;
};

}  // namespace flare

#endif  // FLARE_BASE_FUNCTION_H_

// Intrusive reference counting: the count lives in the object, so that a
// reference costs one word and no control block.
//
//   class Connection : public RefCounted<Connection> { ... };
//   RefPtr<Connection> c = MakeRefCounted<Connection>(args...);
//   RefPtr<Connection> again(ref_ptr, c.Get());      // takes a reference
//   RefPtr<Connection> owned(adopt_ref, c.Leak());   // takes over a reference
//
// Counting is thread-safe; one RefPtr object is not (like std::shared_ptr).
// The object is destroyed by whichever thread drops the last reference.

#ifndef FLARE_BASE_REF_PTR_H_
#define FLARE_BASE_REF_PTR_H_

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace flare {

// Base of counted types; `T` is the derived class. A new object has a count of
// one, owned by its creator. `Deleter` is called (as `Deleter()(p)`) when the
// count reaches zero.
template <class T, class Deleter = std::default_delete<T>>
class RefCounted {
 public:
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  // Adds a reference. The caller must already hold one, directly or through
  // somebody who cannot drop it meanwhile.
  void Ref() const noexcept {
    // relaxed: a thread that can call this already sees the object; only the
    // last drop has to be ordered after anything.
    refs_.fetch_add(1, std::memory_order_relaxed);
  }

  // Drops a reference; destroys the object if it was the last one.
  void Deref() const noexcept {
    // acq_rel: each drop's release pairs with the last one's acquire, so that
    // every use of the object happens before its destruction [RP1].
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      Deleter()(const_cast<T*>(static_cast<const T*>(this)));
    }
  }

  // The count at some moment during the call; for tests and diagnostics.
  std::uint32_t UnsafeRefCount() const noexcept {
    // relaxed: a hint only, nothing is concluded from it.
    return refs_.load(std::memory_order_relaxed);
  }

  // Returns whether the caller's reference is the only one. If so, the actions
  // of the others have happened before.
  bool HasOneRef() const noexcept {
    // acquire: pairs with the release of each drop in Deref [RP1].
    return refs_.load(std::memory_order_acquire) == 1;
  }

 protected:
  RefCounted() = default;
  ~RefCounted() = default;

 private:
  mutable std::atomic<std::uint32_t> refs_{1};
};

// Tag: take over the reference that the raw pointer stands for.
struct adopt_ref_t {
  explicit adopt_ref_t() = default;
};
inline constexpr adopt_ref_t adopt_ref{};

// The name by which users of the published framework know it.
using adopt_ptr_t = adopt_ref_t;
inline constexpr adopt_ptr_t adopt_ptr{};

// Tag: add a reference of one's own.
struct ref_ptr_t {
  explicit ref_ptr_t() = default;
};
inline constexpr ref_ptr_t ref_ptr{};

// Owns one reference to a `T` with `Ref()` and `Deref()`, or is null.
template <class T>
class RefPtr {
 public:
  using element_type = T;

  constexpr RefPtr() noexcept = default;
  constexpr RefPtr(std::nullptr_t) noexcept {}
  constexpr RefPtr(adopt_ref_t, T* ptr) noexcept : ptr_(ptr) {}
  RefPtr(ref_ptr_t, T* ptr) noexcept : ptr_(ptr) {
    if (ptr_) ptr_->Ref();
  }
  RefPtr(const RefPtr& other) noexcept : RefPtr(ref_ptr, other.ptr_) {}
  RefPtr(RefPtr&& other) noexcept : ptr_(other.Leak()) {}
  // From a pointer to a derived class.
  template <class U>
  requires std::convertible_to<U*, T*> RefPtr(const RefPtr<U>& other)
  noexcept : RefPtr(ref_ptr, other.Get()) {}
  template <class U>
  requires std::convertible_to<U*, T*> RefPtr(RefPtr<U>&& other)
  noexcept : ptr_(other.Leak()) {}
  ~RefPtr() {
    if (ptr_) ptr_->Deref();
  }

  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): copies and swaps.
  RefPtr& operator=(const RefPtr& other) noexcept {
    RefPtr(other).Swap(*this);
    return *this;
  }
  RefPtr& operator=(RefPtr&& other) noexcept {
    RefPtr(std::move(other)).Swap(*this);
    return *this;
  }
  RefPtr& operator=(std::nullptr_t) noexcept {
    Reset();
    return *this;
  }

  T* Get() const noexcept { return ptr_; }
  T* operator->() const noexcept { return ptr_; }
  T& operator*() const noexcept { return *ptr_; }
  explicit operator bool() const noexcept { return ptr_ != nullptr; }

  // Drops the reference, if any.
  void Reset() noexcept { RefPtr().Swap(*this); }
  // ... and holds `ptr` instead.
  void Reset(ref_ptr_t, T* ptr) noexcept { RefPtr(ref_ptr, ptr).Swap(*this); }
  void Reset(adopt_ref_t, T* ptr) noexcept {
    RefPtr(adopt_ref, ptr).Swap(*this);
  }

  // Gives the reference away: the caller must Deref() it, or adopt it.
  [[nodiscard]] T* Leak() noexcept { return std::exchange(ptr_, nullptr); }

  void Swap(RefPtr& other) noexcept { std::swap(ptr_, other.ptr_); }

  friend bool operator==(const RefPtr& a, const RefPtr& b) noexcept {
    return a.ptr_ == b.ptr_;
  }
  friend bool operator==(const RefPtr& a, std::nullptr_t) noexcept {
    return a.ptr_ == nullptr;
  }

 private:
  T* ptr_ = nullptr;
};

// `new T(args...)`, its first reference adopted.
template <class T, class... Args>
RefPtr<T> MakeRefCounted(Args&&... args) {
  return RefPtr<T>(adopt_ref, new T(std::forward<Args>(args)...));
}

}  // namespace flare

template <class T>
struct std::hash<flare::RefPtr<T>> {
  std::size_t operator()(const flare::RefPtr<T>& p) const noexcept {
    return std::hash<T*>()(p.Get());
  }
};

#endif  // FLARE_BASE_REF_PTR_H_

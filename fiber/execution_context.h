// An execution context is what belongs together logically, over several fibers:
// one request, with all that is done for it.
//
//   fiber::ExecutionLocal<Trace> trace;            // static or long-lived
//
//   void Echo(const EchoRequest& request, ...) override {  // of a service
//     trace->id = NewId();
//     auto done = fiber::Async([&] { Log(trace->id); });   // the same Trace
//     ...
//   }
//
// A server runs the method or the HTTP handler of each request in a new one,
// which lasts as long as the call, and for as long as somebody runs in it. It
// travels with fiber::Async, with the children of a TaskGroup and with calls
// that don't block: their `done`, and what waits for their futures, runs in the
// context of the caller. Not with plain Spawn(), timers, work queues or a
// Fiber, unless Attributes::execution_context says so. Elsewhere, and to have
// another one, begin it:
//
//   fiber::ExecutionContext::Create()->Execute([&] { ... });
//
// For something that belongs to one fiber see FiberLocal (fiber_local.h).
//
// Costs nothing where it isn't used: code without a context carries a null
// pointer, and in a program without any ExecutionLocal (AnyLocals()) servers
// make no contexts.

#ifndef FLARE_FIBER_EXECUTION_CONTEXT_H_
#define FLARE_FIBER_EXECUTION_CONTEXT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "flare/base/cpu.h"
#include "flare/base/object_pool.h"
#include "flare/base/ref_ptr.h"

namespace flare::fiber {

// Counted; whoever runs in it (Execute) holds a reference. All functions are
// callable from any thread and don't block. Values that it holds (see
// ExecutionLocal) are destroyed with the last reference, wherever that is
// dropped.
class ExecutionContext : public RefCounted<ExecutionContext> {
 public:
  static RefPtr<ExecutionContext> Create();

  // The one that the calling fiber (or plain thread) runs in; nullptr: none.
  // Valid for as long as the caller stays in it.
  static ExecutionContext* Current();

  // The same with a reference, to take elsewhere.
  static RefPtr<ExecutionContext> Capture() {
    return RefPtr<ExecutionContext>(ref_ptr, Current());
  }

  // Whether the program has an ExecutionLocal. If not, nobody can tell one
  // context from another, and none need be made. Set before main() (or when a
  // library is loaded), also by one that is a static of a function which hasn't
  // run yet. A load of one byte.
  static bool AnyLocals() {
    // relaxed: nothing but the answer is wanted.
    return any_locals_.set.load(std::memory_order_relaxed);
  }

  // Calls `f()` in this context, here and now, and returns what it returns. May
  // be nested; what the caller ran in before is put back at the end.
  template <class F>
  decltype(auto) Execute(F&& f);

  // From the pool.
  static void* operator new(std::size_t);
  static void operator delete(void* memory);

  ~ExecutionContext();

 private:
  template <class T>
  friend class ExecutionLocal;
  friend class ExecutionContextScope;
  template <class T, class... Args>
  friend RefPtr<T> flare::MakeRefCounted(Args&&... args);

  struct Value {
    void (*destroy)(Value* self);
  };
  static constexpr std::size_t kChunkSlots = 8;
  struct Chunk {
    std::array<std::atomic<Value*>, kChunkSlots> values{};
    std::atomic<Chunk*> next{nullptr};
  };

  ExecutionContext() = default;

  // On a line that nobody writes to: it is looked at for each request.
  struct alignas(kCacheLine) AnyLocalsFlag {
    std::atomic<bool> set{false};
  };

  static bool NoteLocals() noexcept {
    any_locals_.set.store(true, std::memory_order_relaxed);  // See AnyLocals().
    return true;
  }
  static std::size_t AllocateSlot();
  // Where the calling fiber or thread keeps its context.
  static ExecutionContext** Place();
  std::atomic<Value*>& ValueAt(std::size_t slot);

  static AnyLocalsFlag any_locals_;

  Chunk first_;
};

// The scope runs in `context` (nullptr: in none), which it keeps alive.
class ExecutionContextScope {
 public:
  explicit ExecutionContextScope(RefPtr<ExecutionContext> context)
      : context_(std::move(context)),
        place_(ExecutionContext::Place()),
        previous_(std::exchange(*place_, context_.Get())) {}
  ExecutionContextScope(const ExecutionContextScope&) = delete;
  ExecutionContextScope& operator=(const ExecutionContextScope&) = delete;
  ~ExecutionContextScope() { *place_ = previous_; }

 private:
  const RefPtr<ExecutionContext> context_;
  // The fiber's own: stays where it is when the fiber moves.
  ExecutionContext** const place_;
  ExecutionContext* const previous_;
};

[[noreturn]] void DieOutsideOfContexts();

// One T per execution context. Slots are numbered for ever: don't make them per
// request.
template <class T>
class ExecutionLocal {
 public:
  ExecutionLocal() : slot_(ExecutionContext::AllocateSlot()) {
    static_cast<void>(&noted_);
  }
  ExecutionLocal(const ExecutionLocal&) = delete;
  ExecutionLocal& operator=(const ExecutionLocal&) = delete;

  // The value in the current context, default-constructed when first asked for;
  // nullptr: the caller runs in no context. Valid until the context ends. Who
  // shares a context shares the T: it is T that must be thread-safe. If two ask
  // first at the same time, two are constructed and one of them is dropped.
  T* get() const {
    ExecutionContext* const context = ExecutionContext::Current();
    return context == nullptr ? nullptr : GetFrom(context);
  }
  // Ends the process with a message where get() gives nullptr.
  T* operator->() const {
    T* const value = get();
    if (value == nullptr) [[unlikely]] {
      DieOutsideOfContexts();
    }
    return value;
  }
  T& operator*() const { return *operator->(); }

  // The value in a given context.
  T* GetFrom(ExecutionContext* context) const;

 private:
  struct Holder : ExecutionContext::Value {
    Holder() {
      this->destroy = [](ExecutionContext::Value* self) {
        delete static_cast<Holder*>(self);
      };
    }

    // From a pool, unless it is large or its alignment is: many requests have
    // one each.
    static void* operator new(std::size_t size) {
      if constexpr (kPoolable<sizeof(Holder), alignof(Holder)>) {
        return PoolAllocate<sizeof(Holder)>();
      } else {
        return ::operator new (size, std::align_val_t{alignof(Holder)});
      }
    }
    static void operator delete(void* memory) noexcept {
      if constexpr (kPoolable<sizeof(Holder), alignof(Holder)>) {
        PoolFree<sizeof(Holder)>(memory);
      } else {
        ::operator delete (memory, std::align_val_t{alignof(Holder)});
      }
    }

    T value{};
  };
  template <std::size_t kSize, std::size_t kAlignment>
  static constexpr bool kPoolable = kSize <= 1024 && kAlignment <= 32;

  // Initialized before main() in each program with code that constructs one, as
  // that refers to it.
  static inline const bool noted_ = ExecutionContext::NoteLocals();

  const std::size_t slot_;
};

template <class F>
decltype(auto) ExecutionContext::Execute(F&& f) {
  const ExecutionContextScope scope(RefPtr<ExecutionContext>(ref_ptr, this));
  return std::forward<F>(f)();
}

// Calls `f()` in `context`, or just so if that is nullptr. The reference is
// dropped before this returns.
template <class F>
decltype(auto) WithExecutionContextIfPresent(RefPtr<ExecutionContext> context,
                                             F&& f) {
  if (context == nullptr) return std::forward<F>(f)();
  const ExecutionContextScope scope(std::move(context));
  return std::forward<F>(f)();
}

template <class T>
T* ExecutionLocal<T>::GetFrom(ExecutionContext* context) const {
  std::atomic<ExecutionContext::Value*>& place = context->ValueAt(slot_);
  // acquire: pairs with the release in the exchange below [EC1].
  ExecutionContext::Value* value = place.load(std::memory_order_acquire);
  if (value == nullptr) [[unlikely]] {
    auto* const fresh = new Holder();
    // acq_rel: release pairs with the acquires here and above, so that the
    // value is seen constructed [EC1].
    if (!place.compare_exchange_strong(value, fresh,
                                       std::memory_order_acq_rel)) {
      delete fresh;
    } else {
      value = fresh;
    }
  }
  return &static_cast<Holder*>(value)->value;
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_EXECUTION_CONTEXT_H_

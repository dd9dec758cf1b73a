// An execution context groups work that belongs together logically, over
// several fibers: one request, with all that is done for it.
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
// that don't block: their `done`, and the code that waits for their futures,
// runs in the context of the caller. It doesn't travel with plain Spawn(),
// timers, work queues or a Fiber, unless Attributes::execution_context says so.
// Elsewhere, and to have another one, begin it:
//
//   fiber::ExecutionContext::Create()->Execute([&] { ... });
//
// For something that belongs to one fiber see FiberLocal (fiber_local.h).
//
// A context can be told to stop, by the caller's leaving or by its deadline,
// say. Waits that are given its token end then:
//
//   std::stop_token stop = fiber::ExecutionContext::Current()->stop_token();
//   if (!this_fiber::SleepFor(stop, 9s)) return;          // it was stopped
//
// Code without a context carries a null pointer.

#ifndef FLARE_FIBER_EXECUTION_CONTEXT_H_
#define FLARE_FIBER_EXECUTION_CONTEXT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stop_token>
#include <string>
#include <utility>

#include "flare/base/cpu.h"
#include "flare/base/object_pool.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare::fiber {

// Why a context was stopped.
enum class StopCause : std::uint8_t {
  kNone,          // It wasn't.
  kCancelled,     // The caller, or the program, has asked for it.
  kCallerGone,    // The caller's connection is lost, or its input has ended.
  kDeadline,      // The time of the call is over.
  kShuttingDown,  // The server stops.
};
// "the caller is gone".
const char* ToString(StopCause cause);

// Counted; a fiber or thread that runs in it (Execute) holds a reference. All
// functions are callable from any thread and don't block. Values that it holds
// (see ExecutionLocal) are destroyed with the last reference, wherever that is
// dropped.
class ExecutionContext : public RefCounted<ExecutionContext> {
 public:
  // The party that a context works for, and that knows when it is to stop.
  class Owner {
   public:
    // Somebody watches: stop_token() is called for the first time. From here on
    // the owner calls RequestStop() when there is cause. Returns kNone, or the
    // cause that there is already. At most once for each context, by any
    // thread, with the context's spinlock held: must neither block nor call the
    // context.
    [[nodiscard]] virtual StopCause OnWatched() = 0;

   protected:
    ~Owner() = default;
  };

  // `deadline_ns`: see deadline_ns(). `owner`, if there is one, must live until
  // Disown() has returned, or until the context is gone.
  static RefPtr<ExecutionContext> Create(std::int64_t deadline_ns = 0,
                                         Owner* owner = nullptr);

  // Returns the one that the calling fiber (or plain thread) runs in; nullptr:
  // none. Valid for as long as the caller stays in it.
  static ExecutionContext* Current();

  // Returns Current() with a reference, to take elsewhere.
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

  // Calls `f()` in this context, here and now, and returns its result. May be
  // nested; the caller's context is put back at the end.
  template <class F>
  decltype(auto) Execute(F&& f);

  // The time when the work done here should have ended, in NowNs() time; 0: no
  // matter when. Calls that are made in the context take no longer by default.
  // The context itself watches no clock: its owner does.
  std::int64_t deadline_ns() const { return deadline_ns_; }
  // Before anybody else has a reference.
  void set_deadline_ns(std::int64_t deadline_ns) { deadline_ns_ = deadline_ns; }

  // Stops when RequestStop() is called, and does so only for contexts whose
  // owner, or somebody else, does that. Made at the first call, which allocates
  // memory: contexts that nobody watches cost nothing. Callbacks
  // (std::stop_callback) run in whatever thread or fiber requests the stop, and
  // must neither block nor suspend [WL5]: let them set an Event, or Spawn().
  [[nodiscard]] std::stop_token stop_token();

  // Ends waits that were given the token, and calls its callbacks, before it
  // returns. False: it was stopped before. Doesn't block by itself.
  bool RequestStop(StopCause cause);

  bool stop_requested() const { return stop_cause() != StopCause::kNone; }
  StopCause stop_cause() const {
    if (whole_ != nullptr) [[unlikely]] {
      return OutermostWhole()->stop_cause();
    }
    // acquire: pairs with the release in RequestStop [EC3].
    return cause_.load(std::memory_order_acquire);
  }

  // --- For owners ---

  // OnWatched() isn't called from here on; one that runs is waited for, without
  // suspending.
  void Disown();

  // Nobody else has a reference, has stored a value in it, or watches it: it
  // may serve as a new one.
  bool IsAsNew() const {
    // relaxed: the one that has set it had a reference, whose drop HasOneRef()
    // acquires.
    return HasOneRef() && !used_.load(std::memory_order_relaxed);
  }

  // --- For lists of fibers ---

  // Describes an owner for readers of fiber lists: "method of peer, 1.2 s". ""
  // if it doesn't know. The owner may change meanwhile, or be gone: memory is
  // to be read by ReadOwnMemory() (base/backtrace.h) alone.
  using Describer = std::string (*)(const Owner* owner);
  // The one for all owners of the process. Any thread.
  static void SetDescriber(Describer describer);
  // Describes the owner of `context`, which may be gone, too. "" without an
  // owner.
  static std::string DescribeOwner(const ExecutionContext* context);

  // From the pool.
  static void* operator new(std::size_t);
  static void operator delete(void* memory);

  ~ExecutionContext();

 private:
  template <class T>
  friend class ExecutionLocal;
  friend class BorrowedExecutionContextScope;
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

  ExecutionContext(std::int64_t deadline_ns, Owner* owner)
      : deadline_ns_(deadline_ns), owner_(owner) {}
  // A part of `whole`: see ExecutionLocal::MakePart().
  ExecutionContext(RefPtr<ExecutionContext> whole, std::size_t slot,
                   Value* value)
      : deadline_ns_(whole->deadline_ns_),
        owner_(nullptr),
        whole_(std::move(whole)),
        part_slot_(slot),
        part_value_(value) {}

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
  // Only of parts: there is one [EC5].
  ExecutionContext* OutermostWhole() const {
    ExecutionContext* whole = whole_.Get();
    while (whole->whole_ != nullptr) whole = whole->whole_.Get();
    return whole;
  }

  // relaxed: see IsAsNew().
  void NoteUse() { used_.store(true, std::memory_order_relaxed); }

  static AnyLocalsFlag any_locals_;

  Spinlock stop_lock_;
  std::atomic<StopCause> cause_{StopCause::kNone};  // Set under stop_lock_.
  std::atomic<bool> used_{false};                   // See IsAsNew().
  std::int64_t deadline_ns_;
  Owner* owner_ FLARE_GUARDED_BY(stop_lock_);
  // Without a state until somebody watches.
  std::stop_source stop_ FLARE_GUARDED_BY(stop_lock_){std::nostopstate};
  Chunk first_;
  // The context that this one is a part of; null: none. Set in all parts, until
  // their end, and so are the slot of their own value, and the value [EC5].
  RefPtr<ExecutionContext> whole_;
  const std::size_t part_slot_ = 0;
  Value* const part_value_ = nullptr;
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

  // Whether the caller runs in this scope, and in none within it, as it has to
  // at the end.
  bool IsInnermost() const {
    return ExecutionContext::Place() == place_ && *place_ == context_.Get();
  }

 private:
  const RefPtr<ExecutionContext> context_;
  // The fiber's own: stays where it is when the fiber moves.
  ExecutionContext** const place_;
  ExecutionContext* const previous_;
};

// The scope runs in a context that somebody else keeps alive.
class BorrowedExecutionContextScope {
 public:
  explicit BorrowedExecutionContextScope(ExecutionContext* context)
      : place_(ExecutionContext::Place()),
        previous_(std::exchange(*place_, context)) {}
  BorrowedExecutionContextScope(const BorrowedExecutionContextScope&) = delete;
  BorrowedExecutionContextScope& operator=(
      const BorrowedExecutionContextScope&) = delete;
  ~BorrowedExecutionContextScope() { *place_ = previous_; }

 private:
  ExecutionContext** const place_;  // The fiber's own.
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
  // nullptr: the caller runs in no context. Valid until the context ends.
  // Fibers and threads that share a context share the T: it is T that must be
  // thread-safe. If two ask first at the same time, two are constructed and one
  // of them is dropped.
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

  // Returns a context for a part of the work that is done in `whole`: it is
  // stopped with that, has the same deadline and shares all values, except that
  // it has a `value` of its own here. Parts may have parts. Allocates.
  RefPtr<ExecutionContext> MakePart(RefPtr<ExecutionContext> whole,
                                    T value) const {
    // Their values would never be looked at. So work that goes on in a part of
    // its part, step by step, doesn't keep all of them.
    while (whole->whole_ != nullptr && whole->part_slot_ == slot_) {
      whole = whole->whole_;
    }
    auto holder = std::make_unique<Holder>();
    holder->value = std::move(value);
    auto part = MakeRefCounted<ExecutionContext>(
        std::move(whole), slot_,
        static_cast<ExecutionContext::Value*>(holder.get()));
    static_cast<void>(holder.release());  // The part's.
    return part;
  }

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
  for (; context->whole_ != nullptr;
       context = context->whole_.Get()) {  // [EC5]
    if (context->part_slot_ == slot_) {
      return &static_cast<Holder*>(context->part_value_)->value;
    }
  }
  std::atomic<ExecutionContext::Value*>& place = context->ValueAt(slot_);
  // acquire: pairs with the release in the exchange below [EC1].
  ExecutionContext::Value* value = place.load(std::memory_order_acquire);
  if (value == nullptr) [[unlikely]] {
    auto* const fresh = new Holder();
    context->NoteUse();
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

// FiberLocal<T>: one T per fiber, like thread_local per thread. Outside of
// fibers it is one per thread.
//
//   fiber::FiberLocal<RequestContext> context;   // static or long-lived
//   context->user = "...";                       // this fiber's own
//
// A value is default-constructed when first touched by a fiber, and destroyed
// when that fiber ends, on that fiber, where the destructor may still block: it
// may lock, sleep, start fibers and join them, and use FiberLocals (those made
// meanwhile are destroyed after it). Values are destroyed before Fiber::join()
// or TaskGroup::Wait() returns; an Async's future may have its value earlier.
// Destructors of thread-locals and statics may use FiberLocals, too; values
// that those of statics make new, after the main thread's values have ended,
// stays. Any number of FiberLocals may exist; destroying one leaves values that
// fibers still have to be destroyed with those fibers. Slots are numbered for
// ever: don't make FiberLocals per request.

#ifndef FLARE_FIBER_FIBER_LOCAL_H_
#define FLARE_FIBER_FIBER_LOCAL_H_

#include <cstddef>

namespace flare::fiber {

// The slot's value for the calling fiber (or thread), made by `create` when it
// has none; `destroy` is kept for its end.
void* GetFiberLocal(std::size_t slot, void* (*create)(),
                    void (*destroy)(void*));

// A slot number never used before in this process.
std::size_t AllocateFiberLocalSlot();

// Ends the calling fiber's values now: its function is over, but somebody is
// still to be told. On a plain thread nothing happens.
void EndFiberLocals();

template <class T>
class FiberLocal {
 public:
  FiberLocal() : slot_(AllocateFiberLocalSlot()) {}
  FiberLocal(const FiberLocal&) = delete;
  FiberLocal& operator=(const FiberLocal&) = delete;

  // The calling fiber's value. The pointer is valid until the fiber ends, also
  // across suspensions.
  T* get() const {
    return static_cast<T*>(GetFiberLocal(
        slot_, [] { return static_cast<void*>(new T()); },
        [](void* value) { delete static_cast<T*>(value); }));
  }
  T* operator->() const { return get(); }
  T& operator*() const { return *get(); }

 private:
  const std::size_t slot_;
};

}  // namespace flare::fiber

namespace flare {

// The name by which users of the published framework know it.
using fiber::FiberLocal;

}  // namespace flare

#endif  // FLARE_FIBER_FIBER_LOCAL_H_

// A small number for the calling thread, for statistics that all workers write
// at once: each writes a slot of its own, so that no cache line travels between
// them; a reader of the sum reads all slots.

#ifndef EXAMPLE_RPC_THREAD_SLOT_H_
#define EXAMPLE_RPC_THREAD_SLOT_H_

#include <atomic>
#include <cstddef>

namespace example {

inline constexpr std::size_t kThreadSlots = 256;

// 0 to kThreadSlots - 1, dealt round robin: beyond that many threads some
// share one, so slots need atomics, which are uncontended nearly always.
//
// Never inlined: a fiber may go on on another thread after it has blocked, and
// the compiler must not keep the address of the old thread's variable.
[[gnu::noinline]] inline std::size_t ThreadSlot() {
  static std::atomic<std::size_t> next{0};
  // relaxed: only a number is handed out.
  static thread_local const std::size_t slot =
      next.fetch_add(1, std::memory_order_relaxed) % kThreadSlots;
  return slot;
}

}  // namespace example

#endif  // EXAMPLE_RPC_THREAD_SLOT_H_

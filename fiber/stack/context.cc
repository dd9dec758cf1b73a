#include "flare/fiber/stack/context.h"

#include <cstdint>
#include <cstring>

namespace flare::fiber {

// Builds the frame that flare_switch_context() pops; its layout is at the top
// of context_<isa>.S.
void* MakeContext(void* stack_top, void (*entry)(void*, void*),
                  void* argument) {
  const auto top = reinterpret_cast<std::uintptr_t>(stack_top) & ~15UL;
#if defined(__x86_64__)
  // After the switch has popped the frame and returned into
  // flare_context_entry, the stack pointer is `top`: aligned for a call.
  auto* const frame = reinterpret_cast<std::uint64_t*>(top) - 8;
  std::memset(frame, 0, 8 * sizeof(std::uint64_t));
  // Defaults, in place of the caller's modes.
  frame[0] = kDefaultMxcsr | std::uint64_t{kDefaultX87} << 32;
  frame[3] = reinterpret_cast<std::uint64_t>(argument);  // r13
  frame[4] = reinterpret_cast<std::uint64_t>(entry);     // r12
  frame[7] = reinterpret_cast<std::uint64_t>(&flare_context_entry);
#elif defined(__aarch64__)
  auto* const frame = reinterpret_cast<std::uint64_t*>(top) - 22;
  std::memset(frame, 0, 22 * sizeof(std::uint64_t));
  frame[1] = reinterpret_cast<std::uint64_t>(&flare_context_entry);  // x30
  frame[2] = reinterpret_cast<std::uint64_t>(entry);                 // x19
  frame[3] = reinterpret_cast<std::uint64_t>(argument);              // x20
  frame[20] = 0;                                                     // FPCR: the default modes.
#else
#error "No context switch for this instruction set."
#endif
  return frame;
}

}  // namespace flare::fiber

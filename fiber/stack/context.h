// The context switch: exchanges the callee-saved registers, the stack pointer
// and the floating-point control words. A few nanoseconds.

#ifndef FLARE_FIBER_CONTEXT_H_
#define FLARE_FIBER_CONTEXT_H_

#include <cstddef>
#include <cstdint>

namespace flare::fiber {

// The floating-point modes that the ABI gives to a new thread: round to
// nearest, no exception traps, denormal numbers are kept.
#if defined(__x86_64__)
inline constexpr std::uint32_t kDefaultMxcsr = 0x1f80;
inline constexpr std::uint32_t kMxcsrModes = 0xffc0;  // The rest are flags.
inline constexpr std::uint16_t kDefaultX87 = 0x037f;
#elif defined(__aarch64__)
inline constexpr std::uint64_t kDefaultFpcr = 0;
#endif

// Sets them where they differ. Eight instructions where they don't: storing the
// modes is cheap, loading them isn't.
[[gnu::always_inline]] inline void RestoreFloatingPointModes() {
#if defined(__x86_64__)
  std::uint32_t mxcsr;
  std::uint16_t x87;
  asm volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(x87));
  if ((mxcsr & kMxcsrModes) != kDefaultMxcsr) [[unlikely]] {
    asm volatile("ldmxcsr %0" : : "m"(kDefaultMxcsr));
  }
  if (x87 != kDefaultX87) [[unlikely]] {
    asm volatile("fldcw %0" : : "m"(kDefaultX87));
  }
#elif defined(__aarch64__)
  std::uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  if (fpcr != kDefaultFpcr) [[unlikely]] {
    asm volatile("msr fpcr, %0" : : "r"(kDefaultFpcr));
  }
#endif
}

extern "C" {

// Saves the caller's registers on its stack and the resulting stack pointer in
// `*save_sp`, then continues the context saved under `target_sp`. Returns when
// somebody switches back to `*save_sp`, with the `value` that one passes,
// possibly on another thread: whatever the caller fetched from thread-local
// storage before is stale by then.
void* flare_switch_context(void** save_sp, void* target_sp, void* value);

// Where a new context starts; not to be called.
void flare_context_entry();
}

// Switches inline, within the function it is written in. A processor predicts
// returns by its own stack of calls, and after a switch that is another
// context's: each return out of nested functions is then predicted wrong, which
// costs more than the switch itself. Inlined into functions that are themselves
// called from the same places, there are few such returns, and they are
// predicted right.
//
// Leaves the frame that flare_switch_context() leaves, so that either can
// continue a context that the other has suspended.
[[gnu::always_inline]] inline void* SwitchContext(void** save_sp,
                                                  void* target_sp,
                                                  void* value) {
#if defined(__x86_64__)
  void* passed;
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"  // The red zone.
      "leaq 4f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "pushq %%rbp\n\t"
      // rbx and r12 to r15 are the compiler's to keep: see the clobbers.
      "subq $48, %%rsp\n\t"
      "stmxcsr (%%rsp)\n\t"
      "fnstcw 4(%%rsp)\n\t"
      "movl (%%rsp), %%eax\n\t"
      "movzwl 4(%%rsp), %%ecx\n\t"
      "movq %%rsp, (%%rdi)\n\t"
      "movq %%rsi, %%rsp\n\t"
      "xorl (%%rsp), %%eax\n\t"
      "testl $0xffc0, %%eax\n\t"
      "jne 2f\n"
      "1: cmpw %%cx, 4(%%rsp)\n\t"
      "jne 3f\n"
      "0: movq 8(%%rsp), %%r15\n\t"
      "movq 16(%%rsp), %%r14\n\t"
      "movq 24(%%rsp), %%r13\n\t"
      "movq 32(%%rsp), %%r12\n\t"
      "movq 40(%%rsp), %%rbx\n\t"
      "movq 48(%%rsp), %%rbp\n\t"
      "movq 56(%%rsp), %%rcx\n\t"
      "addq $64, %%rsp\n\t"
      "movq %%rdx, %%rax\n\t"
      "jmp *%%rcx\n"
      "2: ldmxcsr (%%rsp)\n\t"
      "jmp 1b\n"
      "3: fldcw 4(%%rsp)\n\t"
      "jmp 0b\n"
      "4: leaq 128(%%rsp), %%rsp"
      : "=&a"(passed), "+D"(save_sp), "+S"(target_sp), "+d"(value)
      :
      : "rbx", "rcx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
        "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#ifdef __AVX512F__
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23",
        "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31",
        "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#endif
        "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)",
        "memory", "cc");
  return passed;
#else
  return flare_switch_context(save_sp, target_sp, value);
#endif
}

// Prepares a context at the high end of a stack so that the first switch to
// the returned stack pointer calls `entry(argument, value)`. `entry` must not
// return.
void* MakeContext(void* stack_top, void (*entry)(void*, void*), void* argument);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CONTEXT_H_

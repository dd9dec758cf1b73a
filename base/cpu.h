// Facts about the processor that code is written against.

#ifndef FLARE_BASE_CPU_H_
#define FLARE_BASE_CPU_H_

#include <cstddef>

namespace flare {

// Data written by different threads is kept this many bytes apart. (Our own
// constant: std::hardware_destructive_interference_size varies with compiler
// flags, which would make object layouts vary, too.)
inline constexpr std::size_t kCacheLine = 64;

// For the body of a loop that spins on memory: lets the sibling hyperthread run
// and saves the pipeline flush at the end of the loop. 5 to 50 ns; it is no
// system call.
inline void CpuRelax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on most cores.
#else
#error "flare runs on x86-64 and AArch64 only"
#endif
}

}  // namespace flare

#endif  // FLARE_BASE_CPU_H_

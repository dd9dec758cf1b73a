// Waiting for a 32-bit word to change: Linux futexes, private to the process.
// The word is the protocol, these calls only sleep and wake:
//
//   std::atomic<std::uint32_t> ready{0};
//   // waiter
//   while (ready.load(std::memory_order_acquire) == 0) {
//     FutexWait(&ready, 0, kNoDeadline);
//   }
//   // waker
//   ready.store(1, std::memory_order_release);
//   FutexWake(&ready, 1);
//
// They block and wake threads, not fibers, and order no memory that the program
// may rely on: the atomic word itself makes earlier changes visible.

#ifndef FLARE_BASE_FUTEX_H_
#define FLARE_BASE_FUTEX_H_

#include <atomic>
#include <cstdint>

namespace flare {

enum class FutexResult {
  kWoken,     // By FutexWake, or spuriously (rare): look at the word again.
  kChanged,   // The word was not `expected`: did not sleep.
  kTimedOut,  // The deadline has passed.
};

// Sleeps while *word == expected, until woken or until CLOCK_MONOTONIC (the
// clock of NowNs()) reaches `deadline_ns` (kNoDeadline of clock.h: no limit). A
// signal handler that runs meanwhile doesn't end the wait. `word` must stay
// valid until this returns. One system call, ~1 us when it doesn't sleep.
FutexResult FutexWait(const std::atomic<std::uint32_t>* word,
                      std::uint32_t expected, std::int64_t deadline_ns);

// Wakes up to `count` threads that sleep in FutexWait on `word` (INT_MAX: all);
// returns how many. Only the address is used: harmless (a spurious wake-up at
// worst) if the word has just been freed by a waiter that saw it change. One
// system call.
int FutexWake(const std::atomic<std::uint32_t>* word, int count);

}  // namespace flare

#endif  // FLARE_BASE_FUTEX_H_

// Bounds the stack that continuations of futures take which are ready at once.
//
// A loop such as
//
//   void Next() { reader.Read().Then([this](auto message) { Next(); }); }
//
// goes one turn deeper into the stack with each message that is there already.
// So a read (or a write) that finds itself deep below the first one of such a
// row hands over to a fiber, which lets the caller leave before it goes on.

#ifndef FLARE_RPC_STREAM_NESTING_BOUND_H_
#define FLARE_RPC_STREAM_NESTING_BOUND_H_

#include <chrono>
#include <cstdint>

#include "flare/fiber/this_fiber.h"

namespace flare::rpc {

// Bounds the reads, or writes, of one stream. Not thread-safe.
class NestingBound {
 public:
  // Is the caller's frame far below the one that a row began with? Those that
  // are yet deeper are, too: the caller may still go on where it is.
  [[gnu::noinline]] bool Exceeded() {
    const auto here =
        reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    // Stacks grow downwards. A frame above the first one, or far away, which
    // is on another fiber's stack, begins a row of its own.
    const std::uintptr_t depth = first_ - here;
    if (first_ == 0 || depth > kOtherStack) {
      first_ = here;
      return false;
    }
    if (depth < kMaxDepth) return false;
    // Further off than where it was: a frame near here may be on a stack that
    // lies below the row's, and goes on elsewhere after one hand-over.
    first_ = here + (kMaxDepth - kMoreDepth);
    return true;
  }

  // On the fiber that was handed over to, before it sets the future's value.
  // By then the caller has attached its continuation, which runs on this
  // fiber's stack. If it was preempted just there, it goes one turn deeper; an
  // overflow would take that dozens of times in a row.
  static void LetCallerLeave() {
    this_fiber::SleepFor(std::chrono::microseconds(20));
  }

 private:
  static constexpr std::uintptr_t kMaxDepth = 16 << 10;
  static constexpr std::uintptr_t kMoreDepth = 1 << 10;
  static constexpr std::uintptr_t kOtherStack = 64 << 10;

  std::uintptr_t first_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_STREAM_NESTING_BOUND_H_

// The end of a call: decides which thread answers it, and which gives it back.
// Its task and `done` leave it in any order, the method may throw, and
// interceptors go around it.
//
//   the task:  completion.BeginMethod();
//              service->CallMethod(..., done);
//              if (completion.MethodReturned()) GiveBack();
//   `done`:    if (completion.ClaimByDone()) {
//                answer, release all;
//                if (completion.Released()) GiveBack();
//              }
//
// The state is one word, of which each function is a transition. Only
// WaitForDone() blocks. Rules in call_completion.cc.
#ifndef FLARE_RPC_SERVER_CALL_COMPLETION_H_
#define FLARE_RPC_SERVER_CALL_COMPLETION_H_

#include <atomic>
#include <cstdint>

#include "flare/fiber/event.h"

namespace flare::rpc {

class CallCompletion {
 public:
  CallCompletion() = default;
  CallCompletion(const CallCompletion&) = delete;
  CallCompletion& operator=(const CallCompletion&) = delete;

  // --- The task's ---

  // A new call: its task may end it before it calls a method.
  void Prepare() {
    // relaxed: the worker that runs the task has got the call through its
    // queue.
    word_.store(kReturned, std::memory_order_relaxed);
  }

  // The method is called next.
  void BeginMethod() {
    // relaxed: nobody else knows of the call.
    word_.store(0, std::memory_order_relaxed);
  }
  // It has returned. True: the call was released, and the caller gives it back.
  [[nodiscard]] bool MethodReturned() {
    // acquire: pairs with the release in Released [CE2].
    std::uint8_t word = word_.load(std::memory_order_acquire);
    if ((word & kReleased) == 0) {
      // acq_rel: pairs with Released [CE2], on both sides.
      word = word_.fetch_or(kReturned, std::memory_order_acq_rel);
    }
    return (word & kReleased) != 0;
  }
  // It has thrown. True: the call fails by that, here or, with interceptors,
  // after them. False: `done` was first, and the call goes its way.
  [[nodiscard]] bool ClaimByException() {
    // acquire: pairs with ClaimByDone() and Watch() [CE1].
    std::uint8_t word = word_.load(std::memory_order_acquire);
    do {
      // Without kThrown, by which Seal() would make it the call's end.
      if ((word & kEnded) != 0) return false;
      // acq_rel, acquire: pairs with them, both ways.
    } while (!word_.compare_exchange_weak(word, word | kEnded | kThrown,
                                          std::memory_order_acq_rel,
                                          std::memory_order_acquire));
    return true;
  }

  // The interceptors are called next, in place of the method.
  void BeginIntercepted() {
    // relaxed: nobody else knows of the call.
    word_.store(kIntercepted | kReturned, std::memory_order_relaxed);
  }
  // Within them, when the method has returned: blocks the fiber until `done`
  // was run.
  void WaitForDone() {
    // acquire: pairs with ClaimByDone().
    if ((word_.load(std::memory_order_acquire) & kEnded) == 0) BlockForDone();
  }
  // They have returned: the caller answers the call and releases it. True: the
  // method has thrown.
  [[nodiscard]] bool Seal() {
    // acq_rel: pairs with Watch() [CE1].
    return (SetOnce(kSealed, std::memory_order_acq_rel) & kThrown) != 0;
  }

  // The request was served without a method.
  void ClaimByTask() {
    // acq_rel: pairs with Watch() [CE1].
    word_.fetch_or(kEnded, std::memory_order_acq_rel);
  }

  // --- Those of others ---

  // `done` is run, by any thread. True: the caller answers and releases the
  // call. A second time dies with a message, if it can be noticed.
  [[nodiscard]] bool ClaimByDone() {
    // acq_rel: pairs with ClaimByException() and Watch() [CE1].
    const std::uint8_t before =
        word_.fetch_or(kEnded, std::memory_order_acq_rel);
    if ((before & (kEnded | kIntercepted)) == 0) [[likely]]
      return true;
    // Else the task goes on from here.
    if (before != (kIntercepted | kReturned)) NoteDone(before);
    return false;
  }

  // Somebody is about to watch the call's context. False: the end was claimed.
  [[nodiscard]] bool Watch() {
    // acq_rel: pairs with the claims [CE1].
    const std::uint8_t before =
        word_.fetch_or(kWatched, std::memory_order_acq_rel);
    return (before & ((before & kIntercepted) != 0 ? kSealed : kEnded)) == 0;
  }
  // Somebody watches it, or has tried to. For the one that has claimed the end.
  bool watched() const {
    // relaxed: the claim has ordered it [CE1].
    return (word_.load(std::memory_order_relaxed) & kWatched) != 0;
  }

  // All of the call is released but its memory. True: the caller gives that
  // back. False: the task does, and the call may be gone.
  [[nodiscard]] bool Released() {
    // acq_rel: pairs with MethodReturned(), both ways [CE2].
    return (SetOnce(kReleased, std::memory_order_acq_rel) & kReturned) != 0;
  }

 private:
  // See call_completion.cc.
  static constexpr std::uint8_t kReturned = 1;
  static constexpr std::uint8_t kEnded = 2;
  static constexpr std::uint8_t kThrown = 4;
  static constexpr std::uint8_t kReleased = 8;
  static constexpr std::uint8_t kWatched = 16;
  static constexpr std::uint8_t kIntercepted = 32;
  static constexpr std::uint8_t kWaiting = 64;
  static constexpr std::uint8_t kSealed = 128;

  // Sets a bit that nobody has set, and returns the former word. By an
  // addition: x86 has an instruction for it, and none for the former value of
  // an `or`.
  std::uint8_t SetOnce(std::uint8_t bit, std::memory_order order) {
    return word_.fetch_add(bit, order);
  }

  [[gnu::noinline]] void NoteDone(std::uint8_t before);
  [[gnu::noinline]] void BlockForDone();

  fiber::Event* done_event_ = nullptr;  // Set before kWaiting.
  std::atomic<std::uint8_t> word_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_COMPLETION_H_

// A request for a thread's backtrace, and the answer: shared by the stack
// sampler and its signal handler.
//
//   slot.Ask(tid);  // Then signals the thread, whose handler does:
//   if (auto request = slot.Look(tid); request != 0 && slot.Claim(request)) {
//     slot.Answer(backtrace);
//   }
//   Backtrace backtrace = slot.Await(deadline);
//
// [SS1] There is one slot. Only the holder of the sampler's lock moves it from
//       kFree to kAsked; only the handler, on the thread asked, moves it from
//       kAsked to kWriting and then to kDone. So the backtrace has one writer,
//       and is read after kDone (release, acquire) by the asker.
// [SS2] An asker that loses patience moves the slot from kAsked back to kFree,
//       or finds that the handler writes and waits for it. A signal that
//       arrives later finds no request for its thread, and does nothing.
//       Requests are numbered, so a handler that has been kept from its CPU
//       since it found one doesn't claim the next, which is another thread's.

#ifndef FLARE_FIBER_SAMPLE_SLOT_H_
#define FLARE_FIBER_SAMPLE_SLOT_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "flare/base/backtrace.h"
#include "flare/base/clock.h"
#include "flare/base/futex.h"

namespace flare::fiber {

class SampleSlot {
 public:
  // Ask() and Await(): by one asker at a time.

  void Ask(pid_t tid) noexcept {
    // relaxed: published by the release below, which pairs with the acquires in
    // Look and Claim [SS1]; the lock orders the last request's end before this.
    tid_.store(tid, std::memory_order_relaxed);
    const std::uint32_t last = state_.load(std::memory_order_relaxed);
    state_.store(WithPhase(last + (kPhase + 1), kAsked),
                 std::memory_order_release);
  }

  // Blocks the thread until there is an answer, or, if none has been begun,
  // until `deadline_ns` (NowNs()); empty then. Ends the request.
  Backtrace Await(std::int64_t deadline_ns) noexcept {
    bool patient = NowNs() < deadline_ns;
    for (;;) {
      // acquire: pairs with the release in Answer [SS1].
      std::uint32_t state = state_.load(std::memory_order_acquire);
      const std::uint32_t phase = state & kPhase;
      if (phase == kDone) break;
      if (phase == kAsked && !patient) {
        // relaxed: nothing is read but that nobody answered [SS2].
        if (state_.compare_exchange_strong(state, WithPhase(state, kFree),
                                           std::memory_order_relaxed)) {
          return Backtrace();
        }
        continue;
      }
      FutexWait(&state_, state, patient ? deadline_ns : kNoDeadline);
      patient = patient && NowNs() < deadline_ns;
    }
    const Backtrace backtrace = backtrace_;
    // relaxed: the sampler's lock orders this with the next request [SS1].
    state_.store(WithPhase(state_.load(std::memory_order_relaxed), kFree),
                 std::memory_order_relaxed);
    return backtrace;
  }

  // By the handler on the thread `tid`. All three are signal-safe.

  // The request for this thread; 0: there is none.
  std::uint32_t Look(pid_t tid) const noexcept {
    // acquire: pairs with the release in Ask [SS1]. relaxed: is of that
    // request, or else of a later one, and then Claim fails [SS2].
    const std::uint32_t state = state_.load(std::memory_order_acquire);
    return (state & kPhase) == kAsked &&
                   tid_.load(std::memory_order_relaxed) == tid
               ? state
               : 0;
  }

  // False: the request has ended meanwhile.
  [[nodiscard]] bool Claim(std::uint32_t request) noexcept {
    // acquire: pairs with the release in Ask [SS1]; nothing is read on failure.
    return state_.compare_exchange_strong(request, WithPhase(request, kWriting),
                                          std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }

  void Answer(const Backtrace& backtrace) noexcept {
    backtrace_ = backtrace;
    // relaxed: nobody else changes it now. release: pairs with the acquire in
    // Await [SS1].
    const std::uint32_t state = state_.load(std::memory_order_relaxed);
    state_.store(WithPhase(state, kDone), std::memory_order_release);
    FutexWake(&state_, 1);
  }

 private:
  // The two lowest bits of the state; above them the request's number, which
  // comes again after 2^30.
  enum : std::uint32_t { kFree, kAsked, kWriting, kDone, kPhase = 3 };

  static constexpr std::uint32_t WithPhase(std::uint32_t state,
                                           std::uint32_t phase) noexcept {
    return (state & ~kPhase) | phase;
  }

  std::atomic<std::uint32_t> state_{kFree};
  std::atomic<pid_t> tid_{0};
  Backtrace backtrace_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_SAMPLE_SLOT_H_

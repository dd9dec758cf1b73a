// Readiness, bits of the word:
//
//   kActive   a reader is scheduled or running (the role is taken)
//   kAgain    an edge has come that no read has been begun after
//   kPaused   no read shall begin
//   kStopped  no read shall begin, and the role is not given back
//   kHangUp   sticky: the peer has ended its direction
//   kBroken   sticky: the connection has broken; there is no pause any more
//
//          Signal                Signal
//   idle ----------> reading ----------------> reading-again
//     ^----------------'  ^---------------------------'
//          Finish                Begin, Finish
//
//  [RD1] kActive is set only by Signal, Resume or Stop that returned true, and
//        the caller that got true schedules a reader; it is cleared only by
//        that reader. So at most one is scheduled or running. A role that is
//        held from the start counts as one, its owner being the one that
//        schedules it.
//  [RD2] A reader leaves only by a compare-exchange that has seen no kAgain,
//        or, when paused, by one that leaves kAgain set for Resume to see. So
//        no edge is lost.
//  [RD3] kPaused takes effect in Begin; kStopped beats it everywhere. Once
//        kStopped is set nobody clears kActive.
//
// All changes are acq_rel: the actions of one reader happen before those of the
// next one, through the word, and actions before Stop() are seen by the reader
// that gets kStopped. Tag [RD1] for each.
//
// WritableWait: one flusher at a time calls Arm, Wait, Disarm; OnWritable comes
// from anywhere.
//
//  [WW1] A waiting flusher is scheduled exactly once: by the call that takes
//        kWaiting away with a compare-exchange.
//  [WW2] An edge after Arm() is either seen by Wait() or finds kWaiting. The
//        send between the two has met a full socket, so the kernel makes an
//        edge as soon as there is room; and an edge before that send doesn't
//        matter.
#include "flare/io/readiness.h"

namespace flare::io {
namespace {

constexpr std::uint32_t kActive = 1;
constexpr std::uint32_t kAgain = 2;
constexpr std::uint32_t kPaused = 4;
constexpr std::uint32_t kStopped = 8;
constexpr std::uint32_t kHangUp = 16;
constexpr std::uint32_t kBroken = 32;

// Is the reader to stay away until Resume()?
constexpr bool IsPaused(std::uint32_t state) {
  return (state & (kPaused | kBroken)) == kPaused;
}

enum Wait : std::uint32_t { kNobody, kArmed, kEdge, kWaiting };

}  // namespace

Readiness::Readiness(bool held) noexcept : state_(held ? kActive : 0) {}

bool Readiness::Signal(bool hang_up, bool broken) noexcept {
  const std::uint32_t sticky = (hang_up ? kHangUp : 0) | (broken ? kBroken : 0);
  // relaxed: validated by the exchange.
  std::uint32_t old = state_.load(std::memory_order_relaxed);
  for (;;) {
    const bool becomes_active = (old & kActive) == 0 && !IsPaused(old | sticky);
    const std::uint32_t add = becomes_active ? kActive : kAgain;
    // acq_rel: pairs with the exchanges in Finish, Begin and Resume [RD1].
    if (state_.compare_exchange_weak(old, old | add | sticky,
                                     std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
      return becomes_active;
    }
  }
}

void Readiness::Pause() noexcept {
  // acq_rel: pairs with the exchanges in Begin and Resume [RD1].
  state_.fetch_or(kPaused, std::memory_order_acq_rel);
}

bool Readiness::Resume() noexcept {
  // relaxed: validated by the exchange.
  std::uint32_t old = state_.load(std::memory_order_relaxed);
  for (;;) {
    const bool becomes_active = (old & (kActive | kAgain)) == kAgain;
    std::uint32_t wanted = old & ~kPaused;
    if (becomes_active) wanted = (wanted | kActive) & ~kAgain;
    // acq_rel: pairs with the exchange by which a reader left [RD1] [RD2].
    if (state_.compare_exchange_weak(old, wanted, std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
      return becomes_active;
    }
  }
}

bool Readiness::Stop() noexcept {
  // acq_rel: pairs with the exchanges of readers that left, and with the load
  // in Begin of the one that will see it [RD1] [RD3].
  const std::uint32_t old =
      state_.fetch_or(kStopped | kActive | kAgain, std::memory_order_acq_rel);
  return (old & kActive) == 0;
}

Readiness::Turn Readiness::Begin() noexcept {
  // acquire: pairs with the exchanges in Signal, Resume and Stop [RD1].
  std::uint32_t old = state_.load(std::memory_order_acquire);
  for (;;) {
    if ((old & kStopped) != 0) return Turn::kStopped;  // [RD3]
    if ((old & (kPaused | kBroken)) == (kPaused | kBroken)) {
      return Turn::kBroken;
    }
    if (IsPaused(old)) {
      // acq_rel: pairs with the exchange in Resume [RD1] [RD2].
      if (state_.compare_exchange_weak(old, (old & ~kActive) | kAgain,
                                       std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        return Turn::kLeft;
      }
    } else if ((old & kAgain) != 0) {
      // acq_rel: pairs with the exchange in Signal [RD1].
      if (state_.compare_exchange_weak(old, old & ~kAgain,
                                       std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        return Turn::kRead;
      }
    } else {
      return Turn::kRead;
    }
  }
}

bool Readiness::Finish() noexcept {
  // relaxed: validated by the exchange.
  std::uint32_t old = state_.load(std::memory_order_relaxed);
  // [RD2]. acq_rel: pairs with the exchange in Signal, Resume, Stop [RD1].
  while ((old & kAgain) == 0) {
    if (state_.compare_exchange_weak(old, old & ~kActive,
                                     std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

bool Readiness::hang_up() const noexcept {
  // relaxed: asked by a reader that came after the Signal through Begin.
  return (state_.load(std::memory_order_relaxed) & kHangUp) != 0;
}

void WritableWait::Arm() noexcept {
  // seq_cst: ordered before the send that follows, and against the load in
  // the OnWritable of a thread that has shut the socket down before [WW2].
  state_.store(kArmed, std::memory_order_seq_cst);
}

bool WritableWait::Wait() noexcept {
  std::uint32_t expected = kArmed;
  // acq_rel: release pairs with the exchange in OnWritable: the next flusher
  // sees all that this one did [WW1].
  if (state_.compare_exchange_strong(expected, kWaiting,
                                     std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
    return true;
  }
  Disarm();
  return false;
}

void WritableWait::Disarm() noexcept {
  // relaxed: from here on edges are of no interest, and only a flusher, ordered
  // after this one by the output list, looks at the word in earnest.
  state_.store(kNobody, std::memory_order_relaxed);
}

bool WritableWait::OnWritable() noexcept {
  // seq_cst: pairs with the store in Arm [WW2].
  std::uint32_t old = state_.load(std::memory_order_seq_cst);
  for (;;) {
    switch (old) {
      case kArmed:
        // seq_cst: pairs with the exchange in Wait [WW2]; a failure repeats the
        // load above.
        if (state_.compare_exchange_weak(old, kEdge,
                                         std::memory_order_seq_cst)) {
          return false;
        }
        break;
      case kWaiting:
        // seq_cst: pairs with the exchange in Wait [WW1]; a failure repeats the
        // load.
        if (state_.compare_exchange_weak(old, kNobody,
                                         std::memory_order_seq_cst)) {
          return true;
        }
        break;
      default:
        return false;
    }
  }
}

}  // namespace flare::io

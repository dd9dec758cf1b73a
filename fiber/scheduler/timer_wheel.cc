// Rules:
//  [TW1] A timer is linked in exactly one slot (or the expired list) while
//        slot_ != kUnarmed; both change only under lock_.
//  [TW2] A callback runs with `running_` naming its timer and the timer
//        unlinked. Cancel that finds the timer unlinked waits until `running_`
//        names another one: then the callback has returned.
//  [TW3] After a callback has started, the wheel doesn't touch the timer: the
//        callback may free it or arm it again, here or on another wheel.
//  [TW4] A timer armed for tick T is linked at the level of the highest bit
//        group in which T and elapsed_ differ, so every slot's timers are due
//        after that slot's beginning, and a slot is emptied when elapsed_
//        reaches its beginning: into the levels below, or, at level 0, into the
//        expired list.
#include "flare/fiber/scheduler/timer_wheel.h"

#include <sched.h>

#include <algorithm>
#include <bit>

#include "flare/base/clock.h"
#include "glog/logging.h"

namespace flare::fiber {
namespace {

// The last tick of the top level's turn is reached from the slot before the
// current one; a timer beyond it waits there and is put back in time.
constexpr int kTopShift = 36;  // (kLevels - 1) * kSlotBits

// First tick at which `deadline_ns` has passed.
std::uint64_t TickAfter(std::int64_t deadline_ns) {
  if (deadline_ns <= 0) return 0;
  constexpr std::int64_t kTick = std::int64_t{1} << TimerWheel::kTickShift;
  if (deadline_ns > kNoDeadline - kTick) deadline_ns = kNoDeadline - kTick;
  return static_cast<std::uint64_t>(deadline_ns + kTick - 1) >>
         TimerWheel::kTickShift;
}

std::int64_t TickToNs(std::uint64_t tick) {
  constexpr std::uint64_t kLast =
      static_cast<std::uint64_t>(kNoDeadline) >> TimerWheel::kTickShift;
  return tick >= kLast
             ? kNoDeadline
             : static_cast<std::int64_t>(tick << TimerWheel::kTickShift);
}

}  // namespace

TimerWheel::TimerWheel(std::int64_t now_ns)
    : elapsed_(static_cast<std::uint64_t>(now_ns) >> kTickShift),
      next_deadline_(kNoDeadline) {}

// The callbacks called here may also destroy timers.
void TimerWheel::End() {
  ScopedLock guard(lock_);
  for (Timer*& slot : slots_) {
    while (Timer* const timer = slot) {
      Unlink(timer);
      timer->wheel_ = nullptr;
      if (timer->on_runtime_end_ == nullptr) continue;
      guard.unlock();
      timer->on_runtime_end_(timer);
      guard.lock();
    }
  }
}

void TimerWheel::Link(Timer* timer, std::uint16_t slot) {
  timer->slot_ = slot;
  timer->prev_ = nullptr;
  timer->next_ = slots_[slot];
  if (timer->next_ != nullptr) timer->next_->prev_ = timer;
  slots_[slot] = timer;
}

void TimerWheel::Unlink(Timer* timer) {
  const std::uint16_t slot = timer->slot_;
  timer->slot_ = Timer::kUnarmed;
  if (timer->next_ != nullptr) timer->next_->prev_ = timer->prev_;
  if (timer->prev_ != nullptr) {
    timer->prev_->next_ = timer->next_;
  } else {
    slots_[slot] = timer->next_;
    if (timer->next_ == nullptr && slot < kExpiredSlot) {
      occupied_[slot / kSlots] &= ~(std::uint64_t{1} << (slot % kSlots));
    }
  }
}

void TimerWheel::Insert(Timer* timer) {
  if (timer->tick_ <= elapsed_) {
    Link(timer, deferring_ ? kDeferredSlot : kExpiredSlot);
    return;
  }
  // Beyond the horizon: wait in the farthest slot, to be put back from there.
  static_assert(kTopShift == (kLevels - 1) * kSlotBits);
  const std::uint64_t tick = std::min(
      timer->tick_, ((elapsed_ >> kTopShift) + kSlots - 1) << kTopShift);
  const int high = 63 - std::countl_zero(tick ^ elapsed_);
  const int level = std::min(high / kSlotBits, kLevels - 1);
  const auto index = static_cast<int>((tick >> (level * kSlotBits)) % kSlots);
  Link(timer, static_cast<std::uint16_t>(level * kSlots + index));
  occupied_[level] |= std::uint64_t{1} << index;
}

void TimerWheel::Arm(Timer* timer, std::int64_t deadline_ns) {
  ScopedLock guard(lock_);
  DCHECK_EQ(timer->slot_, Timer::kUnarmed) << "armed twice";
  timer->wheel_ = this;
  timer->tick_ = TickAfter(deadline_ns);
  Insert(timer);
  const std::int64_t due = TickToNs(timer->tick_);
  // relaxed: written under lock_ only.
  if (due < next_deadline_.load(std::memory_order_relaxed)) {
    // seq_cst: pairs with the load in next_deadline().
    next_deadline_.store(due, std::memory_order_seq_cst);
  }
}

bool TimerWheel::Cancel(Timer* timer) {
  {
    ScopedLock guard(lock_);
    if (timer->slot_ != Timer::kUnarmed) {
      Unlink(timer);
      return true;
    }
  }
  // acquire: pairs with the release in Fire [TW2]: the callback's actions are
  // visible after this wait for its end.
  for (int spins = 0; running_.load(std::memory_order_acquire) == timer;) {
    if (++spins < 100) {
      CpuRelax();
    } else {
      CHECK(!IsFiredBy(pthread_self()))
          << "CancelTimer() in the timer's own callback would wait for itself";
      sched_yield();  // The thread that runs it may have been preempted.
    }
  }
  return false;
}

bool TimerWheel::IsFiredBy(pthread_t thread) {
  ScopedLock guard(lock_);
  return firing_now_ && pthread_equal(firing_thread_, thread) != 0;
}

TimerWheel::Slot TimerWheel::NextSlot() const {
  for (int level = 0; level < kLevels; ++level) {
    if (occupied_[level] == 0) continue;
    const int shift = level * kSlotBits;
    const auto position = static_cast<int>((elapsed_ >> shift) % kSlots);
    // Slots behind the position belong to the next turn (top level only).
    const int distance =
        std::countr_zero(std::rotr(occupied_[level], position));
    const std::uint64_t base = (elapsed_ >> shift) + distance;
    return {level, base << shift};
  }
  return {};
}

void TimerWheel::Empty(const Slot& slot) {
  const auto index = static_cast<std::uint16_t>(
      slot.level * kSlots +
      static_cast<int>((slot.at_tick >> (slot.level * kSlotBits)) % kSlots));
  while (Timer* const timer = slots_[index]) {
    Unlink(timer);
    Insert(timer);  // Against the new elapsed_: a level down, or expired.
  }
}

void TimerWheel::Advance(std::uint64_t now_tick) {
  for (;;) {
    const Slot slot = NextSlot();
    if (slot.level < 0 || slot.at_tick > now_tick) break;
    elapsed_ = std::max(elapsed_, slot.at_tick);
    Empty(slot);
  }
  elapsed_ = std::max(elapsed_, now_tick);
}

std::size_t TimerWheel::Fire(std::int64_t now_ns) {
  std::size_t fired = 0;
  ScopedLock guard(lock_);
  if (firing_now_) return 0;
  firing_now_ = true;
  firing_thread_ = pthread_self();
  Advance(static_cast<std::uint64_t>(now_ns) >> kTickShift);
  deferring_ = true;  // A callback that arms for the past waits its turn.
  while (Timer* const timer = slots_[kExpiredSlot]) {
    Unlink(timer);
    const Timer::Callback callback = timer->callback_;
    // release: where it comes right behind the null below, Cancel may see this
    // alone, and knows by it that the callback before has returned [TW2].
    running_.store(timer, std::memory_order_release);
    guard.unlock();
    callback(timer);  // [TW3]
    ++fired;
    guard.lock();
    // release: pairs with the acquire in Cancel [TW2].
    running_.store(nullptr, std::memory_order_release);
  }
  deferring_ = false;
  while (Timer* const timer = slots_[kDeferredSlot]) {
    Unlink(timer);
    Link(timer, kExpiredSlot);
  }
  Slot next = NextSlot();
  if (slots_[kExpiredSlot] != nullptr) next = {0, elapsed_};
  // relaxed: later than before; nobody sleeps too long for it.
  next_deadline_.store(next.level < 0 ? kNoDeadline : TickToNs(next.at_tick),
                       std::memory_order_relaxed);
  firing_now_ = false;
  return fired;
}

}  // namespace flare::fiber

#include "flare/rpc/http/ordered_replies.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "flare/rpc/http/http_replies.h"

namespace flare::rpc {

// Invariants:
//   [R1] Places are emitted in order, each once: next_ only grows, under lock_,
//        by the thread that set emitting_, and only that thread calls
//        ReplySink::Write, which may send at once and so isn't called under
//        lock_. Replies that become ready meanwhile are held, and found by that
//        thread before it takes emitting_ away.
//   [R2] A request counts in pending_ from before its message leaves the reader
//        until after its bytes went to the sink, or are held by [R1] for one
//        that counts. So when pending_ is zero with kClosing set, everything
//        that will ever be sent has been written, and exactly one thread sees
//        that transition: it closes.
//   [R3] After an ordered reply with `close` was emitted (ended_), nothing
//        ordered is emitted any more.
//   [R4] A reply with `close` says that nothing follows. In its turn it goes to
//        last_, and to the sink by the thread that closes: behind all that was
//        pending.
//   [R5] A reply in parts is emitted by its owner alone, from when its place is
//        next_ and nobody is emitting, until EndParts: replies of other places
//        are held, since next_ stays. An owner that comes too early leaves a
//        waiter in its slot, which the emitter that gets there tells, or the
//        one that sets ended_.
//   [R6] A reply without a place isn't held by that. So kParts is set first: a
//        request that enters from then on gets a place after all. Those that
//        entered before are waited for: the last of them, which sees kParts,
//        tells unordered_waiter_. kParts goes when the last part was written.
//   [R7] After EndInput() it is decided under lock_ of each reply whether it is
//        the last: of one with a place when it is emitted, of one without when
//        it is ready. It is if those with a place are through and there are no
//        others without but leaving_ ones, which weren't the last and are being
//        written. So exactly one is, and is treated as one with `close`; none
//        if others were being written when the input ended.
//        After ExpectEnd() one with a place is the last if its request alone
//        counts in pending_ when it sets kClosing there, from when on none is
//        entered. Each of those without says so, and the client closes.
//   [R8] A caller that waits before it makes its reply (AskToSend) leaves a
//        waiter in its slot, as in [R5], and is told by the emitter that gets
//        there, or that sets ended_: next_ then stays until it has sent. The
//        reply at next_ never waits, so that one of those before it always goes
//        on; unless that depends on the waiting caller: so none on which it can
//        waits for long (StopWaiting).

namespace {

// Parts of pending_: the number of requests in the lowest bits, that of those
// without a place from kUnordered on.
constexpr std::uint64_t kClosing = std::uint64_t{1} << 31;
constexpr std::uint64_t kUnordered = std::uint64_t{1} << 32;
constexpr std::uint64_t kParts = std::uint64_t{1} << 63;

constexpr std::uint64_t CountUnordered(std::uint64_t pending) {
  return (pending & ~kParts) / kUnordered;
}
constexpr bool HasUnordered(std::uint64_t pending) {
  return CountUnordered(pending) != 0;
}

// The sink learns of the held bytes in multiples of this.
constexpr std::size_t kHeldStep = 16 << 10;

// It isn't the reply to a request (100 Continue).
bool IsInterim(const Buffer& bytes) {
  return bytes.FirstContiguous().starts_with("HTTP/1.1 1");
}

constexpr std::size_t kMinSlots = 8;
// A larger ring goes when nothing is pending: many connections may have had
// many requests once.
constexpr std::size_t kMostKeptSlots = 64;

}  // namespace

OrderedReplies::~OrderedReplies() = default;

std::optional<std::uint64_t> OrderedReplies::Enter(bool forced) {
  // relaxed: the reader's own increments precede it; the count is a limit, not
  // a synchronisation.
  const std::uint64_t pending =
      pending_.load(std::memory_order_relaxed) & (kClosing - 1);
  if (!forced && pending >= max_pending_) return std::nullopt;
  // relaxed: only the count matters here; Leave orders the end.
  const std::uint64_t before = pending_.fetch_add(1, std::memory_order_relaxed);
  if ((before & kClosing) != 0) [[unlikely]] {  // [R7]
    Leave(1, false);
    return std::nullopt;
  }
  requests_ = entered_ + 1;
  return entered_++;
}

std::optional<std::uint64_t> OrderedReplies::EnterUnordered() {
  // acquire: pairs with EndParts, whose parts were written before [R6].
  const std::uint64_t before =
      pending_.fetch_add(kUnordered + 1, std::memory_order_acquire);
  if ((before & (kParts | kClosing)) == 0) [[likely]] {
    return std::nullopt;
  }
  return EnterAfterAll(before);
}

// Those that asked for their turn meanwhile have counted it as unordered.
std::uint64_t OrderedReplies::EnterAfterAll(std::uint64_t before) {
  if ((before & kClosing) != 0) {  // [R7]
    Leave(kUnordered + 1, false);
    return kClosed;
  }
  // acq_rel: as in Leave.
  before = pending_.fetch_sub(kUnordered, std::memory_order_acq_rel);
  if (!HasUnordered(before - kUnordered)) TellUnorderedAreGone();
  requests_ = entered_ + 1;
  return entered_++;
}

void OrderedReplies::Send(std::uint64_t place, Buffer&& bytes, bool close) {
  const bool last = SendInOrder(place, std::move(bytes), close);
  Leave(1, close || last);
}

void OrderedReplies::SendUnordered(Buffer&& bytes, bool close) {
  // relaxed: a reply that misses it is one that was on its way.
  if (close || input_ended_.load(std::memory_order_relaxed)) [[unlikely]] {
    return SendUnorderedAtEnd(std::move(bytes), close);
  }
  sink_->Write(std::move(bytes));
  Leave(kUnordered + 1, false);
}

void OrderedReplies::SendUnorderedAtEnd(Buffer&& bytes, bool close) {
  ScopedLock lock(lock_);
  if (!close && !end_expected_ && next_ >= end_ && ShallSayClose(1)) {
    close = say_close_ = true;
  }
  if (close) {
    last_.Append(std::move(bytes));  // [R4]
    lock.unlock();
    return Leave(kUnordered + 1, true);
  }
  ++leaving_;
  // A client that takes replies in any order may have sent further requests
  // before it gets this one. It waits for their replies and closes [R7].
  const bool say_close = end_expected_ && !IsInterim(bytes);
  lock.unlock();
  if (say_close) bytes = SayClose(std::move(bytes));
  sink_->Write(std::move(bytes));
  lock.lock();
  // Both at once [R7].
  --leaving_;
  const std::uint64_t left = CountDown(kUnordered + 1);
  lock.unlock();
  HandleLeft(left);
}

// Whether a reply is the last, apart from those with a place [R7]. `unordered`:
// how many of those without it is itself.
bool OrderedReplies::ShallSayClose(std::uint64_t unordered) {
  // relaxed: no more come, and those in leaving_ go under lock_.
  const std::uint64_t pending = pending_.load(std::memory_order_relaxed);
  return CountUnordered(pending) == leaving_ + unordered && last_.empty() &&
         !ended_;
}

// Whether the reply before next_, which isn't said to be the last, is it.
bool OrderedReplies::IsLastOrdered(const Buffer& bytes) {
  if (!end_expected_) return next_ == end_ && ShallSayClose(0);
  // Empty: of one in parts, whose head has left without saying so.
  return !bytes.empty() && !IsInterim(bytes) && CloseIfOnlyOne(next_);
}

// After ExpectEnd(): whether no reply is due but the one before `behind`, which
// then is the last. None of those that don't count any more is held [R2].
bool OrderedReplies::CloseIfOnlyOne(std::uint64_t behind) {
  // relaxed, both: earlier requests are counted, and none is entered later
  // [R7].
  std::uint64_t pending = pending_.load(std::memory_order_relaxed);
  return (pending & (2 * kClosing - 1)) == 1 && leaving_ == 0 &&
         last_.empty() && !ended_ &&
         (slots_.empty() || !SlotOf(behind).ready) &&
         pending_.compare_exchange_strong(pending, pending | kClosing,
                                          std::memory_order_relaxed);
}

void OrderedReplies::ExpectEnd() {
  ScopedLock lock(lock_);
  if (end_ != kNotEnded) return;
  end_expected_ = true;
  end_ = 0;
  // relaxed: as in EndInput.
  input_ended_.store(true, std::memory_order_relaxed);
}

void OrderedReplies::EndInput() {
  ScopedLock lock(lock_);
  end_ = requests_;
  end_expected_ = false;
  // relaxed: a thread that has seen it takes lock_.
  input_ended_.store(true, std::memory_order_relaxed);
}

bool OrderedReplies::IsLast(std::uint64_t place) {
  ScopedLock lock(lock_);
  return end_expected_ ? CloseIfOnlyOne(place + 1) : place + 1 == end_;
}

ReplyTurn OrderedReplies::AskToSend(std::uint64_t place,
                                    ReplyTurnWaiter* waiter, bool patient) {
  ScopedLock lock(lock_);
  if (ended_) return ReplyTurn::kNever;
  if (place == next_ || !much_held_ || (in_vain_ && !patient)) {
    return ReplyTurn::kNow;
  }
  MakeSlot(place).waiter = waiter;  // [R8]
  return ReplyTurn::kLater;
}

bool OrderedReplies::StopWaiting(std::uint64_t place) {
  ScopedLock lock(lock_);
  // Without slots all were told; else the waiter's is there, as nothing was
  // sent at `place`.
  if (slots_.empty() ||
      std::exchange(SlotOf(place).waiter, nullptr) == nullptr) {
    return false;
  }
  in_vain_ = much_held_;
  return true;
}

ReplyTurn OrderedReplies::AskForTurn(std::uint64_t place,
                                     ReplyTurnWaiter* waiter) {
  {
    ScopedLock lock(lock_);
    if (ended_) return ReplyTurn::kNever;
    if (place != next_ || emitting_) {
      MakeSlot(place).waiter = waiter;  // [R5]
      return ReplyTurn::kLater;
    }
    unordered_waiter_ = waiter;
  }
  // acq_rel: acquire pairs with Leave, so that output without a place was
  // written before our parts [R6]; release makes the waiter visible there.
  if (HasUnordered(pending_.fetch_or(kParts, std::memory_order_acq_rel))) {
    return ReplyTurn::kLater;
  }
  ScopedLock lock(lock_);
  // Somebody who passed through may have taken it away, and tells it.
  return std::exchange(unordered_waiter_, nullptr) != nullptr
             ? ReplyTurn::kNow
             : ReplyTurn::kLater;
}

void OrderedReplies::EndParts(std::uint64_t place, bool close) {
  // Before the next place gets its turn, and sets it again. Nothing may follow
  // a reply with `close`. release: pairs with EnterUnordered [R6].
  if (!close) pending_.fetch_and(~kParts, std::memory_order_release);
  Send(place, Buffer(), close);
}

void OrderedReplies::SendInterim(Buffer&& bytes) {
  SendInOrder(entered_++, std::move(bytes), false);
}

bool OrderedReplies::closing() const {
  // relaxed: a hint; a request read in spite of it is answered or dropped.
  return (pending_.load(std::memory_order_relaxed) & kClosing) != 0;
}

bool OrderedReplies::SendInOrder(std::uint64_t place, Buffer&& bytes,
                                 bool close) {
  ScopedLock lock(lock_);
  if (ended_) return false;
  if (place != next_ || emitting_) {
    if (Hold(place, std::move(bytes), close)) [[likely]]
      return false;
    const std::vector<Slot> dropped = End();
    sink_->Abort(flare::Status(STATUS_OVERLOADED,
                               "more than " + std::to_string(max_bytes_) +
                                   " bytes of HTTP replies wait for an earlier "
                                   "one that isn't ready"));
    lock.unlock();
    TellAll(dropped);
    return false;
  }
  emitting_ = true;  // [R1]
  Slot slot{std::move(bytes), true, close};
  do {
    ++next_;
    if (next_ >= end_ && !slot.close && IsLastOrdered(slot.bytes))
        [[unlikely]] {
      slot.close = say_close_ = true;  // [R7]
    }
    if (slot.close) {
      last_.Append(std::move(slot.bytes));  // [R4]
      emitting_ = false;
      const std::vector<Slot> dropped = End();
      lock.unlock();
      TellAll(dropped);
      return true;
    }
    lock.unlock();
    sink_->Write(std::move(slot.bytes));
    lock.lock();
  } while (TakeNext(&slot));
  emitting_ = false;
  ReplyTurnWaiter* const waiter = TakeWaiter();
  lock.unlock();
  if (waiter != nullptr) waiter->OnTurn();
  return false;
}

// Takes the held reply of the next place. False: there is none.
bool OrderedReplies::TakeNext(Slot* slot) {
  if (slots_.empty() || ended_) return false;
  if (!SlotOf(next_).ready) {
    // relaxed: slots are used under lock_, by requests that count as pending,
    // or behind one that does [R2]. The emitter's own is one.
    if (slots_.size() > kMostKeptSlots &&
        (pending_.load(std::memory_order_relaxed) & (kClosing - 1)) <= 1) {
      slots_ = {};
    }
    return false;
  }
  *slot = std::exchange(SlotOf(next_), Slot());
  CountHeld(held_bytes_ - slot->bytes.size());
  return true;
}

// The waiter that wants to make, or to begin, the next reply [R5] [R8].
ReplyTurnWaiter* OrderedReplies::TakeWaiter() {
  return slots_.empty() ? nullptr
                        : std::exchange(SlotOf(next_).waiter, nullptr);
}

// False: there is too much.
bool OrderedReplies::Hold(std::uint64_t place, Buffer&& bytes, bool close) {
  CountHeld(held_bytes_ + bytes.size());
  // Much of it may be about to leave while somebody emits.
  if (held_bytes_ > max_bytes_ && !emitting_) return false;
  MakeSlot(place) = Slot{std::move(bytes), true, close};
  return true;
}

void OrderedReplies::CountHeld(std::size_t bytes) {
  const std::size_t before = std::exchange(held_bytes_, bytes);
  if (before / kHeldStep != bytes / kHeldStep) {
    sink_->CountHeld(before / kHeldStep * kHeldStep,
                     bytes / kHeldStep * kHeldStep);
  }
  const bool much = bytes > max_bytes_ / 8;
  if (!much) in_vain_ = false;
  // Under the lock, so that the sink has the last word last.
  if (std::exchange(much_held_, much) != much) sink_->SetMuchHeld(much);
}

OrderedReplies::Slot& OrderedReplies::MakeSlot(std::uint64_t place) {
  if (std::size_t span = place - next_ + 1; slots_.size() < span) {
    std::vector<Slot> slots(std::bit_ceil(std::max(span, kMinSlots)));
    for (std::uint64_t i = 0; i != slots_.size(); ++i) {
      slots[(next_ + i) & (slots.size() - 1)] = std::move(SlotOf(next_ + i));
    }
    slots_ = std::move(slots);
  }
  return SlotOf(place);
}

// [R3]. Returns the held replies: TellAll() is due, without the lock.
std::vector<OrderedReplies::Slot> OrderedReplies::End() {
  ended_ = true;
  return std::exchange(slots_, {});
}

void OrderedReplies::GiveUp() {
  ScopedLock lock(lock_);
  const std::vector<Slot> dropped = End();
  ReplyTurnWaiter* const unordered = std::exchange(unordered_waiter_, nullptr);
  lock.unlock();
  TellAll(dropped);
  if (unordered != nullptr) unordered->OnTurn();
}

void OrderedReplies::TellAll(const std::vector<Slot>& dropped) {
  for (const Slot& slot : dropped) {
    if (slot.waiter != nullptr) slot.waiter->OnTurn();
  }
}

void OrderedReplies::TellUnorderedAreGone() {
  ReplyTurnWaiter* waiter = nullptr;
  {
    ScopedLock lock(lock_);
    waiter = std::exchange(unordered_waiter_, nullptr);
  }
  if (waiter != nullptr) waiter->OnTurn();
}

void OrderedReplies::Leave(std::uint64_t count, bool close) {
  // relaxed: made visible by the decrement that follows, in this thread.
  if (close) pending_.fetch_or(kClosing, std::memory_order_relaxed);
  const std::uint64_t left = CountDown(count);
  if ((left & (kParts | kClosing)) != 0) [[unlikely]]
    HandleLeft(left);
}

std::uint64_t OrderedReplies::CountDown(std::uint64_t count) {
  // acq_rel: release orders this reply's Write before the decrement, acquire
  // (pairing with the release of the other threads' decrements here) makes all
  // their Writes happen before the close [R2], and before parts [R6].
  return pending_.fetch_sub(count, std::memory_order_acq_rel) - count;
}

// Does the work that is due when as many are left. `left` has flags.
void OrderedReplies::HandleLeft(std::uint64_t left) {
  if ((left & ~kParts) == kClosing) return Close();
  if ((left & kParts) != 0 && !HasUnordered(left)) TellUnorderedAreGone();
}

void OrderedReplies::Close() {
  Buffer last;
  bool say_close;
  {
    ScopedLock lock(lock_);
    if (std::exchange(closed_, true)) return;  // Once more, by Enter().
    last = std::exchange(last_, Buffer());
    say_close = say_close_;
  }
  if (say_close) last = SayClose(std::move(last));   // [R7]
  if (!last.empty()) sink_->Write(std::move(last));  // [R4]
  sink_->CloseAfterReplies();
}

}  // namespace flare::rpc

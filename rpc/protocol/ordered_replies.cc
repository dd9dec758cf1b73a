#include "flare/rpc/protocol/ordered_replies.h"

#include <algorithm>
#include <bit>
#include <mutex>
#include <string>
#include <utility>

namespace flare::rpc {

// Invariants:
//   [R1] Places are emitted in order, each once: next_ only grows, under lock_,
//        by whoever set emitting_, and only he calls ReplySink::Write, which
//        may send at once and so isn't called under lock_. What becomes ready
//        meanwhile is held, and he finds it before he takes emitting_ away.
//   [R2] A request counts in pending_ from before its message leaves the reader
//        until after its bytes went to the sink, or are held by [R1] for one
//        that counts. So when pending_ is zero with kClosing set, everything
//        that will ever be sent has been written, and exactly one thread sees
//        that transition: it closes.
//   [R3] After an ordered reply with `close` was emitted (ended_), nothing
//        ordered is emitted any more.
//   [R4] A reply with `close` says that nothing follows. In its turn it goes to
//        last_, and to the sink by whoever closes: behind all that was pending.
//   [R5] A reply in parts is emitted by its owner alone, from when its place is
//        next_ and nobody is emitting, until EndParts: what other places have
//        is held, since next_ stays. Who comes too early leaves a waiter in his
//        slot, and the emitter who gets there tells it, or who sets ended_.
//   [R6] A reply without a place isn't held by that. So kParts is set first:
//        who enters from then on gets a place after all. Those who entered
//        before are waited for: the last of them, who sees kParts, tells
//        unordered_waiter_. kParts goes when the last part was written.

namespace {

// Of pending_: the number of requests in the lowest bits, that of those without
// a place from kUnordered on.
constexpr std::uint64_t kClosing = std::uint64_t{1} << 31;
constexpr std::uint64_t kUnordered = std::uint64_t{1} << 32;
constexpr std::uint64_t kParts = std::uint64_t{1} << 63;

constexpr bool HasUnordered(std::uint64_t pending) {
  return (pending & ~kParts) >= kUnordered;
}

constexpr std::size_t kMinSlots = 8;

}  // namespace

OrderedReplies::~OrderedReplies() = default;

std::optional<std::uint64_t> OrderedReplies::Enter(bool forced) {
  // relaxed: the reader's own increments precede it; the count is a limit, not
  // a synchronisation.
  const std::uint64_t pending =
      pending_.load(std::memory_order_relaxed) & (kClosing - 1);
  if (!forced && pending >= max_pending_) return std::nullopt;
  // relaxed: only the count matters here; see Leave for what orders the end.
  pending_.fetch_add(1, std::memory_order_relaxed);
  return entered_++;
}

std::optional<std::uint64_t> OrderedReplies::EnterUnordered() {
  // acquire: pairs with EndParts, whose parts were written before [R6].
  if ((pending_.fetch_add(kUnordered + 1, std::memory_order_acquire) &
       kParts) == 0) [[likely]] {
    return std::nullopt;
  }
  return EnterAfterAll();
}

// Who asked for his turn meanwhile has counted it as unordered.
std::uint64_t OrderedReplies::EnterAfterAll() {
  // acq_rel: as in Leave.
  const std::uint64_t before =
      pending_.fetch_sub(kUnordered, std::memory_order_acq_rel);
  if (!HasUnordered(before - kUnordered)) TellUnorderedAreGone();
  return entered_++;
}

void OrderedReplies::Send(std::uint64_t place, Buffer&& bytes, bool close) {
  SendInOrder(place, std::move(bytes), close);
  Leave(1, close);
}

void OrderedReplies::SendUnordered(Buffer&& bytes, bool close) {
  if (close) {
    std::scoped_lock lock(lock_);
    last_.Append(std::move(bytes));  // [R4]
  } else {
    sink_->Write(std::move(bytes));
  }
  Leave(kUnordered + 1, close);
}

ReplyTurn OrderedReplies::AskForTurn(std::uint64_t place,
                                     ReplyTurnWaiter* waiter) {
  {
    std::scoped_lock lock(lock_);
    if (ended_) return ReplyTurn::kNever;
    if (place != next_ || emitting_) {
      MakeSlot(place).waiter = waiter;  // [R5]
      return ReplyTurn::kLater;
    }
    unordered_waiter_ = waiter;
  }
  // acq_rel: acquire pairs with Leave, so that what was written without a place
  // was so before our parts [R6]; release makes the waiter visible there.
  if (HasUnordered(pending_.fetch_or(kParts, std::memory_order_acq_rel))) {
    return ReplyTurn::kLater;
  }
  std::scoped_lock lock(lock_);
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

void OrderedReplies::SendInOrder(std::uint64_t place, Buffer&& bytes,
                                 bool close) {
  std::unique_lock lock(lock_);
  if (ended_) return;
  if (place != next_ || emitting_) {
    if (Hold(place, std::move(bytes), close)) [[likely]]
      return;
    const std::vector<Slot> dropped = End();
    sink_->Abort(flare::Status(STATUS_OVERLOADED,
                               "more than " + std::to_string(max_bytes_) +
                                   " bytes of HTTP replies wait for an earlier "
                                   "one that isn't ready"));
    lock.unlock();
    return TellAll(dropped);
  }
  emitting_ = true;  // [R1]
  Slot slot{std::move(bytes), true, close};
  do {
    ++next_;
    if (slot.close) {
      last_.Append(std::move(slot.bytes));  // [R4]
      emitting_ = false;
      const std::vector<Slot> dropped = End();
      lock.unlock();
      return TellAll(dropped);
    }
    lock.unlock();
    sink_->Write(std::move(slot.bytes));
    lock.lock();
  } while (TakeNext(&slot));
  emitting_ = false;
  ReplyTurnWaiter* const waiter = TakeWaiter();
  lock.unlock();
  if (waiter != nullptr) waiter->OnTurn();
}

// What is held for the next place. False: nothing is.
bool OrderedReplies::TakeNext(Slot* slot) {
  if (slots_.empty() || ended_ || !SlotOf(next_).ready) return false;
  *slot = std::exchange(SlotOf(next_), Slot());
  held_bytes_ -= slot->bytes.size();
  return true;
}

// Of a reply in parts that is next [R5].
ReplyTurnWaiter* OrderedReplies::TakeWaiter() {
  return slots_.empty() ? nullptr
                        : std::exchange(SlotOf(next_).waiter, nullptr);
}

// False: there is too much.
bool OrderedReplies::Hold(std::uint64_t place, Buffer&& bytes, bool close) {
  held_bytes_ += bytes.size();
  // Much of it may be about to leave while somebody emits.
  if (held_bytes_ > max_bytes_ && !emitting_) return false;
  MakeSlot(place) = Slot{std::move(bytes), true, close};
  return true;
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

// [R3]. Returns what was held: TellAll() is due, without the lock.
std::vector<OrderedReplies::Slot> OrderedReplies::End() {
  ended_ = true;
  return std::exchange(slots_, {});
}

void OrderedReplies::TellAll(const std::vector<Slot>& dropped) {
  for (const Slot& slot : dropped) {
    if (slot.waiter != nullptr) slot.waiter->OnTurn();
  }
}

void OrderedReplies::TellUnorderedAreGone() {
  ReplyTurnWaiter* waiter = nullptr;
  {
    std::scoped_lock lock(lock_);
    waiter = std::exchange(unordered_waiter_, nullptr);
  }
  if (waiter != nullptr) waiter->OnTurn();
}

void OrderedReplies::Leave(std::uint64_t count, bool close) {
  // relaxed: made visible by the decrement that follows, in this thread.
  if (close) pending_.fetch_or(kClosing, std::memory_order_relaxed);
  // acq_rel: release orders this reply's Write before the decrement, acquire
  // (pairing with the release of the other threads' decrements here) makes all
  // their Writes happen before the close [R2], and before parts [R6].
  const std::uint64_t left =
      pending_.fetch_sub(count, std::memory_order_acq_rel) - count;
  if ((left & (kParts | kClosing)) != 0) [[unlikely]]
    HandleLeft(left);
}

// With flags: what is due when as many are left.
void OrderedReplies::HandleLeft(std::uint64_t left) {
  if ((left & ~kParts) == kClosing) return Close();
  if ((left & kParts) != 0 && !HasUnordered(left)) TellUnorderedAreGone();
}

void OrderedReplies::Close() {
  Buffer last;
  {
    std::scoped_lock lock(lock_);
    last = std::exchange(last_, Buffer());
  }
  if (!last.empty()) sink_->Write(std::move(last));  // [R4]
  sink_->CloseAfterFlush();
}

}  // namespace flare::rpc

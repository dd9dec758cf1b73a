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

namespace {

constexpr std::uint32_t kClosing = 1u << 31;
constexpr std::size_t kMinSlots = 8;

}  // namespace

OrderedReplies::~OrderedReplies() = default;

std::optional<std::uint64_t> OrderedReplies::Enter(bool forced) {
  // relaxed: the reader's own increments precede it; the count is a limit, not
  // a synchronisation.
  std::uint32_t pending = pending_.load(std::memory_order_relaxed) & ~kClosing;
  if (!forced && pending >= max_pending_) return std::nullopt;
  // relaxed: only the count matters here; see Leave for what orders the end.
  pending_.fetch_add(1, std::memory_order_relaxed);
  return entered_++;
}

void OrderedReplies::EnterUnordered() {
  // relaxed: as in Enter.
  pending_.fetch_add(1, std::memory_order_relaxed);
}

void OrderedReplies::Send(std::uint64_t place, Buffer&& bytes, bool close) {
  SendInOrder(place, std::move(bytes), close);
  Leave(close);
}

void OrderedReplies::SendUnordered(Buffer&& bytes, bool close) {
  if (close) {
    std::scoped_lock lock(lock_);
    last_.Append(std::move(bytes));  // [R4]
  } else {
    sink_->Write(std::move(bytes));
  }
  Leave(close);
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
    Hold(place, std::move(bytes), close);
    return;
  }
  emitting_ = true;  // [R1]
  Slot slot{std::move(bytes), true, close};
  do {
    ++next_;
    if (slot.close) {
      last_.Append(std::move(slot.bytes));  // [R4]
      ended_ = true;
      slots_.clear();
      break;
    }
    lock.unlock();
    sink_->Write(std::move(slot.bytes));
    lock.lock();
  } while (TakeNext(&slot));
  emitting_ = false;
}

// What is held for the next place. False: nothing is.
bool OrderedReplies::TakeNext(Slot* slot) {
  if (slots_.empty() || ended_ || !SlotOf(next_).ready) return false;
  *slot = std::exchange(SlotOf(next_), Slot());
  held_bytes_ -= slot->bytes.size();
  return true;
}

void OrderedReplies::Hold(std::uint64_t place, Buffer&& bytes, bool close) {
  held_bytes_ += bytes.size();
  // Much of it may be about to leave while somebody emits.
  if (held_bytes_ > max_bytes_ && !emitting_) {
    ended_ = true;
    slots_.clear();
    sink_->Abort(flare::Status(STATUS_OVERLOADED,
                               "more than " + std::to_string(max_bytes_) +
                                   " bytes of HTTP replies wait for an earlier "
                                   "one that isn't ready"));
    return;
  }
  if (std::size_t span = place - next_ + 1; slots_.size() < span) {
    std::vector<Slot> slots(std::bit_ceil(std::max(span, kMinSlots)));
    for (std::uint64_t i = 0; i != slots_.size(); ++i) {
      slots[(next_ + i) & (slots.size() - 1)] = std::move(SlotOf(next_ + i));
    }
    slots_ = std::move(slots);
  }
  SlotOf(place) = Slot{std::move(bytes), true, close};
}

void OrderedReplies::Leave(bool close) {
  // relaxed: made visible by the decrement that follows, in this thread.
  if (close) pending_.fetch_or(kClosing, std::memory_order_relaxed);
  // acq_rel: release orders this reply's Write before the decrement, acquire
  // (pairing with the release of the other threads' decrements here) makes all
  // their Writes happen before the close [R2].
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) == (kClosing | 1)) {
    Close();
  }
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

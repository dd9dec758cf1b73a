// States of a slot, all in `word`, and the parties that change them:
//
//   kFree --Insert--> kBusy --the same Insert--> id --a Take--> kFree
//
//  [CT1] An inserter claims the slot `id & mask` by changing kFree to kBusy;
//        only the claimer writes `call`, and then publishes it by storing the
//        id. Ids are handed out by a counter, so they differ among all words of
//        the table (for old segments, where the counter might come around to a
//        call that is still there, Claim looks).
//  [CT2] Taking out is one exchange of the id by kFree: exactly one taker
//        succeeds. `call`, read before it, is right if the exchange succeeds,
//        because the word then had that id all the time.
//  [CT3] Closing stores closed_, then loads newest_ and looks at all slots;
//        inserting loads newest_, which growing may have stored before that,
//        stores the word, then looks at closed_; all these in one total order.
//        So a call that the closer did not see, be it in a segment that it did
//        not see, sees the closing, and takes itself back.
//  [CT4] Inserts go to the newest segment. When it is rather full, one twice as
//        large is put before it; calls stay where they are, and takers look
//        into all segments, newest first. Segments live as long as the table.
#include "flare/rpc/client/call_table.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "glog/logging.h"

namespace flare::rpc {
namespace {

// Occupied slots in a row that make a table "rather full". With half of the
// slots occupied at random it takes 65,000 inserts to see so many.
constexpr int kMaxProbes = 16;

}  // namespace

CallTable::CallTable(const Options& options)
    : max_slots_(options.max_slots),
      first_id_(options.first_id),
      next_id_(options.first_id) {
  CHECK(std::has_single_bit(options.initial_slots) &&
        std::has_single_bit(max_slots_));
  segments_ = std::make_unique<Segment>(options.initial_slots);
  // relaxed: nobody else knows the table yet.
  newest_.store(segments_.get(), std::memory_order_relaxed);
}

CallTable::~CallTable() = default;

std::uint32_t CallTable::Insert(PendingCall* call) {
  for (int probes = 0;;) {
    // relaxed: all that matters is that no two inserters get the same.
    const std::uint32_t id = next_id_.fetch_add(1, std::memory_order_relaxed);
    if (id == 0) continue;
    // seq_cst: pairs with the store in Grow [CT4], and puts that before the
    // load of closed_ below for the closer, whichever thread has grown the
    // table [CT3].
    Segment* const newest = newest_.load(std::memory_order_seq_cst);
    Slot* const slot = Claim(newest, id);
    if (slot == nullptr) {
      if (++probes < kMaxProbes) continue;
      if (!Grow(newest)) return 0;
      probes = 0;
      continue;
    }
    // relaxed: published by the next store [CT1].
    slot->call.store(call, std::memory_order_relaxed);
    // seq_cst: this store before the load of closed_ [CT3]. Its release half
    // pairs with the acquire in TakeFrom.
    slot->word.store(id, std::memory_order_seq_cst);
    if (closed_.load(std::memory_order_seq_cst)) {  // [CT3]
      return TakeFrom(slot, id) != nullptr ? 0 : id;
    }
    return id;
  }
}

// Null if the slot for this id is occupied.
CallTable::Slot* CallTable::Claim(Segment* newest, std::uint32_t id) {
  for (Segment* s = newest->older.get(); s != nullptr; s = s->older.get()) {
    // relaxed: a word with this very id can only be very old [CT1].
    if (s->slots[id & s->mask].word.load(std::memory_order_relaxed) == id) {
      return nullptr;
    }
  }
  Slot* const slot = &newest->slots[id & newest->mask];
  std::uint64_t expected = kFree;
  // relaxed: a look first, so that a call isn't disturbed. acquire: pairs with
  // the release in TakeFrom, so that the taker's read of `call` comes first.
  if (slot->word.load(std::memory_order_relaxed) == kFree &&
      slot->word.compare_exchange_strong(expected, kBusy,
                                         std::memory_order_acquire,
                                         std::memory_order_relaxed)) {
    return slot;
  }
  return nullptr;
}

// False: the limit is reached. True: try again, here or in the larger segment.
bool CallTable::Grow(Segment* full) {
  const std::size_t count = (full->mask + 1) * 2;
  if (count > max_slots_) return false;
  auto larger = std::make_unique<Segment>(count);
  ScopedLock guard(grow_lock_);
  // relaxed: written under the lock only.
  if (newest_.load(std::memory_order_relaxed) != full) return true;
  larger->older = std::move(segments_);
  segments_ = std::move(larger);
  // seq_cst: pairs with the loads of newest_ [CT4], against the one in Close
  // [CT3].
  newest_.store(segments_.get(), std::memory_order_seq_cst);
  return true;
}

PendingCall* CallTable::Take(std::uint64_t id) {
  if (id == 0 || id > 0xffffffff) return nullptr;  // kFree, kBusy and above.
  // acquire: pairs with the store in Grow [CT4].
  for (Segment* s = newest_.load(std::memory_order_acquire); s != nullptr;
       s = s->older.get()) {
    if (PendingCall* call = TakeFrom(&s->slots[id & s->mask], id)) return call;
  }
  return nullptr;
}

PendingCall* CallTable::TakeFrom(Slot* slot, std::uint64_t id) {
  // acquire: pairs with the publishing store in Insert [CT1].
  if (slot->word.load(std::memory_order_acquire) != id) return nullptr;
  // relaxed: see [CT2].
  PendingCall* const call = slot->call.load(std::memory_order_relaxed);
  // seq_cst: before the taker's look whether the connection takes no more calls
  // [UC5]. Its release half pairs with the acquire in Claim. relaxed on
  // failure: another taker was first.
  return slot->word.compare_exchange_strong(
             id, kFree, std::memory_order_seq_cst, std::memory_order_relaxed)
             ? call
             : nullptr;
}

PendingCall* CallTable::TakeAny(Slot* slot) {
  // seq_cst: after the store in StopInserting [CT3].
  const std::uint64_t id = slot->word.load(std::memory_order_seq_cst);
  return id == kFree || id == kBusy ? nullptr : TakeFrom(slot, id);
}

void CallTable::StopInserting() {
  // seq_cst: before the loads in Close and TakeAny [CT3].
  closed_.store(true, std::memory_order_seq_cst);
}

bool CallTable::Empty() const {
  // seq_cst, both: behind StopInserting(), as in Close() [CT3].
  for (const Segment* s = newest_.load(std::memory_order_seq_cst); s != nullptr;
       s = s->older.get()) {
    for (std::size_t i = 0; i <= s->mask; ++i) {
      if (s->slots[i].word.load(std::memory_order_seq_cst) != kFree) {
        return false;
      }
    }
  }
  return true;
}

std::size_t CallTable::slots() const {
  // acquire: pairs with the store in Grow [CT4].
  return newest_.load(std::memory_order_acquire)->mask + 1;
}

}  // namespace flare::rpc

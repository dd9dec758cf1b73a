// The calls under way on one connection, by correlation id.
//
//   std::uint32_t id = table.Insert(call);  // goes out with the request
//   PendingCall* call = table.Take(id);      // null: not, or no longer, there
//
// The party that takes a call out decides how it ends: reply, time-out, loss of
// the connection and cancellation all begin with Take(), and one of them gets
// it.
//
// Ids count from 1 to 2^32 - 1 and around; 0 is never given out. An id comes
// back only after all others have, so that a late or repeated reply finds
// nothing instead of somebody else's call.
//
// All functions are thread-safe and don't block. Insert and Take are O(1),
// lock-free and allocate nothing, except that an Insert into a table that is
// rather full doubles it. The table doesn't own the calls.

#ifndef FLARE_RPC_CLIENT_CALL_TABLE_H_
#define FLARE_RPC_CLIENT_CALL_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "flare/base/cpu.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare::rpc {

class PendingCall;

class CallTable {
 public:
  struct Options {
    std::size_t initial_slots = 64;   // A power of two.
    std::size_t max_slots = 1 << 20;  // A power of two.
    std::uint32_t first_id = 1;       // Positive.
  };

  CallTable() : CallTable(Options()) {}
  explicit CallTable(const Options& options);
  ~CallTable();

  CallTable(const CallTable&) = delete;
  CallTable& operator=(const CallTable&) = delete;

  // Adds `call` and returns its id, or 0 if the table is full or closed. From
  // the moment of adding, before this returns, the call may be taken out.
  [[nodiscard]] std::uint32_t Insert(PendingCall* call);

  // Takes out the call with that id. Null if there is none: it has been taken
  // out, or never was in.
  [[nodiscard]] PendingCall* Take(std::uint64_t id);

  // Refuses further inserts, then takes out every call that is in and gives it
  // to `f`. A call that is being inserted at the same time is either given to
  // `f` or refused by its Insert(). Call once.
  template <class F>
  void Close(F&& f) {
    StopInserting();
    // seq_cst: after the store in StopInserting [CT3], and pairs with the store
    // in Grow [CT4].
    for (Segment* s = newest_.load(std::memory_order_seq_cst); s != nullptr;
         s = s->older.get()) {
      for (std::size_t i = 0; i <= s->mask; ++i) {
        if (PendingCall* call = TakeAny(&s->slots[i])) f(call);
      }
    }
  }

  // Refuses further inserts. Calls in the table stay.
  void StopInserting();

  // It refuses inserts.
  bool closed() const {
    // acquire: pairs with the store in StopInserting: the cause of closing is
    // visible [CT3].
    return closed_.load(std::memory_order_acquire);
  }

  // No call is in, nor being inserted; after StopInserting() it stays so. Looks
  // at every slot.
  bool Empty() const;

  // How many ids were given out; as many calls at most were in. Comes around.
  std::uint32_t ids_given() const {
    // relaxed: a hint, which grows.
    return next_id_.load(std::memory_order_relaxed) - first_id_;
  }

  // How many calls the table could hold without doubling, at the very most.
  std::size_t slots() const;

 private:
  // `word` is kFree, kBusy (being filled in by its inserter) or the id.
  struct Slot {
    std::atomic<std::uint64_t> word{0};
    std::atomic<PendingCall*> call{nullptr};
  };

  struct Segment {
    explicit Segment(std::size_t count)
        : mask(count - 1), slots(new Slot[count]) {}
    const std::size_t mask;
    const std::unique_ptr<Slot[]> slots;
    std::unique_ptr<Segment> older;  // Half as large; no more inserts.
  };

  static constexpr std::uint64_t kFree = 0;
  static constexpr std::uint64_t kBusy = std::uint64_t{1} << 32;

  static Slot* Claim(Segment* newest, std::uint32_t id);
  bool Grow(Segment* full);
  static PendingCall* TakeFrom(Slot* slot, std::uint64_t id);
  static PendingCall* TakeAny(Slot* slot);

  const std::size_t max_slots_;
  const std::uint32_t first_id_;
  std::atomic<Segment*> newest_;
  std::atomic<bool> closed_{false};
  Spinlock grow_lock_;
  std::unique_ptr<Segment> segments_ FLARE_GUARDED_BY(grow_lock_);
  // Written by every Insert: kept off the lines that Take reads.
  alignas(kCacheLine) std::atomic<std::uint32_t> next_id_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CALL_TABLE_H_

// Rules:
//  [CL1] Places in slots, shared ones, those in the hands of a thread that
//        moves them, and calls that run are `limit_` together: a place is put
//        where it goes after it was taken from where it was. So never do more
//        run.
//  [CL2] `put` and `taken` only grow. The thread that takes n raises `taken` by
//        a compare-exchange, having read a `put` that is larger by n at least:
//        by then it is no smaller, so there are as many. The value that it has
//        read may be older, and it finds fewer than there are. They never pass
//        2^64.
//  [CL3] Only a slot's worker changes its `put` and `entered`, by plain loads
//        and stores: nothing in between suspends the fiber. Those that are
//        shared change by read-modify-writes.
//  [CL4] A slot with more than two batches gives one back, or the places would
//        all lie where calls end, not where they are read. A caller that finds
//        none, nor shared ones, takes the places it needs from the others'
//        slots: a call is refused only if there was none in any, one slot after
//        the other. Batches on their way are found nowhere, a quarter of the
//        limit at the very most. Where a batch would be one place or none, all
//        are shared, and a call is refused only if as many run as may.
//  [CL5] All is relaxed: places are numbers that order nothing. A call's place
//        is free before its reply is sent, so that a client that has got the
//        reply is let in, unless the place is in a batch on its way: the code
//        that passes the reply on, here, in the kernel and at the peer, sees to
//        it that this is seen.
#include "flare/rpc/server/call_limit.h"

#include <algorithm>

#include "flare/fiber/runtime.h"

namespace flare::rpc {

void CallLimit::SetUp(std::size_t limit) {
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;  // [CL2]
  constexpr std::uint64_t kMost = 64;  // More would hardly save anything.
  constexpr std::uint64_t kFewest = 2;
  const std::size_t workers = fiber::GetWorkerCount();
  limit_ = std::min<std::uint64_t>(limit, kNoLimit);
  batch_ = std::min<std::uint64_t>(limit_ / (4 * workers), kMost);
  if (batch_ >= kFewest) {
    slots_ = workers;
    slot_ = std::make_unique<Slot[]>(workers);
  } else {
    batch_ = 0;
  }
  // relaxed, here and below: [CL5].
  shared_.put.store(limit_, std::memory_order_relaxed);
}

// The shared one if there are no others, or the caller is no worker, or one of
// a runtime that came later. Its own until the fiber is suspended.
CallLimit::Slot* CallLimit::SlotOf(std::size_t worker) {
  return worker < slots_ ? &slot_[worker] : &shared_;
}

// Takes at most `most` places of those there. Returns how many.
std::uint64_t CallLimit::Take(Slot* from, std::uint64_t most) {
  std::uint64_t taken = from->taken.load(std::memory_order_relaxed);
  for (;;) {
    const std::uint64_t put = from->put.load(std::memory_order_relaxed);
    if (put <= taken) return 0;
    const std::uint64_t n = std::min(put - taken, most);
    if (from->taken.compare_exchange_weak(taken, taken + n,
                                          std::memory_order_relaxed)) {
      return n;  // [CL2]
    }
  }
}

// Into the caller's slot [CL3]. Returns how many are there, or more.
std::uint64_t CallLimit::Put(Slot* mine, std::uint64_t n) {
  const std::uint64_t put = mine->put.load(std::memory_order_relaxed) + n;
  mine->put.store(put, std::memory_order_relaxed);
  return put - mine->taken.load(std::memory_order_relaxed);
}

// For an Enter() that found fewer in its slot, which gets a batch more.
std::uint64_t CallLimit::TakeMore(Slot* mine, std::uint64_t wanted) {
  if (slots_ == 0) return 0;  // It was the shared one.
  const std::uint64_t spare = mine == &shared_ ? 0 : batch_;
  std::uint64_t taken = Take(&shared_, wanted + spare);
  if (taken > wanted) {
    Put(mine, taken - wanted);
    return wanted;
  }
  for (std::size_t i = 0; i < slots_ && taken < wanted; ++i) {
    taken += Take(&slot_[i], wanted - taken);
  }
  return taken;
}

std::size_t CallLimit::Enter(std::size_t n) {
  Slot* const mine = SlotOf(fiber::GetCurrentWorkerIndex());
  std::uint64_t taken = Take(mine, n);
  if (taken != n) [[unlikely]] {
    taken += TakeMore(mine, n - taken);
  }
  if (mine == &shared_) {
    mine->entered.fetch_add(taken, std::memory_order_relaxed);
  } else {
    mine->entered.store(mine->entered.load(std::memory_order_relaxed) + taken,
                        std::memory_order_relaxed);
  }
  return taken;
}

void CallLimit::Leave() { Leave(fiber::GetCurrentWorkerIndex()); }

void CallLimit::Leave(std::size_t worker) {
  Slot* const mine = SlotOf(worker);
  if (mine == &shared_) {
    mine->put.fetch_add(1, std::memory_order_relaxed);
  } else if (Put(mine, 1) > 2 * batch_) [[unlikely]] {
    shared_.put.fetch_add(Take(mine, batch_), std::memory_order_relaxed);
  }
}

std::uint64_t CallLimit::running() const {
  const auto free = [](const Slot& slot) {
    return slot.put.load(std::memory_order_relaxed) -
           slot.taken.load(std::memory_order_relaxed);
  };
  std::uint64_t places = free(shared_);
  for (std::size_t i = 0; i < slots_; ++i) places += free(slot_[i]);
  // Fewer than none, if some moved while they were added up.
  const auto left = static_cast<std::int64_t>(places);
  if (left <= 0) return limit_;
  return places < limit_ ? limit_ - places : 0;
}

std::uint64_t CallLimit::entered() const {
  std::uint64_t sum = shared_.entered.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < slots_; ++i) {
    sum += slot_[i].entered.load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace flare::rpc

// [SD1] Work comes from running workers and outsiders alone, and a worker that
//       is idle runs only after it was counted as roused. So if all were idle
//       with nothing queued at each look of one pass, again in a second one,
//       and nobody was roused in between, then at the end of the first pass all
//       were so at once, and will stay so. The watch, which is neither, makes
//       deferred tasks injected ones: it raises that queue's size before it
//       lowers the other's (MoveAllTo), and the other is looked at first.
// [SD2] The last worker to mark itself as idle sees all others marked: the
//       marks and these looks are seq_cst.
// [SD3] An outsider is added by a running worker, and removed after it has been
//       queued. A pass that looked at its group before that, and found no
//       outsider, is followed by one that sees the queue, or a worker that was
//       roused for it. The thread that removes the last outsider may come after
//       the workers' last looks, so it looks itself, if the end was requested;
//       if it doesn't see the request, those that are woken by the request see
//       it removed.
#include "flare/fiber/scheduler/shutdown.h"

#include <cstdint>

namespace flare::fiber {

void Shutdown::Request() {
  // seq_cst: pairs with the load in requested().
  requested_.store(true, std::memory_order_seq_cst);
  WakeAll();
}

void Shutdown::FinishIfQuiescent() {
  const std::uint64_t before = CountRouses();
  if (!AllIdle() || !AllIdle() || CountRouses() != before) return;  // [SD1]
  Finish();
}

void Shutdown::Finish() {
  // seq_cst: pairs with the load in finished().
  finished_.store(true, std::memory_order_seq_cst);
  WakeAll();
}

void Shutdown::AddOutsider() {
  // seq_cst: pairs with the load in AllIdle [SD3].
  outsiders_.fetch_add(1, std::memory_order_seq_cst);
}

void Shutdown::RemoveOutsider() {
  // seq_cst: pairs with the load in AllIdle, and orders this before the look at
  // the request [SD3].
  outsiders_.fetch_sub(1, std::memory_order_seq_cst);
  if (requested()) FinishIfQuiescent();
}

bool Shutdown::AllIdle() const {
  for (const Member* member : members_) {
    if (!member->LooksIdle()) return false;
  }
  // seq_cst: pairs with the changes in AddOutsider and RemoveOutsider [SD3].
  return outsiders_.load(std::memory_order_seq_cst) == 0;
}

std::uint64_t Shutdown::CountRouses() const {
  std::uint64_t count = 0;
  for (const Member* member : members_) count += member->rouses();
  return count;
}

void Shutdown::WakeAll() {
  for (Member* member : members_) member->WakeAllIdle();
}

}  // namespace flare::fiber

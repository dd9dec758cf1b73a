// Fibers (or threads) that wait for edges of one direction of a descriptor:
// input, or output. Owns the atomic word between the poller and them; the rules
// are in edge_wait.cc.
//
//   the caller:  for (;;) {
//                  const auto seen = wait.edges();
//                  if (recv(...) != EAGAIN) return wait.PassOn();
//                  if (wait.Wait(seen, limit) != kEdge) return;
//                }
//   the poller:  if (wait.OnEdge()) queue a task that calls wait.WakeQueued();
//
// An edge wakes one caller. The one that got something by its system call wakes
// the next, which may get more; so a burst costs one call in vain, however many
// wait. While nobody waits an edge costs one exchange and queues nothing.

#ifndef FLARE_IO_EDGE_WAIT_H_
#define FLARE_IO_EDGE_WAIT_H_

#include <atomic>
#include <cstdint>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::io {

class EdgeWait {
 public:
  enum class Outcome {
    kEdge,  // Try again.
    kTimedOut,
    kStopped,
    kClosed,
  };

  // Returns the number of edges so far. To be read before the system call.
  std::uint64_t edges() const noexcept {
    // acquire: pairs with the exchange in OnEdge [EW1].
    return state_.load(std::memory_order_acquire) / kEdge;
  }

  // The poller: an edge has come. True: the caller must queue a task that calls
  // WakeQueued(). Doesn't lock. Other threads may make edges, too; those that
  // may lock call WakeQueued() themselves.
  [[nodiscard]] bool OnEdge() noexcept;
  void WakeQueued() noexcept;

  // After a system call that did not fail with EAGAIN: somebody else may find
  // something, too. One load if nobody waits.
  void PassOn() noexcept {
    // relaxed: a caller that must see the bit was woken after it was set [EW3].
    if ((state_.load(std::memory_order_relaxed) & kWaiting) != 0) WakeOne();
  }

  // After one that did: blocks the caller until there is another number of
  // edges than `seen`, or its turn comes, or `limit` is reached.
  [[nodiscard]] Outcome Wait(std::uint64_t seen, const fiber::WaitLimit& limit);

  // For ever: wakes all, and no Wait() blocks any more. Any thread.
  void Close() noexcept;

 private:
  static constexpr std::uint64_t kWaiting = 1;
  static constexpr std::uint64_t kQueued = 2;
  static constexpr std::uint64_t kClosed = 4;
  static constexpr std::uint64_t kEdge = 8;

  void WakeOne() noexcept;

  std::atomic<std::uint64_t> state_{0};
  Spinlock lock_;
  fiber::WaitList waiters_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::io

#endif  // FLARE_IO_EDGE_WAIT_H_

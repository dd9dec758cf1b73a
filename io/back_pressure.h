// Counts the bytes of a queue and makes writers wait when there are too many.

#ifndef FLARE_IO_BACK_PRESSURE_H_
#define FLARE_IO_BACK_PRESSURE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stop_token>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/io/memory_budget.h"

namespace flare::io {

// How waiting for room ended.
enum class RoomResult { kRoom, kTimedOut, kClosed };

class BackPressure {
 public:
  // Admit() refuses from `limit` bytes on; more than limit / 2 are many, see
  // HasRoom(). 0 is taken for 1: each when there is nothing else. Queued bytes
  // count in `budget`, which must outlive this, too; if that is tight, more
  // than MemoryBudget::kStep are many.
  explicit BackPressure(std::size_t limit, MemoryBudget* budget = nullptr)
      : limit_(std::max<std::size_t>(limit, 1)), budget_(budget) {}
  ~BackPressure();
  BackPressure(const BackPressure&) = delete;
  BackPressure& operator=(const BackPressure&) = delete;

  // Counts `n` more bytes, unless the limit was already reached. Any thread.
  [[nodiscard]] bool Admit(std::size_t n) noexcept;

  // Counts `n` more bytes, whatever the limit. Any thread.
  void Add(std::size_t n) noexcept {
    // relaxed: a count on its own; Release() has the callers that wait for it
    // to fall.
    const std::size_t before = queued_.fetch_add(n, std::memory_order_relaxed);
    Count(before, before + n);
  }

  // Counts `n` bytes less, and wakes the waiters if that is due. True: it also
  // falls to the caller to answer AskForRoom(). Any thread.
  [[nodiscard]] bool Release(std::size_t n) noexcept;

  // As Release() of nothing, for when `budget` may have become less tight. Any
  // thread.
  [[nodiscard]] bool LookForRoom() noexcept;

  // True: once there is room, one Release() or LookForRoom() will return true.
  // False: there is room, or Close() was called. For one asker at a time. Any
  // thread.
  [[nodiscard]] bool AskForRoom() noexcept;

  // At most limit / 2 bytes are queued, or less, see above: there is nothing to
  // wait for. Wait() ends on no other condition, so `while (!HasRoom()) Wait()`
  // blocks, unless the budget changes meanwhile.
  bool HasRoom() const noexcept { return IsRoom(queued()); }

  // Waits for HasRoom(), Close(), or the deadline in NowNs() time
  // (kNoDeadline: none), as which a request of `stop` counts. Any number of
  // waiters. Blocks the fiber or thread.
  [[nodiscard]] RoomResult Wait(std::int64_t deadline_ns,
                                const std::stop_token& stop = {});

  // HasRoom() is for `bytes` at most from here on, if that was for more. Any
  // thread.
  void LowerRoom(std::size_t bytes) noexcept {
    // relaxed: an estimate; a writer that has found room before writes once
    // more.
    if (bytes < room_.load(std::memory_order_relaxed)) {
      room_.store(std::max(bytes, few_), std::memory_order_relaxed);
    }
  }

  // Wakes all waiters, for ever. True: also the one that had asked, which is to
  // be told. Any thread.
  bool Close() noexcept;

  std::size_t queued() const noexcept {
    // relaxed: an estimate, orders nothing.
    return queued_.load(std::memory_order_relaxed);
  }

 private:
  struct Waiter;

  bool IsRoom(std::size_t queued) const noexcept {
    if (queued <= few_) [[likely]]
      return true;
    // relaxed: see LowerRoom().
    if (queued > room_.load(std::memory_order_relaxed)) return false;
    if (budget_ == nullptr || !budget_->tight()) return true;
    budget_->NoteWaiting();
    return false;
  }
  void Count(std::size_t before, std::size_t after) noexcept {
    if (MemoryBudget::Counts(before, after)) [[unlikely]] {
      if (budget_ != nullptr) budget_->Change(before, after);
    }
  }
  // True: answer AskForRoom().
  bool WakeAll() noexcept FLARE_REQUIRES(lock_);

  const std::size_t limit_;
  // Never many, however tight the budget is.
  const std::size_t few_ = std::min(limit_ / 2, MemoryBudget::kStep);
  std::atomic<std::size_t> room_{limit_ / 2};
  MemoryBudget* const budget_;  // May be null.
  std::atomic<std::size_t> queued_{0};
  std::atomic<bool> waited_for_{false};  // By `waiters_` or the asker.
  Spinlock lock_;
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  bool asked_ FLARE_GUARDED_BY(lock_) = false;
  Waiter* waiters_ FLARE_GUARDED_BY(lock_) = nullptr;
};

}  // namespace flare::io

#endif  // FLARE_IO_BACK_PRESSURE_H_

// Bytes that all connections of a server may hold together.
//
//   auto budget = MakeRefCounted<MemoryBudget>(limit, [] { ...close some... });
//   budget->Change(before, after);  // A connection's count went up or down.
//
// Each connection counts for itself, and changes the shared count only when its
// own passes a multiple of kStep. So a connection that holds little costs a
// comparison, and up to kStep of each isn't counted.
//
// Thread-safe; nothing blocks.
#ifndef FLARE_IO_MEMORY_BUDGET_H_
#define FLARE_IO_MEMORY_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <utility>

#include "flare/base/cpu.h"
#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"

namespace flare::io {

class MemoryBudget : public RefCounted<MemoryBudget> {
 public:
  static constexpr std::size_t kStep = 64 << 10;

  // `on_over` is called when the count is raised above `limit`, each time, from
  // any thread that raises it: it must neither block nor change the count.
  MemoryBudget(std::size_t limit, Function<void()> on_over)
      : limit_(limit), on_over_(std::move(on_over)), alarm_(limit) {}

  // Whether Change() does anything.
  static bool Counts(std::size_t before, std::size_t after) {
    return (before ^ after) >= kStep;
  }

  // A part of the whole went from `before` to `after` bytes. Each part must see
  // all of its changes, from 0 to 0.
  void Change(std::size_t before, std::size_t after) {
    if (Counts(before, after)) [[unlikely]] {
      Publish(before / kStep * kStep, after / kStep * kStep);
    }
  }

  std::size_t limit() const { return limit_; }
  std::size_t held() const {
    // relaxed, here and below: an estimate, orders nothing.
    return held_.load(std::memory_order_relaxed);
  }
  // More than half is held: parts that hold more than kStep should hold less.
  bool tight() const { return held() > limit_ / 2; }
  // Parts wait, or have waited, since it was tight. Sets that.
  void NoteWaiting() {
    // seq_cst, both: behind the part's own note that somebody waits; pair with
    // TakeWaiting(), whose caller looks at these notes [BK1].
    if (!waiting_.load(std::memory_order_seq_cst)) {
      waiting_.store(true, std::memory_order_seq_cst);
    }
  }
  // True: they should look for room again. From time to time; nobody else says
  // that it is no longer tight.
  bool TakeWaiting() {
    // seq_cst: pairs with NoteWaiting().
    return !tight() && waiting_.load(std::memory_order_relaxed) &&
           waiting_.exchange(false, std::memory_order_seq_cst);
  }
  // No more should be taken in by those that hold much.
  bool over() const { return held() > limit_; }

  // Something should be given back: `on_over` was called, or will be.
  bool alarmed() const {
    return held() > alarm_.load(std::memory_order_relaxed);
  }
  // No more can be given back now: there is no alarm until a sixteenth of the
  // limit has come on top, or the count has fallen to the limit.
  void Snooze() {
    alarm_.store(held() + limit_ / 16, std::memory_order_relaxed);
  }

 private:
  [[gnu::noinline]] void Publish(std::size_t before, std::size_t after) {
    if (after < before) {
      const std::size_t less = before - after;
      const std::size_t left =
          held_.fetch_sub(less, std::memory_order_relaxed) - less;
      if (left <= limit_ && alarm_.load(std::memory_order_relaxed) != limit_) {
        alarm_.store(limit_, std::memory_order_relaxed);
      }
      return;
    }
    const std::size_t more = after - before;
    const std::size_t now =
        held_.fetch_add(more, std::memory_order_relaxed) + more;
    if (now > alarm_.load(std::memory_order_relaxed)) on_over_();
  }

  const std::size_t limit_;
  Function<void()> on_over_;
  alignas(kCacheLine) std::atomic<std::size_t> held_{0};
  std::atomic<std::size_t> alarm_;
  std::atomic<bool> waiting_{false};
};

}  // namespace flare::io

#endif  // FLARE_IO_MEMORY_BUDGET_H_

// The counters of one method of a server, for Server::method_statistics().
//
// Each worker has a slot, a cache line which it alone writes, so that counting
// is a load and a store, and workers touch no lines of each other; other
// threads, where a service may run `done`, share one. How long calls took is
// measured of all where there are few, and of a sample where a worker answers
// many: rules in method_counters.cc.
//
// Takes 64 bytes for each worker, and 34 KiB.
#ifndef FLARE_RPC_SERVER_METHOD_COUNTERS_H_
#define FLARE_RPC_SERVER_METHOD_COUNTERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "flare/base/cpu.h"
#include "flare/base/histogram.h"
#include "flare/rpc/call_cells.h"
#include "flare/rpc/server/recent_calls.h"
#include "flare/rpc/server_statistics.h"

namespace flare::rpc {

class MethodCounters {
 public:
  // A worker that answers more than kFewCalls a second measures one of kPeriod.
  // A prime, so that it meets calls at all places of batches.
  static constexpr std::uint64_t kFewCalls = 1000;
  static constexpr std::uint64_t kPeriod = 101;

  // Before anything else; the runtime must be running.
  void SetUp();

  // Any thread; nothing blocks. `worker` is fiber::GetCurrentWorkerIndex(), as
  // it is since the fiber was suspended last.

  // A call has come. One of the other two is to follow.
  void Begin(std::size_t worker) { Add(&Slot::begun, SlotOf(worker)); }

  // The service has answered it. Called before the reply is sent: a caller with
  // its reply finds the call counted. `status`: 0 if it succeeded.
  // `received_ns` and `dispatched_ns`: when it came, and when it began.
  void End(std::size_t worker, int status, std::int64_t received_ns,
           std::int64_t dispatched_ns) {
    Slot* const mine = SlotOf(worker);
    const std::uint64_t answered = Add(&Slot::answered, mine);
    if (status != 0) [[unlikely]]
      CountFailed(mine, status);
    if (answered >= mine->measure_at) {
      Measure(mine, answered, received_ns, dispatched_ns);
    }
  }

  // It was refused with `status`, without asking the service.
  void Refuse(std::size_t worker, int status, bool overloaded);

  // How long calls take lately once they have begun, roughly; 0: not known.
  std::int64_t usual_ns() const {
    return usual_ns_.load(std::memory_order_relaxed);  // [MC1]
  }

  // Takes the sample of this second (recent_calls.h). Takes a lock for a
  // moment; any thread.
  void Sample(std::int64_t now_ns);

  // All but the name. Approximate while calls come and go.
  ServerMethodStatistics Read() const;

 private:
  using Counter = std::atomic<std::uint64_t>;

  struct alignas(kCacheLine) Slot {
    Counter begun{0};
    Counter answered{0};
    Counter failed{0};  // ... of these
    Counter refused{0};
    Counter overloaded{0};  // ... of these
    // Its worker's own: see Measure(). All 0 in the shared one.
    std::uint64_t measure_at = 0;
    std::uint64_t period_end = 0;
    std::int64_t period_began_ns = 0;
  };
  static_assert(sizeof(Slot) == kCacheLine);

  // The shared one if the caller is no worker, or one of a runtime that came
  // later.
  Slot* SlotOf(std::size_t worker) {
    return worker < slots_ ? &slot_[worker] : &shared_;
  }
  std::uint64_t Add(Counter Slot::*counter, Slot* mine);
  [[gnu::cold, gnu::noinline]] void CountFailed(Slot* mine, int status);
  [[gnu::noinline]] void Measure(Slot* mine, std::uint64_t answered,
                                 std::int64_t received_ns,
                                 std::int64_t dispatched_ns);

  std::size_t slots_ = 0;  // One for each worker.
  std::unique_ptr<Slot[]> slot_;
  Slot shared_;
  StatusCells failures_;  // All that failed, refused ones included.
  std::atomic<std::int64_t> usual_ns_{0};
  alignas(kCacheLine) ConcurrentHistogram latencies_ns_;
  RecentCalls recent_;
};

// Returns how many there are.
[[gnu::always_inline]] inline std::uint64_t MethodCounters::Add(
    Counter Slot::*counter, Slot* mine) {
  Counter& count = mine->*counter;
  // relaxed: [MC1].
  if (mine == &shared_) [[unlikely]] {
    return count.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  const std::uint64_t n = count.load(std::memory_order_relaxed) + 1;
  count.store(n, std::memory_order_relaxed);
  return n;
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_METHOD_COUNTERS_H_

// Counters of calls by their status and their duration, for the page /metrics.
//
// Each worker has cells of its own, as in metrics.h, so counting takes no lock
// and moves no cache line between CPUs. Any thread; nothing blocks.
#ifndef FLARE_RPC_CALL_CELLS_H_
#define FLARE_RPC_CALL_CELLS_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>

#include "flare/rpc/metrics.h"

namespace flare::rpc {

// How often each status occurred. A status gets a cell when it first occurs;
// kMost of them have one, and all further ones share one, so peers that choose
// statuses can't fill the memory.
class StatusCells {
 public:
  static constexpr std::size_t kMost = 24;

  struct Values {
    std::map<int, std::uint64_t> counts = {};
    std::uint64_t others = 0;
  };

  StatusCells();

  void Add(int status) { cells_.Add(IndexOf(status), 1); }
  Values Read() const;

 private:
  static constexpr int kFree = std::numeric_limits<int>::min();

  std::size_t IndexOf(int status);

  std::atomic<int> statuses_[kMost];
  metrics::WorkerCells cells_{kMost + 1};
};

// Counts of statuses, and a histogram of durations. The bounds of the buckets
// are powers of two, so a call finds its bucket without a search.
class CallCells {
 public:
  struct Values {
    metrics::Histogram::Values seconds = {};
    std::map<int, std::uint64_t> counts = {};  // By status.
    std::uint64_t others = 0;  // Calls whose status has no count.
  };

  // `usual`: the status of most calls. It needs no cell: its count is the
  // number of durations, less the other counts.
  explicit CallCells(int usual) : usual_(usual) {}

  // Counts a call that has ended and took `ns`.
  void End(int status, std::int64_t ns) {
    if (status != usual_) [[unlikely]]
      return EndUnusual(status, ns);
    AddDuration(ns);
  }

  // Approximate while calls end. No count is ever less than it was.
  Values Read() const;

 private:
  // The first bucket has durations below 2^14 ns, 16 us; the last one those
  // from 2^35 ns, 34 s, on.
  static constexpr int kFirstBits = 14;
  static constexpr std::size_t kBuckets = 23;

  static std::size_t BucketOf(std::uint64_t ns) {
    const auto bits = static_cast<std::size_t>(std::bit_width(ns));
    return std::clamp<std::size_t>(bits, kFirstBits,
                                   kFirstBits + kBuckets - 1) -
           kFirstBits;
  }
  void AddDuration(std::int64_t ns) {
    const std::uint64_t took =
        static_cast<std::uint64_t>(std::max<std::int64_t>(ns, 0));
    durations_.AddToTwo(BucketOf(took), 1, kBuckets, took);
  }
  [[gnu::cold, gnu::noinline]] void EndUnusual(int status, std::int64_t ns);

  const int usual_;
  metrics::WorkerCells durations_{kBuckets + 1};  // The last: the sum, in ns.
  StatusCells unusual_;
  // The largest count of the usual status that was read.
  mutable std::atomic<std::uint64_t> shown_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CALL_CELLS_H_

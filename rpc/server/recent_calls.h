// How many calls of a method there were in the last seconds, and how long they
// took: differences between samples of its counters, which cost calls nothing.
//
//   RecentCalls recent;
//   recent.Sample(NowNs(), totals, latencies_ns);       // Once a second.
//   recent.Over(std::chrono::seconds(10)).calls_per_second
//
// Thread-safe; takes a lock for a moment, and otherwise doesn't block. A sample
// takes microseconds if there were calls since the last one. Memory: some
// 100 bytes for a method that is never called, 8 KiB for one that is, and 8
// bytes for each bucket that a sample has latencies in, of 16 for each power of
// two.
#ifndef FLARE_RPC_SERVER_RECENT_CALLS_H_
#define FLARE_RPC_SERVER_RECENT_CALLS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "flare/base/histogram.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/server_statistics.h"

namespace flare::rpc {

class RecentCalls {
 public:
  // The numbers since the beginning.
  struct Totals {
    std::uint64_t ended = 0;   // Answered or refused.
    std::uint64_t failed = 0;  // ... of these.
  };
  static constexpr std::size_t kSamples = 60;

  // The first sample only says when counting began. One that isn't later than
  // the one before is left out. Throws std::bad_alloc, and takes none, without
  // memory; the next one is of all calls since the last.
  void Sample(std::int64_t now_ns, const Totals& totals,
              const ConcurrentHistogram& latencies_ns) FLARE_EXCLUDES(lock_);

  // Over the samples of the last `window` before the newest one: at least that
  // one, at most all.
  RecentCallStatistics Over(std::chrono::nanoseconds window) const
      FLARE_EXCLUDES(lock_);

 private:
  // Sixteen for each power of two: a latency is known to 1/16.
  static constexpr int kCoarser = 3;
  static constexpr std::size_t kBuckets = HistogramBuckets::kCount >> kCoarser;

  // Buckets, and the latencies in each of them.
  using Latencies = std::vector<std::pair<std::uint16_t, std::uint32_t>>;
  using Counts = std::array<std::uint64_t, kBuckets>;

  struct Taken {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
    Totals calls;  // In that time.
    Latencies latencies;
  };
  struct Samples {
    std::array<Taken, kSamples> ring;
    std::size_t count = 0;  // All that were taken; the newest is before it.
    Counts before{};        // Latencies so far.
  };
  class Window;

  static Counts CountsOf(const ConcurrentHistogram& latencies_ns);
  static Latencies Since(const Counts& before, const Counts& now);

  mutable ThreadMutex lock_;
  std::int64_t began_ns_ FLARE_GUARDED_BY(lock_) = 0;  // 0: no sample yet.
  std::int64_t last_ns_ FLARE_GUARDED_BY(lock_) = 0;
  Totals last_ FLARE_GUARDED_BY(lock_);
  std::unique_ptr<Samples> samples_ FLARE_GUARDED_BY(lock_);  // Once called.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_RECENT_CALLS_H_

#include "flare/rpc/server/recent_calls.h"

#include <algorithm>
#include <utility>

#include "flare/base/clock.h"

namespace flare::rpc {

// Adds samples up.
class RecentCalls::Window {
 public:
  void Add(const Taken& sample) {
    calls_.ended += sample.calls.ended;
    calls_.failed += sample.calls.failed;
    for (const auto& [bucket, count] : sample.latencies) {
      latencies_[bucket] += count;
      measured_ += count;
    }
  }

  RecentCallStatistics Result(std::int64_t ns) const {
    const double seconds = static_cast<double>(ns) / 1e9;
    return {.seconds = seconds,
            .calls_per_second = static_cast<double>(calls_.ended) / seconds,
            .failed_per_second = static_cast<double>(calls_.failed) / seconds,
            .p50_ns = Quantile(0.5),
            .p90_ns = Quantile(0.9),
            .p99_ns = Quantile(0.99)};
  }

 private:
  // The middle of the bucket; 0 without latencies.
  std::int64_t Quantile(double quantile) const {
    const auto limit = static_cast<double>(measured_) * quantile;
    std::uint64_t below = 0;
    for (std::size_t i = 0; i != kBuckets && measured_ != 0; ++i) {
      below += latencies_[i];
      if (latencies_[i] == 0 || static_cast<double>(below) < limit) continue;
      const std::size_t first = i << kCoarser;
      const std::size_t last = first + (1u << kCoarser) - 1;
      return (HistogramBuckets::LowerBound(first) +
              HistogramBuckets::UpperBound(last)) /
             2;
    }
    return 0;
  }

  Totals calls_;
  std::uint64_t measured_ = 0;
  std::array<std::uint64_t, kBuckets> latencies_{};
};

RecentCalls::Counts RecentCalls::CountsOf(
    const ConcurrentHistogram& latencies_ns) {
  Counts counts{};
  latencies_ns.ForEachCount([&](std::size_t bucket, std::uint64_t count) {
    counts[bucket >> kCoarser] += count;
  });
  return counts;
}

RecentCalls::Latencies RecentCalls::Since(const Counts& before,
                                          const Counts& now) {
  Latencies latencies;
  for (std::size_t i = 0; i != kBuckets; ++i) {
    if (now[i] == before[i]) continue;
    latencies.emplace_back(static_cast<std::uint16_t>(i),
                           static_cast<std::uint32_t>(now[i] - before[i]));
  }
  latencies.shrink_to_fit();
  return latencies;
}

void RecentCalls::Sample(std::int64_t now_ns, const Totals& totals,
                         const ConcurrentHistogram& latencies_ns) {
  const ScopedLock guard(lock_);
  if (began_ns_ == 0) began_ns_ = last_ns_ = now_ns;
  if (now_ns <= last_ns_) return;
  // Most methods aren't called most of the time.
  const bool called = totals.ended != last_.ended;
  if (called && samples_ == nullptr) samples_ = std::make_unique<Samples>();
  if (samples_ != nullptr) {
    // Allocations come first: an exception leaves all as it was.
    const Counts now = called ? CountsOf(latencies_ns) : samples_->before;
    Latencies latencies = Since(samples_->before, now);
    samples_->before = now;
    Taken& sample = samples_->ring[samples_->count++ % kSamples];
    sample.begin_ns = last_ns_;
    sample.end_ns = now_ns;
    // A count that is read while it changes may lag behind the other.
    sample.calls = {totals.ended - last_.ended,
                    totals.failed - std::min(totals.failed, last_.failed)};
    sample.latencies = std::move(latencies);
  }
  last_ns_ = now_ns;
  last_ = totals;
}

RecentCallStatistics RecentCalls::Over(std::chrono::nanoseconds window) const {
  const ScopedLock guard(lock_);
  if (last_ns_ == began_ns_) return {};
  // Without further samples there were no calls.
  const std::int64_t since_ns = std::max(began_ns_, last_ns_ - ToNs(window));
  std::int64_t begin_ns = since_ns;
  Window sum;
  const std::size_t count = samples_ == nullptr ? 0 : samples_->count;
  bool has_earlier = count > kSamples;
  for (std::size_t i = 1; i <= std::min(count, kSamples); ++i) {
    const Taken& sample = samples_->ring[(count - i) % kSamples];
    // One that is in the window by half counts as a whole.
    const bool earlier = (sample.begin_ns + sample.end_ns) / 2 < since_ns;
    has_earlier |= earlier;
    if (earlier && i != 1) break;
    sum.Add(sample);
    begin_ns = sample.begin_ns;
  }
  if (!has_earlier) begin_ns = std::min(begin_ns, since_ns);
  return sum.Result(last_ns_ - begin_ns);
}

}  // namespace flare::rpc

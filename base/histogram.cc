#include "flare/base/histogram.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace flare {

static_assert(sizeof(std::uint64_t) * HistogramBuckets::kCount < 64 * 1024);
static_assert(HistogramBuckets::IndexOf(HistogramBuckets::kMaxValue) ==
              HistogramBuckets::kCount - 1);

std::int64_t Histogram::ValueAtQuantile(double quantile) const {
  if (count_ == 0) return 0;
  if (!(quantile > 0)) return min();
  if (quantile >= 1) return max();
  // How many values must be at most the answer. The small reduction undoes the
  // rounding of products like 0.99 * 100, which is a bit more than 99.
  const double exact = quantile * static_cast<double>(count_);
  const auto rank = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::ceil(exact - exact * 1e-12)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen < rank) continue;
    const std::int64_t lower = HistogramBuckets::LowerBound(i);
    const std::int64_t upper = HistogramBuckets::UpperBound(i);
    return std::clamp(lower + (upper - lower) / 2, min_, max_);
  }
  return max();  // The counts of a snapshot may lag behind.
}

void Histogram::Merge(const Histogram& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    counts_[i] += other.counts_[i];
  }
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

void Histogram::Reset() {
  counts_.assign(HistogramBuckets::kCount, 0);  // Also if moved from.
  count_ = sum_ = 0;
  min_ = std::numeric_limits<std::int64_t>::max();
  max_ = 0;
}

std::string Histogram::ToString() const {
  char text[256];
  std::snprintf(text, sizeof(text),
                "count=%llu mean=%.1f min=%lld p50=%lld p90=%lld p99=%lld "
                "p99.9=%lld max=%lld",
                static_cast<unsigned long long>(count()), mean(),
                static_cast<long long>(min()),
                static_cast<long long>(ValueAtQuantile(0.5)),
                static_cast<long long>(ValueAtQuantile(0.9)),
                static_cast<long long>(ValueAtQuantile(0.99)),
                static_cast<long long>(ValueAtQuantile(0.999)),
                static_cast<long long>(max()));
  return text;
}

ConcurrentHistogram::ConcurrentHistogram()
    : counts_(new std::atomic<std::uint64_t>[HistogramBuckets::kCount]()),
      min_(std::numeric_limits<std::int64_t>::max()) {}

// All orders here are relaxed: the numbers are statistics, nothing is published
// through them and readers draw no conclusion from one about another.

void ConcurrentHistogram::RecordMany(std::int64_t value, std::uint64_t times) {
  if (times == 0) return;
  value = HistogramBuckets::Clamp(value);
  std::int64_t min = min_.load(std::memory_order_relaxed);
  while (value < min &&
         !min_.compare_exchange_weak(min, value, std::memory_order_relaxed)) {
  }
  std::int64_t max = max_.load(std::memory_order_relaxed);
  while (value > max &&
         !max_.compare_exchange_weak(max, value, std::memory_order_relaxed)) {
  }
  sum_.fetch_add(static_cast<std::uint64_t>(value) * times,
                 std::memory_order_relaxed);
  counts_[HistogramBuckets::IndexOf(value)].fetch_add(
      times, std::memory_order_relaxed);
}

Histogram ConcurrentHistogram::Snapshot() const {
  Histogram snapshot;
  for (std::size_t i = 0; i < HistogramBuckets::kCount; ++i) {
    const std::uint64_t count = counts_[i].load(std::memory_order_relaxed);
    snapshot.counts_[i] = count;
    snapshot.count_ += count;
  }
  if (snapshot.count_ == 0) return snapshot;
  snapshot.sum_ = sum_.load(std::memory_order_relaxed);
  const std::int64_t min = min_.load(std::memory_order_relaxed);
  const std::int64_t max = max_.load(std::memory_order_relaxed);
  // After a Reset at an unlucky moment there may be counts without extremes.
  snapshot.max_ = max;
  snapshot.min_ = std::min(min, max);
  return snapshot;
}

void ConcurrentHistogram::Reset() {
  for (std::size_t i = 0; i < HistogramBuckets::kCount; ++i) {
    counts_[i].store(0, std::memory_order_relaxed);
  }
  sum_.store(0, std::memory_order_relaxed);
  min_.store(std::numeric_limits<std::int64_t>::max(),
             std::memory_order_relaxed);
  max_.store(0, std::memory_order_relaxed);
}

}  // namespace flare

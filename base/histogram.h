// Histograms of latencies (or sizes): counting costs a few nanoseconds, memory
// is fixed, quantiles are within 1% of the truth.
//
//   Histogram latency;                       // one writer
//   latency.Record(elapsed_ns);
//   LOG(INFO) << latency.ValueAtQuantile(0.99);
//
//   ConcurrentHistogram shared;              // any number of writers
//   shared.Record(elapsed_ns);
//   Histogram now = shared.Snapshot();
//
// Values are integers from 0 to 2^40 - 1 (18 minutes in nanoseconds), in any
// unit; smaller and greater ones are counted as the nearest of these. The
// buckets are log-linear: below 256 one per value, above that 128 per power of
// two. A value is thus known to 1/128 of itself; the reported value is the
// middle of its bucket, at most 0.4% off, and never outside [min, max], which
// are exact, as are count, sum and mean.
//
// Takes 34 KiB on the heap, allocated on construction.

#ifndef FLARE_BASE_HISTOGRAM_H_
#define FLARE_BASE_HISTOGRAM_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace flare {

// How values are dealt to buckets, common to both histograms.
class HistogramBuckets {
 public:
  static constexpr int kValueBits = 40;
  static constexpr int kPrecisionBits = 7;
  static constexpr std::int64_t kMaxValue = (std::int64_t{1} << kValueBits) - 1;
  static constexpr std::size_t kCount =
      static_cast<std::size_t>(kValueBits - kPrecisionBits + 1)
      << kPrecisionBits;

  static constexpr std::int64_t Clamp(std::int64_t value) {
    return value < 0 ? 0 : value > kMaxValue ? kMaxValue : value;
  }

  // The bucket of a value in [0, kMaxValue].
  static constexpr std::size_t IndexOf(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    // Shifts the value down to kPrecisionBits + 1 bits, the highest of them
    // set, unless it is small.
    const int shift =
        static_cast<int>(std::bit_width(bits >> (kPrecisionBits + 1)));
    return (static_cast<std::size_t>(shift) << kPrecisionBits) +
           static_cast<std::size_t>(bits >> shift);
  }

  // The smallest and the greatest value in bucket `index`.
  static constexpr std::int64_t LowerBound(std::size_t index) {
    if (index < (std::size_t{2} << kPrecisionBits)) {
      return static_cast<std::int64_t>(index);
    }
    const auto shift = static_cast<int>(index >> kPrecisionBits) - 1;
    const std::size_t mantissa =
        index - (static_cast<std::size_t>(shift) << kPrecisionBits);
    return static_cast<std::int64_t>(mantissa) << shift;
  }
  static constexpr std::int64_t UpperBound(std::size_t index) {
    return index + 1 < kCount ? LowerBound(index + 1) - 1 : kMaxValue;
  }
};

// Not thread-safe. Copyable. One that was moved from must be Reset() or
// assigned to before it is used again.
class Histogram {
 public:
  struct Bucket {
    std::int64_t lower;  // Smallest value that counts here ...
    std::int64_t upper;  // ... and greatest (inclusive).
    std::uint64_t count;
  };

  Histogram() : counts_(HistogramBuckets::kCount) {}

  void Record(std::int64_t value) { RecordMany(value, 1); }

  void RecordMany(std::int64_t value, std::uint64_t times) {
    if (times == 0) return;
    value = HistogramBuckets::Clamp(value);
    counts_[HistogramBuckets::IndexOf(value)] += times;
    count_ += times;
    sum_ += static_cast<std::uint64_t>(value) * times;
    if (value < min_) min_ = value;
    if (value > max_) max_ = value;
  }

  std::uint64_t count() const { return count_; }
  // Wraps at 2^64: after 584 years of nanoseconds.
  std::uint64_t sum() const { return sum_; }
  // These are 0 while nothing has been recorded.
  std::int64_t min() const { return count_ == 0 ? 0 : min_; }
  std::int64_t max() const { return max_; }
  double mean() const {
    return count_ == 0
               ? 0
               : static_cast<double>(sum_) / static_cast<double>(count_);
  }

  // The smallest recorded value (as known) that is not exceeded by a share
  // `quantile` of all values. 0 (or less) gives the minimum, 1 (or more) the
  // maximum. 0 while nothing has been recorded.
  std::int64_t ValueAtQuantile(double quantile) const;

  // Calls visit(Bucket) for every bucket in use, by ascending values. For
  // output as text or JSON, or conversion to another bucketing.
  template <class Visitor>
  void ForEachBucket(Visitor&& visit) const {
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;
      visit(Bucket{HistogramBuckets::LowerBound(i),
                   HistogramBuckets::UpperBound(i), counts_[i]});
    }
  }

  // Adds all that `other` has counted.
  void Merge(const Histogram& other);
  void Reset();

  // "count=9 mean=12.5 min=3 p50=11 p90=20 p99=25 p99.9=25 max=25"
  std::string ToString() const;

 private:
  friend class ConcurrentHistogram;

  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  std::uint64_t sum_ = 0;
  std::int64_t min_ = std::numeric_limits<std::int64_t>::max();
  std::int64_t max_ = 0;
};

// Thread-safe, lock-free: Record is two atomic additions (and a third one when
// the value is a new extreme). Writers that record all the time are better off
// with a histogram each and a Merge when somebody asks.
class ConcurrentHistogram {
 public:
  ConcurrentHistogram();

  void Record(std::int64_t value) { RecordMany(value, 1); }
  void RecordMany(std::int64_t value, std::uint64_t times);

  // Returns the values recorded so far. A value that is being recorded at the
  // same time may be in it in part (in the sum, but not yet among the counts,
  // say).
  Histogram Snapshot() const;

  // Calls visit(index, count) for every bucket in use (HistogramBuckets), by
  // ascending values, without a copy of all.
  template <class Visitor>
  void ForEachCount(Visitor&& visit) const {
    for (std::size_t i = 0; i != HistogramBuckets::kCount; ++i) {
      // relaxed: a count, which orders nothing.
      const std::uint64_t count = counts_[i].load(std::memory_order_relaxed);
      if (count != 0) visit(i, count);
    }
  }

  // Forgets the values recorded; a value that is being recorded at the same
  // time may survive in part.
  void Reset();

 private:
  std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;
  std::atomic<std::uint64_t> sum_{0};
  std::atomic<std::int64_t> min_;
  std::atomic<std::int64_t> max_{0};
};

}  // namespace flare

#endif  // FLARE_BASE_HISTOGRAM_H_

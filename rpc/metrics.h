// Counters, gauges and histograms of a program's own, for the page /metrics,
// which every server has (docs/metrics.md).
//
//   namespace metrics = flare::metrics;
//   auto orders = metrics::NewCounter("shop_orders_total", "Orders taken.");
//   if (!orders) return Fail(orders.error().message());
//   (*orders)->Add();
//
//   auto pages = metrics::NewCounterFamily("shop_pages_total", "Pages sent.",
//                                          {"page", "status"});
//   if (!pages) return Fail(pages.error().message());
//   metrics::Counter* const front = pages->With("/", "200");
//   front->Add();
//
// A metric is there until the end of the process: it is made once, as the
// program starts or in a static variable, and its pointer is kept. Each worker
// has cells of its own in it, which it alone writes, so that counting on
// workers costs a nanosecond or two and no lock, however many count; on other
// threads it costs an atomic addition. Memory of a metric: a cache line for
// each worker that counts, of a histogram one for each eight buckets.
//
// Making one fails, with a text that says why, if
//   - its name, or one of its labels', isn't [a-zA-Z_][a-zA-Z0-9_]*; a metric's
//     may have colons;
//   - its name begins with "flare_" or "process_", as the library's own do, or
//     a label's begins with "__" (or is "le", of a histogram);
//   - there is a metric of that name. A histogram takes its name with
//     "_bucket", "_count" and "_sum" behind it, too.
//
// All functions may be called by any thread or fiber, before and after the
// runtime runs, too. None blocks, except for a moment on a lock those that make
// a metric, With() and Collect().
#ifndef FLARE_RPC_METRICS_H_
#define FLARE_RPC_METRICS_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/cpu.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/runtime.h"

namespace flare::metrics {

// Numbers of which each worker has a row of its own. Rules in metrics.cc.
class WorkerCells {
 public:
  explicit WorkerCells(std::size_t width);
  ~WorkerCells();
  WorkerCells(const WorkerCells&) = delete;
  WorkerCells& operator=(const WorkerCells&) = delete;

  // To the cell `column` of the caller's row, as an integer or as a double.
  void Add(std::size_t column, std::uint64_t n);
  void AddDouble(std::size_t column, double value);
  // To two of its cells.
  void AddToTwo(std::size_t column, std::uint64_t n, std::size_t other,
                std::uint64_t m);

  // Over all rows.
  std::uint64_t Sum(std::size_t column) const;
  double SumDouble(std::size_t column) const;

 private:
  using Cell = std::atomic<std::uint64_t>;
  struct alignas(kCacheLine) Line {
    Cell cells[kCacheLine / sizeof(Cell)]{};
  };
  struct Rows {
    std::size_t count = 0;
    std::unique_ptr<Line[]> lines;
    std::unique_ptr<Rows> earlier;  // From before there were more workers.
  };
  struct Row {
    Line* lines;
    bool shared;  // With other threads.
  };

  Row Find() {
    const std::size_t worker = fiber::GetCurrentWorkerIndex();
    const Rows* const rows = rows_.load(std::memory_order_acquire);  // [WC2]
    if (worker < rows->count) [[likely]] {
      return {rows->lines.get() + worker * lines_per_row_, false};
    }
    return FindElsewhere(worker);
  }
  static void AddTo(const Row& row, std::size_t column, std::uint64_t n);
  static Cell* CellOf(Line* row, std::size_t column) {
    constexpr std::size_t kCells = kCacheLine / sizeof(Cell);
    return &row[column / kCells].cells[column % kCells];
  }
  [[gnu::noinline]] Row FindElsewhere(std::size_t worker);
  template <class Visitor>
  void ForEach(std::size_t column, Visitor&& visit) const;

  const std::size_t lines_per_row_;
  std::atomic<Rows*> rows_;
  const std::unique_ptr<Line[]> shared_;  // One row.
};

inline void WorkerCells::AddTo(const Row& row, std::size_t column,
                               std::uint64_t n) {
  Cell* const cell = CellOf(row.lines, column);
  // relaxed, all: [WC1].
  if (row.shared) [[unlikely]] {
    cell->fetch_add(n, std::memory_order_relaxed);
    return;
  }
  cell->store(cell->load(std::memory_order_relaxed) + n,
              std::memory_order_relaxed);
}

inline void WorkerCells::Add(std::size_t column, std::uint64_t n) {
  AddTo(Find(), column, n);
}

inline void WorkerCells::AddToTwo(std::size_t column, std::uint64_t n,
                                  std::size_t other, std::uint64_t m) {
  const Row row = Find();
  AddTo(row, column, n);
  AddTo(row, other, m);
}

inline void WorkerCells::AddDouble(std::size_t column, double value) {
  const Row row = Find();
  Cell* const cell = CellOf(row.lines, column);
  // relaxed, all: [WC1].
  std::uint64_t old = cell->load(std::memory_order_relaxed);
  const auto added = [&] {
    return std::bit_cast<std::uint64_t>(std::bit_cast<double>(old) + value);
  };
  if (row.shared) [[unlikely]] {
    while (
        !cell->compare_exchange_weak(old, added(), std::memory_order_relaxed)) {
    }
    return;
  }
  cell->store(added(), std::memory_order_relaxed);
}

// Holds a number that only grows: of requests, errors, bytes. Names end in
// "_total".
class Counter {
 public:
  void Add(std::uint64_t n = 1) { cells_.Add(0, n); }
  std::uint64_t Value() const { return cells_.Sum(0); }

 private:
  WorkerCells cells_{1};
};

// Holds a value that rises and falls: a length, a temperature.
class Gauge {
 public:
  // Add costs as much as Counter::Add; Set reads the cells of all workers.
  void Add(double value) { cells_.AddDouble(0, value); }
  void Subtract(double value) { Add(-value); }
  // Add()s at the same time count before or after it.
  void Set(double value);
  double Value() const;

 private:
  WorkerCells cells_{1};
  std::atomic<double> base_{0};
};

// Durations in seconds, sizes in bytes: how many there were up to each bound,
// and their sum.
class Histogram {
 public:
  // The upper bounds of its buckets, ascending; one without bound is added.
  explicit Histogram(std::vector<double> bounds);

  // NaN is left out. A few nanoseconds, and more with many bounds.
  void Observe(double value);

  struct Values {
    std::vector<double> bounds = {};
    // In each bucket, not in those before it; one more than bounds.
    std::vector<std::uint64_t> counts = {};
    double sum = 0;
  };
  Values Read() const;

 private:
  const std::vector<double> bounds_;
  WorkerCells cells_;  // The buckets, and the sum.
};

// 100 us to 10 s, for latencies in seconds: three for each power of ten.
std::vector<double> LatencyBounds();

// Metrics of one name that differ in the values of N labels. A handle: copies
// are the same family.
template <class Metric, std::size_t N>
class Family {
 public:
  using Find = std::function<Metric*(std::vector<std::string> values)>;

  explicit Family(Find find) : find_(std::move(find)) {}

  // The metric with these values, one for each label, made if there is none.
  // Costs a look-up: keep the pointer where it is used often. A family has at
  // most kMaxSeries of them: all further values share one, whose labels say
  // "(other)", so take none that strangers choose.
  template <class... Values>
  requires(sizeof...(Values) == N) Metric* With(const Values&... values) const {
    return find_({std::string(values)...});
  }

 private:
  Find find_;
};
inline constexpr std::size_t kMaxSeries = 1000;

// `help` describes the metric in a sentence.
Expected<Counter*, Status> NewCounter(std::string name, std::string help);
Expected<Gauge*, Status> NewGauge(std::string name, std::string help);
Expected<Histogram*, Status> NewHistogram(
    std::string name, std::string help,
    std::vector<double> bounds = LatencyBounds());

// One that is asked for its value when somebody reads it: `value` is called by
// any thread, must not block, and stays for as long as the process.
Status NewGaugeFunction(std::string name, std::string help,
                        std::function<double()> value);

// Label names as in {"page", "status"}; NewCounterFamily et al. below.
template <class Metric>
Expected<std::function<Metric*(std::vector<std::string>)>, Status> AddFamily(
    std::string name, std::string help, std::vector<std::string> labels,
    std::vector<double> bounds);

template <std::size_t N>
Expected<Family<Counter, N>, Status> NewCounterFamily(
    std::string name, std::string help, const std::string_view (&labels)[N]) {
  auto find = AddFamily<Counter>(std::move(name), std::move(help),
                                 {labels, labels + N}, {});
  if (!find) return find.error();
  return Family<Counter, N>(*std::move(find));
}
template <std::size_t N>
Expected<Family<Gauge, N>, Status> NewGaugeFamily(
    std::string name, std::string help, const std::string_view (&labels)[N]) {
  auto find = AddFamily<Gauge>(std::move(name), std::move(help),
                               {labels, labels + N}, {});
  if (!find) return find.error();
  return Family<Gauge, N>(*std::move(find));
}
template <std::size_t N>
Expected<Family<Histogram, N>, Status> NewHistogramFamily(
    std::string name, std::string help, const std::string_view (&labels)[N],
    std::vector<double> bounds = LatencyBounds()) {
  auto find = AddFamily<Histogram>(std::move(name), std::move(help),
                                   {labels, labels + N}, std::move(bounds));
  if (!find) return find.error();
  return Family<Histogram, N>(*std::move(find));
}

// The metrics of one name, as a page shows them.
struct Series {
  std::vector<std::string> label_values = {};
  double value = 0;                  // Unused by histograms.
  Histogram::Values histogram = {};  // For histograms.
};
struct Snapshot {
  enum class Type { kCounter, kGauge, kHistogram };
  std::string name = {};
  std::string help = {};
  Type type = Type::kCounter;
  std::vector<std::string> label_names = {};
  std::vector<Series> series = {};
};

// By their names.
std::vector<Snapshot> Collect();

}  // namespace flare::metrics

#endif  // FLARE_RPC_METRICS_H_

// Rules:
//  [WC1] A row's cells are changed by its worker alone, by plain loads and
//        stores: nothing between looking for the row and the store suspends the
//        fiber. Those of the shared row change by read-modify-writes. All is
//        relaxed: the numbers order nothing.
//  [WC2] Rows are made when a worker first counts that has none, as many as
//        there are workers, and published by a release; a thread that finds
//        them (acquire) finds zeros in them. A later runtime with more workers
//        gets new ones; those before stay for their sums.
#include "flare/rpc/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare::metrics {

WorkerCells::WorkerCells(std::size_t width)
    : lines_per_row_((width * sizeof(Cell) + sizeof(Line) - 1) / sizeof(Line)),
      rows_(new Rows),
      shared_(std::make_unique<Line[]>(lines_per_row_)) {}

WorkerCells::~WorkerCells() {
  delete rows_.load(std::memory_order_relaxed);  // Nobody else is here.
}

WorkerCells::Row WorkerCells::FindElsewhere(std::size_t worker) {
  if (worker == fiber::kNoWorker) return {shared_.get(), true};
  Rows* found = rows_.load(std::memory_order_acquire);  // [WC2]
  while (worker >= found->count) {
    std::unique_ptr<Rows> rows;
    try {
      rows = std::make_unique<Rows>();
      rows->count = fiber::GetWorkerCount();
      rows->lines = std::make_unique<Line[]>(rows->count * lines_per_row_);
    } catch (const std::bad_alloc&) {
      // Counting must not fail, as calls end by it. The next one tries again.
      return {shared_.get(), true};
    }
    rows->earlier.reset(found);
    // release: [WC2]; acquire: the rows that another worker has made.
    if (rows_.compare_exchange_strong(found, rows.get(),
                                      std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      found = rows.release();
    } else {
      static_cast<void>(rows->earlier.release());  // It isn't ours.
    }
  }
  return {found->lines.get() + worker * lines_per_row_, false};
}

template <class Visitor>
void WorkerCells::ForEach(std::size_t column, Visitor&& visit) const {
  // relaxed, both: [WC1].
  visit(CellOf(shared_.get(), column)->load(std::memory_order_relaxed));
  const Rows* rows = rows_.load(std::memory_order_acquire);  // [WC2]
  for (; rows != nullptr; rows = rows->earlier.get()) {
    for (std::size_t i = 0; i != rows->count; ++i) {
      visit(CellOf(rows->lines.get() + i * lines_per_row_, column)
                ->load(std::memory_order_relaxed));
    }
  }
}

std::uint64_t WorkerCells::Sum(std::size_t column) const {
  std::uint64_t sum = 0;
  ForEach(column, [&](std::uint64_t cell) { sum += cell; });
  return sum;
}

double WorkerCells::SumDouble(std::size_t column) const {
  double sum = 0;
  ForEach(column,
          [&](std::uint64_t cell) { sum += std::bit_cast<double>(cell); });
  return sum;
}

void Gauge::Set(double value) {
  // relaxed: the last Set wins.
  base_.store(value - cells_.SumDouble(0), std::memory_order_relaxed);
}

double Gauge::Value() const {
  return base_.load(std::memory_order_relaxed) + cells_.SumDouble(0);
}

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), cells_(bounds_.size() + 2) {}

void Histogram::Observe(double value) {
  if (std::isnan(value)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  cells_.Add(static_cast<std::size_t>(bucket - bounds_.begin()), 1);
  cells_.AddDouble(bounds_.size() + 1, value);
}

Histogram::Values Histogram::Read() const {
  Values values{.bounds = bounds_};
  for (std::size_t i = 0; i <= bounds_.size(); ++i) {
    values.counts.push_back(cells_.Sum(i));
  }
  values.sum = cells_.SumDouble(bounds_.size() + 1);
  return values;
}

std::vector<double> LatencyBounds() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
          0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
}

namespace {

using Labels = std::vector<std::string>;

constexpr std::string_view kOther = "(other)";

bool IsName(std::string_view name, bool colons) {
  const auto is_part = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (c >= '0' && c <= '9') || (c == ':' && colons);
  };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), is_part);
}

Status CheckName(const std::string& name) {
  if (!IsName(name, /*colons=*/true)) {
    return Status(EINVAL, "\"" + name +
                              "\" can't name a metric: names are letters, "
                              "digits, '_' and ':', and begin with no digit");
  }
  if (name.starts_with("flare_") || name.starts_with("process_")) {
    return Status(EINVAL, "the metric \"" + name +
                              "\" has a name of the library's own: choose one "
                              "that begins with neither flare_ nor process_");
  }
  return Status();
}

Status CheckLabels(const std::string& name, const Labels& labels,
                   bool histogram) {
  std::set<std::string> seen;
  for (const std::string& label : labels) {
    if (!IsName(label, /*colons=*/false) || label.starts_with("__") ||
        (histogram && label == "le")) {
      return Status(EINVAL, "the metric " + name + " can't have the label \"" +
                                label +
                                "\": labels are letters, digits and '_', begin "
                                "with neither a digit nor \"__\", and those of "
                                "histograms aren't \"le\"");
    }
    if (!seen.insert(label).second) {
      return Status(EINVAL, "the metric " + name + " has the label \"" + label +
                                "\" twice");
    }
  }
  return Status();
}

Status CheckBounds(const std::string& name, const std::vector<double>& bounds) {
  const bool finite =
      std::all_of(bounds.begin(), bounds.end(),
                  [](double bound) { return std::isfinite(bound); });
  if (finite &&
      std::is_sorted(bounds.begin(), bounds.end(), std::less_equal<double>())) {
    return Status();
  }
  return Status(EINVAL, "the bounds of the histogram " + name +
                            " aren't finite numbers in ascending order");
}

// All metrics of one name.
class AnyFamily {
 public:
  AnyFamily(std::string name, std::string help, Labels labels)
      : name_(std::move(name)),
        help_(std::move(help)),
        labels_(std::move(labels)) {}
  virtual ~AnyFamily() = default;

  Snapshot Read() const {
    Snapshot snapshot{.name = name_, .help = help_, .label_names = labels_};
    ReadSeries(&snapshot);
    return snapshot;
  }

 private:
  virtual void ReadSeries(Snapshot* snapshot) const = 0;

  const std::string name_;
  const std::string help_;
  const Labels labels_;
};

template <class Metric>
class FamilyOf final : public AnyFamily {
 public:
  FamilyOf(std::string name, std::string help, Labels labels,
           std::vector<double> bounds)
      : AnyFamily(std::move(name), std::move(help), std::move(labels)),
        bounds_(std::move(bounds)) {}

  Metric* Find(Labels values) FLARE_EXCLUDES(lock_) {
    const ScopedLock guard(lock_);
    auto found = metrics_.find(values);
    if (found == metrics_.end() && metrics_.size() >= kMaxSeries) {
      values.assign(values.size(), std::string(kOther));
      found = metrics_.find(values);
    }
    if (found == metrics_.end()) {
      found = metrics_.emplace(std::move(values), Make()).first;
    }
    return found->second.get();
  }

 private:
  std::unique_ptr<Metric> Make() const {
    if constexpr (std::is_same_v<Metric, Histogram>) {
      return std::make_unique<Histogram>(bounds_);
    } else {
      return std::make_unique<Metric>();
    }
  }

  void ReadSeries(Snapshot* snapshot) const override FLARE_EXCLUDES(lock_) {
    if constexpr (std::is_same_v<Metric, Gauge>) {
      snapshot->type = Snapshot::Type::kGauge;
    } else if constexpr (std::is_same_v<Metric, Histogram>) {
      snapshot->type = Snapshot::Type::kHistogram;
    }
    const ScopedLock guard(lock_);
    for (const auto& [values, metric] : metrics_) {
      Series series{.label_values = values};
      if constexpr (std::is_same_v<Metric, Histogram>) {
        series.histogram = metric->Read();
      } else {
        series.value = static_cast<double>(metric->Value());
      }
      snapshot->series.push_back(std::move(series));
    }
  }

  const std::vector<double> bounds_;
  mutable ThreadMutex lock_;
  std::map<Labels, std::unique_ptr<Metric>> metrics_ FLARE_GUARDED_BY(lock_);
};

class FunctionFamily final : public AnyFamily {
 public:
  FunctionFamily(std::string name, std::string help,
                 std::function<double()> value)
      : AnyFamily(std::move(name), std::move(help), {}),
        value_(std::move(value)) {}

 private:
  void ReadSeries(Snapshot* snapshot) const override {
    snapshot->type = Snapshot::Type::kGauge;
    snapshot->series.push_back(Series{.value = value_()});
  }

  const std::function<double()> value_;
};

class Registry {
 public:
  // Never destroyed: threads may count up to the end of the process.
  static Registry* Get() {
    static Registry* const registry = new Registry;
    return registry;
  }

  Status Add(const std::string& name, bool histogram,
             std::unique_ptr<AnyFamily> family) FLARE_EXCLUDES(lock_) {
    std::vector<std::string> names = {name};
    if (histogram) {
      for (const char* part : {"_bucket", "_count", "_sum"}) {
        names.push_back(name + part);
      }
    }
    const ScopedLock guard(lock_);
    for (const std::string& each : names) {
      if (names_.contains(each)) {
        return Status(EEXIST, "there is a metric " + each +
                                  " already: each is made once, and with "
                                  "labels by the function for families");
      }
    }
    names_.insert(names.begin(), names.end());
    families_.emplace(name, std::move(family));
    return Status();
  }

  std::vector<Snapshot> Read() const FLARE_EXCLUDES(lock_) {
    std::vector<const AnyFamily*> families;
    {
      const ScopedLock guard(lock_);
      for (const auto& [name, family] : families_) {
        families.push_back(family.get());
      }
    }
    // Without the lock: functions of users are called.
    std::vector<Snapshot> snapshots;
    for (const AnyFamily* family : families) {
      snapshots.push_back(family->Read());
    }
    return snapshots;
  }

 private:
  mutable ThreadMutex lock_;
  std::set<std::string> names_ FLARE_GUARDED_BY(lock_);
  std::map<std::string, std::unique_ptr<AnyFamily>> families_
      FLARE_GUARDED_BY(lock_);
};

template <class Metric>
std::function<Metric*(Labels)> FinderIn(FamilyOf<Metric>* family) {
  return [family](Labels values) { return family->Find(std::move(values)); };
}

template <class Metric>
Expected<Metric*, Status> New(std::string name, std::string help,
                              std::vector<double> bounds) {
  auto find = AddFamily<Metric>(std::move(name), std::move(help), {},
                                std::move(bounds));
  if (!find) return find.error();
  return (*find)({});
}

}  // namespace

template <class Metric>
Expected<std::function<Metric*(std::vector<std::string>)>, Status> AddFamily(
    std::string name, std::string help, std::vector<std::string> labels,
    std::vector<double> bounds) {
  constexpr bool kHistogram = std::is_same_v<Metric, Histogram>;
  if (Status s = CheckName(name); !s.ok()) return s;
  if (Status s = CheckLabels(name, labels, kHistogram); !s.ok()) return s;
  if (Status s = CheckBounds(name, bounds); !s.ok()) return s;
  auto family = std::make_unique<FamilyOf<Metric>>(
      name, std::move(help), std::move(labels), std::move(bounds));
  FamilyOf<Metric>* const added = family.get();
  Status s = Registry::Get()->Add(name, kHistogram, std::move(family));
  if (!s.ok()) return s;
  return FinderIn(added);
}

template Expected<std::function<Counter*(std::vector<std::string>)>, Status>
    AddFamily<Counter>(std::string, std::string, std::vector<std::string>,
                       std::vector<double>);
template Expected<std::function<Gauge*(std::vector<std::string>)>, Status>
    AddFamily<Gauge>(std::string, std::string, std::vector<std::string>,
                     std::vector<double>);
template Expected<std::function<Histogram*(std::vector<std::string>)>, Status>
    AddFamily<Histogram>(std::string, std::string, std::vector<std::string>,
                         std::vector<double>);

Expected<Counter*, Status> NewCounter(std::string name, std::string help) {
  return New<Counter>(std::move(name), std::move(help), {});
}

Expected<Gauge*, Status> NewGauge(std::string name, std::string help) {
  return New<Gauge>(std::move(name), std::move(help), {});
}

Expected<Histogram*, Status> NewHistogram(std::string name, std::string help,
                                          std::vector<double> bounds) {
  return New<Histogram>(std::move(name), std::move(help), std::move(bounds));
}

Status NewGaugeFunction(std::string name, std::string help,
                        std::function<double()> value) {
  if (Status s = CheckName(name); !s.ok()) return s;
  if (value == nullptr) {
    return Status(EINVAL, "the metric \"" + name + "\" has no function");
  }
  auto family =
      std::make_unique<FunctionFamily>(name, std::move(help), std::move(value));
  return Registry::Get()->Add(name, /*histogram=*/false, std::move(family));
}

std::vector<Snapshot> Collect() { return Registry::Get()->Read(); }

}  // namespace flare::metrics

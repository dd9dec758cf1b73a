#include "flare/rpc/admission/admission_counters.h"

#include <initializer_list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare::rpc {
namespace {

template <class Counters>
class CountersByName {
 public:
  using Outcome = std::pair<const char*, metrics::Counter Counters::*>;

  // Never destroyed: threads may count up to the end of the process.
  static CountersByName* Get() {
    static CountersByName* const registry = new CountersByName;
    return registry;
  }

  Counters* Find(std::string name) FLARE_EXCLUDES(lock_) {
    const ScopedLock guard(lock_);
    if (!counters_.contains(name) && counters_.size() >= metrics::kMaxSeries) {
      name = "(other)";
    }
    std::unique_ptr<Counters>& found = counters_[name];
    if (found == nullptr) found = std::make_unique<Counters>();
    return found.get();
  }

  std::vector<metrics::Series> Read(
      std::initializer_list<Outcome> outcomes) const FLARE_EXCLUDES(lock_) {
    std::vector<metrics::Series> series;
    const ScopedLock guard(lock_);
    for (const auto& [name, counters] : counters_) {
      for (const auto& [outcome, counter] : outcomes) {
        const auto value = static_cast<double>(((*counters).*counter).Value());
        series.push_back({.label_values = {name, outcome}, .value = value});
      }
    }
    return series;
  }

 private:
  mutable ThreadMutex lock_;
  std::map<std::string, std::unique_ptr<Counters>> counters_
      FLARE_GUARDED_BY(lock_);
};

}  // namespace

AdmissionCounters* AdmissionCountersOf(const std::string& name) {
  return CountersByName<AdmissionCounters>::Get()->Find(name);
}

LimitsFileCounters* LimitsFileCountersOf(const std::string& file) {
  return CountersByName<LimitsFileCounters>::Get()->Find(file);
}

metrics::Snapshot ReadAdmissionCounters() {
  return {.name = "flare_rate_limit_calls_total",
          .help = "Calls that a limit by rate was for, by their outcome.",
          .label_names = {"limit", "outcome"},
          .series = CountersByName<AdmissionCounters>::Get()->Read(
              {{"admitted", &AdmissionCounters::admitted},
               {"refused", &AdmissionCounters::refused},
               {"would_refuse", &AdmissionCounters::would_refuse}})};
}

metrics::Snapshot ReadLimitsFileCounters() {
  return {.name = "flare_rate_limit_file_versions_total",
          .help =
              "Versions of a file of limits that were read: used, or wrong "
              "and left aside.",
          .label_names = {"file", "outcome"},
          .series = CountersByName<LimitsFileCounters>::Get()->Read(
              {{"used", &LimitsFileCounters::used},
               {"wrong", &LimitsFileCounters::wrong}})};
}

}  // namespace flare::rpc

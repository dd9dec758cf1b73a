#include "flare/rpc/admission/admission_counters.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare::rpc {
namespace {

class AdmissionRegistry {
 public:
  // Never destroyed: threads may count up to the end of the process.
  static AdmissionRegistry* Get() {
    static AdmissionRegistry* const registry = new AdmissionRegistry;
    return registry;
  }

  AdmissionCounters* Find(std::string name) FLARE_EXCLUDES(lock_) {
    const ScopedLock guard(lock_);
    if (!counters_.contains(name) && counters_.size() >= metrics::kMaxSeries) {
      name = "(other)";
    }
    std::unique_ptr<AdmissionCounters>& found = counters_[name];
    if (found == nullptr) found = std::make_unique<AdmissionCounters>();
    return found.get();
  }

  std::vector<metrics::Series> Read() const FLARE_EXCLUDES(lock_) {
    std::vector<metrics::Series> series;
    const ScopedLock guard(lock_);
    for (const auto& [name, counters] : counters_) {
      const std::pair<const char*, const metrics::Counter*> outcomes[] = {
          {"admitted", &counters->admitted},
          {"refused", &counters->refused},
          {"would_refuse", &counters->would_refuse}};
      for (const auto& [outcome, counter] : outcomes) {
        series.push_back({.label_values = {name, outcome},
                          .value = static_cast<double>(counter->Value())});
      }
    }
    return series;
  }

 private:
  mutable ThreadMutex lock_;
  std::map<std::string, std::unique_ptr<AdmissionCounters>> counters_
      FLARE_GUARDED_BY(lock_);
};

}  // namespace

AdmissionCounters* AdmissionCountersOf(const std::string& name) {
  return AdmissionRegistry::Get()->Find(name);
}

metrics::Snapshot ReadAdmissionCounters() {
  return {.name = "flare_rate_limit_calls_total",
          .help = "Calls that a limit by rate was for, by their outcome.",
          .label_names = {"limit", "outcome"},
          .series = AdmissionRegistry::Get()->Read()};
}

}  // namespace flare::rpc

#include "example/rpc/call_recorder.h"

#include <utility>

namespace example {

std::uint64_t CallStatistics::failure_count() const {
  std::uint64_t total = 0;
  for (const auto& [status, count] : failures) total += count;
  return total;
}

void CallStatistics::Merge(const CallStatistics& other) {
  latency_ns.Merge(other.latency_ns);
  for (const auto& [status, count] : other.failures) failures[status] += count;
}

void CallRecorder::Succeeded(std::int64_t latency_ns) {
  Slot& slot = slots_[ThreadSlot()];
  flare::ScopedLock guard(slot.lock);
  slot.statistics.latency_ns.Record(latency_ns);
}

void CallRecorder::Failed(int status) {
  Slot& slot = slots_[ThreadSlot()];
  flare::ScopedLock guard(slot.lock);
  ++slot.statistics.failures[status];
}

CallStatistics CallRecorder::Take() {
  CallStatistics total;
  CallStatistics spare;  // Always empty when it is swapped in.
  for (Slot& slot : slots_) {
    {
      flare::ScopedLock guard(slot.lock);
      if (slot.statistics.successes() == 0 &&
          slot.statistics.failures.empty()) {
        continue;
      }
      std::swap(slot.statistics, spare);
    }
    total.Merge(spare);
    spare.latency_ns.Reset();
    spare.failures.clear();
  }
  return total;
}

}  // namespace example

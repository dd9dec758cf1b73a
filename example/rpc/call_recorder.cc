#include "example/rpc/call_recorder.h"

#include <memory>
#include <utility>

namespace example {

std::uint64_t CallStatistics::failure_count() const {
  std::uint64_t total = 0;
  for (const auto& [status, count] : failures) total += count;
  return total;
}

std::uint64_t CallStatistics::changes() const {
  std::uint64_t total = changed_replies;
  for (const auto& [statuses, count] : changed_statuses) total += count;
  return total;
}

void CallStatistics::Merge(const CallStatistics& other) {
  latency_ns.Merge(other.latency_ns);
  for (const auto& [status, count] : other.failures) failures[status] += count;
  messages.Add(other.messages);
  for (const auto& [statuses, count] : other.changed_statuses) {
    changed_statuses[statuses] += count;
  }
  changed_replies += other.changed_replies;
}

CallStatistics& CallRecorder::Slot::MadeStatistics() {
  if (statistics == nullptr) statistics = std::make_unique<CallStatistics>();
  return *statistics;
}

void CallRecorder::Succeeded(std::int64_t latency_ns) {
  Slot& slot = slots_[ThreadSlot()];
  flare::ScopedLock guard(slot.lock);
  slot.MadeStatistics().latency_ns.Record(latency_ns);
}

void CallRecorder::Failed(int status) {
  Slot& slot = slots_[ThreadSlot()];
  flare::ScopedLock guard(slot.lock);
  ++slot.MadeStatistics().failures[status];
}

void CallRecorder::HadMessages(const MessageCounts& messages) {
  Slot& slot = slots_[ThreadSlot()];
  flare::ScopedLock guard(slot.lock);
  slot.MadeStatistics().messages.Add(messages);
}

void CallRecorder::HadOtherStatus(int recorded, int now) {
  Slot& slot = slots_[ThreadSlot()];
  flare::ScopedLock guard(slot.lock);
  ++slot.MadeStatistics().changed_statuses[{recorded, now}];
}

void CallRecorder::HadOtherReply() {
  Slot& slot = slots_[ThreadSlot()];
  flare::ScopedLock guard(slot.lock);
  ++slot.MadeStatistics().changed_replies;
}

CallStatistics CallRecorder::Take() {
  CallStatistics total;
  // Always empty when it is swapped in.
  auto spare = std::make_unique<CallStatistics>();
  for (Slot& slot : slots_) {
    {
      flare::ScopedLock guard(slot.lock);
      if (slot.statistics == nullptr ||
          (slot.statistics->successes() == 0 &&
           slot.statistics->failures.empty() &&
           slot.statistics->messages.total() == 0 &&
           slot.statistics->changes() == 0)) {
        continue;
      }
      std::swap(slot.statistics, spare);
    }
    total.Merge(*spare);
    spare->latency_ns.Reset();
    spare->failures.clear();
    spare->messages = {};
    spare->changed_statuses.clear();
    spare->changed_replies = 0;
  }
  return total;
}

}  // namespace example

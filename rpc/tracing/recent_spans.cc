#include "flare/rpc/tracing/recent_spans.h"

#include <algorithm>
#include <set>
#include <utility>

namespace flare {
namespace {

std::int64_t EndOf(const SpanData& span) {
  return span.start_unix_ns + span.duration_ns;
}

}  // namespace

RecentSpans::RecentSpans(std::size_t capacity) : capacity_(capacity) {
  ScopedLock guard(lock_);
  last_.reserve(capacity_);
}

void RecentSpans::Add(std::shared_ptr<const SpanData> span) {
  ScopedLock guard(lock_);
  AddSlow(span);
  if (last_.size() < capacity_) {
    last_.push_back(std::move(span));
    return;
  }
  last_[oldest_] = std::move(span);
  oldest_ = (oldest_ + 1) % capacity_;
}

void RecentSpans::AddSlow(std::shared_ptr<const SpanData> span) {
  const std::string key =
      (span->kind == SpanKind::kServer ? "s " : "c ") + span->name;
  auto found = slowest_.find(key);
  if (found == slowest_.end()) {
    if (slowest_.size() == kMaxMethods) return;
    found = slowest_.emplace(key, SpanBatch()).first;
  }
  SpanBatch& spans = found->second;
  if (spans.size() < kSlowest) return spans.push_back(std::move(span));
  // Old ones go first, then the fastest one.
  const std::int64_t old = EndOf(*span) - kSlowestNs;
  const auto weight = [old](const std::shared_ptr<const SpanData>& each) {
    return EndOf(*each) < old ? -1 : each->duration_ns;
  };
  auto& least = *std::min_element(
      spans.begin(), spans.end(),
      [&](const auto& a, const auto& b) { return weight(a) < weight(b); });
  if (weight(least) < span->duration_ns) least = std::move(span);
}

SpanBatch RecentSpans::Read() const {
  std::set<std::shared_ptr<const SpanData>> all;
  {
    ScopedLock guard(lock_);
    all.insert(last_.begin(), last_.end());
    for (const auto& [key, spans] : slowest_) {
      all.insert(spans.begin(), spans.end());
    }
  }
  SpanBatch sorted(all.begin(), all.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return EndOf(*a) > EndOf(*b); });
  return sorted;
}

}  // namespace flare

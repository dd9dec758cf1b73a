#include "flare/rpc/tracing/recent_spans.h"

#include <algorithm>
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
  const std::string key =
      (span->kind == SpanKind::kServer ? "s " : "c ") + span->name;
  ScopedLock guard(lock_);
  if (span->kind != SpanKind::kInternal) AddSlow(key, span);
  if (last_.size() < capacity_) {
    last_.push_back(std::move(span));
    return;
  }
  last_[oldest_] = std::move(span);
  oldest_ = (oldest_ + 1) % capacity_;
}

void RecentSpans::AddSlow(const std::string& key,
                          std::shared_ptr<const SpanData> span) {
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
  SpanBatch all;
  // Before the lock, for which the ends of calls wait.
  all.reserve(capacity_ + kMaxMethods * kSlowest);
  {
    ScopedLock guard(lock_);
    all.insert(all.end(), last_.begin(), last_.end());
    for (const auto& [key, spans] : slowest_) {
      all.insert(all.end(), spans.begin(), spans.end());
    }
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(EndOf(*a), a.get()) > std::pair(EndOf(*b), b.get());
  });
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace flare

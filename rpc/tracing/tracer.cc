#include "flare/rpc/tracing/tracer.h"

#include <atomic>
#include <utility>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare {
namespace {

constexpr std::uint64_t kAll = std::uint64_t{1} << 63;

std::uint64_t ShareOf(double ratio) {
  return ratio >= 1
             ? kAll
             : static_cast<std::uint64_t>(ratio * static_cast<double>(kAll));
}

}  // namespace

Tracer::Tracer(Options options, std::unique_ptr<BatchExporter> exporter)
    : options_(std::move(options)),
      sampled_below_(ShareOf(options_.sample_ratio)),
      recent_(options_.recent_spans),
      exporter_(std::move(exporter)) {}

bool Tracer::Excludes(std::string_view method) const {
  for (const std::string& prefix : options_.excluded) {
    if (method.starts_with(prefix)) return true;
  }
  return false;
}

bool Tracer::Samples(const SamplingQuestion& question) const {
  return options_.sampler == nullptr ? question.by_default
                                     : options_.sampler(question);
}

RefPtr<RecordedSpan> Tracer::Begin(SpanKind kind, std::string_view name,
                                   const TraceOrigin& origin,
                                   std::int64_t start_ns) const {
  TraceContext context;
  if (origin.parent) {
    context = *origin.parent;
  } else {
    context.trace_id = NewTraceId();
  }
  // By the id, as OpenTelemetry's libraries: of two programs that begin traces,
  // the one with the larger ratio samples all that the other would.
  context.sampled =
      origin.sampled.value_or(context.trace_id.low >> 1 < sampled_below_);
  // A decision is one of the process for its part of the trace.
  if (!origin.parent || kind == SpanKind::kServer) {
    context.sampled = Samples({.kind = kind,
                               .name = name,
                               .trace_id = context.trace_id,
                               .has_parent = origin.parent.has_value(),
                               .by_default = context.sampled});
  }
  context.span_id = NewSpanId();
  return MakeRefCounted<RecordedSpan>(std::move(context), start_ns,
                                      origin.baggage);
}

namespace {

std::atomic<bool> any_installed{false};
Spinlock installed_lock;
std::shared_ptr<Tracer> installed_tracer FLARE_GUARDED_BY(installed_lock);

}  // namespace

std::shared_ptr<Tracer> Tracer::Installed() {
  // relaxed: a first look, and the lock orders the rest.
  if (!any_installed.load(std::memory_order_relaxed)) return nullptr;
  ScopedLock guard(installed_lock);
  return installed_tracer;
}

void Tracer::SetInstalled(std::shared_ptr<Tracer> tracer) {
  // relaxed: as in Installed().
  any_installed.store(tracer != nullptr, std::memory_order_relaxed);
  ScopedLock guard(installed_lock);
  // The caller has a reference, too: none of them is the last one here.
  installed_tracer.swap(tracer);
}

void Tracer::End(RecordedSpan* span, SpanData outcome) {
  const auto data = span->End(std::move(outcome));
  if (data == nullptr) return;
  recent_.Add(data);
  if (exporter_ != nullptr) exporter_->Add(data);
}

// relaxed, here and below: counts that order nothing else.
void Tracer::Drop() { dropped_.fetch_add(1, std::memory_order_relaxed); }

std::uint64_t Tracer::dropped() const {
  const std::uint64_t lost = dropped_.load(std::memory_order_relaxed);
  return exporter_ == nullptr ? lost : lost + exporter_->statistics().dropped;
}

void Tracer::DropBaggage(std::size_t members) {
  if (members != 0) {
    dropped_baggage_.fetch_add(members, std::memory_order_relaxed);
  }
}

std::uint64_t Tracer::dropped_baggage() const {
  return dropped_baggage_.load(std::memory_order_relaxed);
}

}  // namespace flare

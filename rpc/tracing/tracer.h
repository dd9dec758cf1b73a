// Begins and ends the spans of calls: decides which traces are sampled, and
// gives ended spans to the page and to the exporters.
//
// Thread-safe.
#ifndef FLARE_RPC_TRACING_TRACER_H_
#define FLARE_RPC_TRACING_TRACER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/ref_ptr.h"
#include "flare/rpc/tracing/batch_exporter.h"
#include "flare/rpc/tracing/recent_spans.h"
#include "flare/rpc/tracing/recorded_span.h"
#include "flare/rpc/tracing/sampler.h"
#include "flare/rpc/tracing/span_data.h"
#include "flare/rpc/tracing/trace_headers.h"

namespace flare {

class Tracer {
 public:
  struct Options {
    double sample_ratio = 1;
    Sampler sampler = nullptr;
    TraceHeaderOptions headers = {};
    std::vector<std::string> excluded = {};
    std::size_t recent_spans = 1;
  };

  // `exporter` may be null.
  Tracer(Options options, std::unique_ptr<BatchExporter> exporter);

  // Whether calls of that method, or of that path, are left alone.
  bool Excludes(std::string_view method) const;

  // A span of this process, of the trace that `origin` names. It began at
  // `start_ns`, in NowNs() time. `name`: for the sampler.
  RefPtr<RecordedSpan> Begin(SpanKind kind, std::string_view name,
                             const TraceOrigin& origin,
                             std::int64_t start_ns) const;

  const TraceHeaderOptions& headers() const { return options_.headers; }

  // As RecordedSpan::End(), and hands it on.
  void End(RecordedSpan* span, SpanData outcome);
  // Counts a span that is lost for want of memory.
  void Drop();
  // Spans that Drop() has counted, and those that the exporter has dropped.
  std::uint64_t dropped() const;
  // Counts members of baggage that are not handed on.
  void DropBaggage(std::size_t members);
  std::uint64_t dropped_baggage() const;

  // The one of the program, for spans of parts (scoped_span.h); null: none.
  static std::shared_ptr<Tracer> Installed();
  static void SetInstalled(std::shared_ptr<Tracer> tracer);

  const RecentSpans& recent() const { return recent_; }
  // Null: none.
  BatchExporter* exporter() const { return exporter_.get(); }

 private:
  bool Samples(const SamplingQuestion& question) const;

  const Options options_;
  const std::uint64_t sampled_below_;  // 2^63: all are.
  RecentSpans recent_;
  const std::unique_ptr<BatchExporter> exporter_;
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<std::uint64_t> dropped_baggage_{0};
};

}  // namespace flare

#endif  // FLARE_RPC_TRACING_TRACER_H_

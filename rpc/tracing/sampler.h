// Decides which traces are recorded, where a ratio isn't enough:
//
//   options.sampler = [](const flare::SamplingQuestion& question) {
//     if (question.name == "shop.Orders.Place") return true;  // All of them.
//     return question.by_default;               // Others as without a sampler.
//   };
#ifndef FLARE_RPC_TRACING_SAMPLER_H_
#define FLARE_RPC_TRACING_SAMPLER_H_

#include <functional>
#include <string_view>

#include "flare/rpc/tracing/span_data.h"
#include "flare/rpc/tracing/trace_context.h"

namespace flare {

struct SamplingQuestion {
  SpanKind kind;
  // "package.Service.Method", the path of an HTTP request, the origin of a
  // request of an HttpClient, or the name of a ScopedSpan.
  std::string_view name;
  TraceId trace_id;
  // The caller has a span in the trace, and mostly has decided: by_default says
  // how. Only calls that are served are asked about in this case.
  bool has_parent;
  // The decision without a sampler: the caller's, or TracingOptions'
  // sample_ratio's.
  bool by_default;
};

// Asked once for each trace that begins here, and for each call that is served:
// its answer holds for that call, and for all that is called in it. Called by
// any fiber or thread, by several at a time. Must neither block nor throw.
// Servers and channels that outlive Tracing go on to ask it.
using Sampler = std::function<bool(const SamplingQuestion& question)>;

}  // namespace flare

#endif  // FLARE_RPC_TRACING_SAMPLER_H_

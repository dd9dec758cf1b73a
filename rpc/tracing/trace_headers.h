// How a request says to which trace it belongs: by the headers of W3C Trace
// Context, or by those of B3 (https://github.com/openzipkin/b3-propagation),
// which Zipkin's libraries and older meshes have. Baggage (baggage.h) goes
// along with either.
//
//   const TraceOrigin origin = ReadTraceHeaders(
//       options, [&](std::string_view name) { return metadata.GetAll(name); });
//   ...
//   WriteTraceHeaders(options, context,
//                     [&](std::string_view name, const std::string& value) {
//                       metadata.Set(name, value);
//                     });
//
// Pure functions: any thread, nothing blocks.
#ifndef FLARE_RPC_TRACING_TRACE_HEADERS_H_
#define FLARE_RPC_TRACING_TRACE_HEADERS_H_

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/rpc/tracing/baggage.h"
#include "flare/rpc/tracing/trace_context.h"

namespace flare {

enum class TraceHeaderForm {
  kW3c,      // traceparent, tracestate
  kB3,       // b3: ID-SPAN-1
  kB3Multi,  // x-b3-traceid, x-b3-spanid, x-b3-sampled
};

struct TraceHeaderOptions {
  std::vector<TraceHeaderForm> forms = {TraceHeaderForm::kW3c};
  bool baggage = false;
  std::size_t max_baggage_bytes = kDefaultBaggageBytes;
};

// Is shared by all spans of a call, which only read it. Null: none.
using SharedBaggage = std::shared_ptr<const std::string>;

// The place of a request in a trace, as its headers say.
struct TraceOrigin {
  std::optional<TraceContext> parent = {};  // nullopt: it begins a trace.
  // The caller's decision; nullopt: none. B3 may have either one alone.
  std::optional<bool> sampled = {};
  SharedBaggage baggage = {};
  std::size_t dropped_baggage = 0;  // Members over a limit.
};

inline constexpr std::string_view kB3 = "b3";
inline constexpr std::string_view kB3TraceId = "x-b3-traceid";
inline constexpr std::string_view kB3SpanId = "x-b3-spanid";
inline constexpr std::string_view kB3ParentSpanId = "x-b3-parentspanid";
inline constexpr std::string_view kB3Sampled = "x-b3-sampled";
inline constexpr std::string_view kB3Flags = "x-b3-flags";

// The names of a form's headers, in lower case.
std::span<const std::string_view> TraceHeaderNames(TraceHeaderForm form);

// All values of a header each, in the order of a form's names.
inline constexpr std::size_t kMostTraceHeaders = 5;
using TraceHeaderValues =
    std::array<std::vector<std::string_view>, kMostTraceHeaders>;
// Nothing if they are malformed, or one that may be only once isn't.
TraceOrigin ParseTraceHeaders(TraceHeaderForm form,
                              const TraceHeaderValues& values);

// B3's: "ID-SPAN-1", with 16 digits for trace ids of 64 bits.
std::string ToB3(const TraceContext& context);
std::string ToB3TraceId(const TraceId& id);

// `get(name)` returns the values of all headers of that name. The first form
// with a parent counts, and the first that says whether to record.
template <class Get>
TraceOrigin ReadTraceHeaders(const TraceHeaderOptions& options, Get get) {
  TraceOrigin origin;
  for (const TraceHeaderForm form : options.forms) {
    TraceHeaderValues values;
    std::size_t i = 0;
    for (const std::string_view name : TraceHeaderNames(form)) {
      values[i++] = get(name);
    }
    TraceOrigin read = ParseTraceHeaders(form, values);
    if (origin.sampled) read.sampled = origin.sampled;
    origin = std::move(read);
    if (origin.parent) break;
  }
  if (options.baggage) {
    JoinedBaggage joined =
        JoinBaggage(get(kBaggage), options.max_baggage_bytes);
    origin.dropped_baggage = joined.dropped;
    if (!joined.text.empty()) {
      origin.baggage =
          std::make_shared<const std::string>(std::move(joined.text));
    }
  }
  return origin;
}

// Calls `set(name, value)` for each header of a request that belongs to
// `context`, in all forms; baggage isn't among them.
template <class Set>
void WriteTraceHeaders(const TraceHeaderOptions& options,
                       const TraceContext& context, Set set) {
  for (const TraceHeaderForm form : options.forms) {
    switch (form) {
      case TraceHeaderForm::kW3c:
        set(kTraceparent, context.ToTraceparent());
        if (!context.state.empty()) set(kTracestate, context.state);
        break;
      case TraceHeaderForm::kB3:
        set(kB3, ToB3(context));
        break;
      case TraceHeaderForm::kB3Multi:
        set(kB3TraceId, ToB3TraceId(context.trace_id));
        set(kB3SpanId, SpanIdToString(context.span_id));
        set(kB3Sampled, std::string(context.sampled ? "1" : "0"));
        break;
    }
  }
}

}  // namespace flare

#endif  // FLARE_RPC_TRACING_TRACE_HEADERS_H_

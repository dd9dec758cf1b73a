#include "flare/rpc/tracing/trace_headers.h"

#include <cstdint>

#include "flare/base/string.h"

namespace flare {
namespace {

constexpr std::string_view kW3cNames[] = {kTraceparent, kTracestate};
constexpr std::string_view kB3Names[] = {kB3};
// ParseB3Multi() has their order.
constexpr std::string_view kB3MultiNames[kMostTraceHeaders] = {
    kB3TraceId, kB3SpanId, kB3Sampled, kB3Flags, kB3ParentSpanId};

// More than one is as good as none.
std::string_view Single(const std::vector<std::string_view>& values) {
  return values.size() == 1 ? values.front() : std::string_view();
}

TraceOrigin ParseW3c(const TraceHeaderValues& values) {
  TraceOrigin origin;
  origin.parent = ParseTraceparent(Single(values[0]));
  if (!origin.parent) return origin;
  origin.parent->state = JoinTracestate(values[1]);
  origin.sampled = origin.parent->sampled;
  return origin;
}

// "d": a caller that debugs wants the trace to be sampled. We hand that on as
// "1".
std::optional<bool> ParseB3Decision(std::string_view text) {
  if (text == "1" || text == "true" || text == "d") return true;
  if (text == "0" || text == "false") return false;
  return std::nullopt;
}

std::optional<TraceContext> ParseB3Ids(std::string_view trace,
                                       std::string_view span) {
  if ((trace.size() != 16 && trace.size() != 32) || span.size() != 16) {
    return std::nullopt;
  }
  const auto high =
      trace.size() == 32 ? ParseHexId(trace.substr(0, 16)) : std::uint64_t{0};
  const auto low = ParseHexId(trace.substr(trace.size() - 16));
  const auto span_id = ParseHexId(span);
  if (!high || !low || !span_id || (*high | *low) == 0 || *span_id == 0) {
    return std::nullopt;
  }
  return TraceContext{.trace_id = {.high = *high, .low = *low},
                      .span_id = *span_id};
}

TraceOrigin ParseB3(std::string_view text) {
  TraceOrigin origin;
  const std::vector<std::string_view> parts =
      Split(text, '-', /*keep_empty=*/true);
  if (parts.size() == 1) {  // A decision alone.
    origin.sampled = ParseB3Decision(parts[0]);
  } else if (parts.size() >= 2 && parts.size() <= 4) {
    origin.parent = ParseB3Ids(parts[0], parts[1]);
    if (origin.parent && parts.size() > 2) {
      origin.sampled = ParseB3Decision(parts[2]);
    }
  }
  return origin;
}

TraceOrigin ParseB3Multi(const TraceHeaderValues& values) {
  TraceOrigin origin;
  origin.parent = ParseB3Ids(Single(values[0]), Single(values[1]));
  origin.sampled = ParseB3Decision(Single(values[2]));
  if (Single(values[3]) == "1") origin.sampled = true;  // Debugging, too.
  return origin;
}

}  // namespace

std::span<const std::string_view> TraceHeaderNames(TraceHeaderForm form) {
  switch (form) {
    case TraceHeaderForm::kW3c:
      return kW3cNames;
    case TraceHeaderForm::kB3:
      return kB3Names;
    case TraceHeaderForm::kB3Multi:
      return kB3MultiNames;
  }
  return {};
}

TraceOrigin ParseTraceHeaders(TraceHeaderForm form,
                              const TraceHeaderValues& values) {
  switch (form) {
    case TraceHeaderForm::kW3c:
      return ParseW3c(values);
    case TraceHeaderForm::kB3:
      return ParseB3(Single(values[0]));
    case TraceHeaderForm::kB3Multi:
      return ParseB3Multi(values);
  }
  return {};
}

std::string ToB3TraceId(const TraceId& id) {
  return id.high == 0 ? SpanIdToString(id.low) : id.ToString();
}

std::string ToB3(const TraceContext& context) {
  return ToB3TraceId(context.trace_id) + "-" + SpanIdToString(context.span_id) +
         (context.sampled ? "-1" : "-0");
}

}  // namespace flare

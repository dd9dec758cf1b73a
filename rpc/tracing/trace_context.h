// The part of a trace that travels with a call: W3C Trace Context, level 1
// (https://www.w3.org/TR/trace-context-1/), the headers `traceparent` and
// `tracestate`.
//
//   traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
//                version  trace id                   span id        flags
//
// Plain values and functions: any thread, nothing blocks.
#ifndef FLARE_RPC_TRACING_TRACE_CONTEXT_H_
#define FLARE_RPC_TRACING_TRACE_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flare {

inline constexpr std::string_view kTraceparent = "traceparent";
inline constexpr std::string_view kTracestate = "tracestate";

struct TraceId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;

  // 32 digits.
  std::string ToString() const;
  friend bool operator==(const TraceId&, const TraceId&) = default;
};

// 16 digits.
std::string SpanIdToString(std::uint64_t span_id);

// The value of at most 16 digits in lower case, as the standard demands;
// nullopt: others.
std::optional<std::uint64_t> ParseHexId(std::string_view digits);

struct TraceContext {
  TraceId trace_id = {};
  std::uint64_t span_id = 0;  // 0: none.
  // Spans of this trace are recorded.
  bool sampled = false;
  // Level 2's flag: the trace id was chosen at random. Is handed on.
  bool random = false;
  // Data of tracing systems, which we hand on: "vendor=value,...".
  std::string state = {};

  // The value of `traceparent`.
  std::string ToTraceparent() const;
};

// nullopt: the value is malformed, or its version is 255. The beginning of a
// value is read if its version is a later one, as the standard says.
std::optional<TraceContext> ParseTraceparent(std::string_view value);

// Joins the values of all `tracestate` headers of a request. Empty if one of
// them is malformed, has over 32 members, or one name twice. If they are longer
// than kMaxTracestateBytes, members of over 128 bytes are left out first, the
// largest before others, and then the last ones.
inline constexpr std::size_t kMaxTracestateBytes = 512;
std::string JoinTracestate(const std::vector<std::string_view>& values);

// Random numbers that aren't 0. They can be guessed, so aren't for secrets.
TraceId NewTraceId();
std::uint64_t NewSpanId();

}  // namespace flare

#endif  // FLARE_RPC_TRACING_TRACE_CONTEXT_H_

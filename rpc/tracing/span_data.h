// Spans: the records of single calls, of which traces are made. Names and
// meanings are OpenTelemetry's.
//
// Plain values.
#ifndef FLARE_RPC_TRACING_SPAN_DATA_H_
#define FLARE_RPC_TRACING_SPAN_DATA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "flare/rpc/tracing/trace_context.h"

namespace flare {

// kInternal: a part of a method, and not a call (scoped_span.h).
enum class SpanKind { kServer, kClient, kInternal };

struct SpanAttribute {
  std::string name;
  std::variant<bool, std::int64_t, double, std::string> value;
};

struct SpanEvent {
  std::int64_t unix_ns = 0;
  std::string name;
};

// A span that has ended.
struct SpanData {
  // Limits of one span. More is counted and dropped, longer texts are cut.
  static constexpr std::size_t kMaxAttributes = 64;
  static constexpr std::size_t kMaxEvents = 64;
  static constexpr std::size_t kMaxNameBytes = 256;
  static constexpr std::size_t kMaxValueBytes = 1024;

  struct Traffic {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;  // Without attachments.
  };

  TraceContext context;
  std::uint64_t parent_id = 0;    // 0: the span begins its trace.
  bool parent_is_remote = false;  // The parent is of another process.
  SpanKind kind = SpanKind::kServer;
  // "package.Service/Method"; of HTTP handlers "GET"; of parts as they say.
  std::string name;
  // Its address, of requests of HttpClients the server's origin,
  // "https://example.com". Empty: a call that found none. Cut as values are.
  std::string peer;
  std::int64_t start_unix_ns = 0;
  std::int64_t duration_ns = 0;
  int status = 0;  // rpc::Status; of HTTP handlers HTTP's.
  bool failed = false;
  std::string error;  // Why, if it has failed.
  Traffic received;
  Traffic sent;
  std::vector<SpanAttribute> attributes;
  std::vector<SpanEvent> events;
  std::uint32_t dropped_attributes = 0;
  std::uint32_t dropped_events = 0;
};

}  // namespace flare

#endif  // FLARE_RPC_TRACING_SPAN_DATA_H_

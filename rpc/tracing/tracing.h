// Distributed traces: each call becomes a span, and its headers say to which
// trace it belongs, as W3C Trace Context and OpenTelemetry have them.
//
//   auto tracing = flare::Tracing::Install(
//       {.service_name = "fares", .collector = "grpc://127.0.0.1:4317"});
//   if (!tracing) return Fail(tracing.error().message());
//   ...                            // Start servers, open channels.
//
// From here on servers that are started and channels that are opened are
// traced, whatever their protocols. A call that is made while another one is
// served (in its execution context, fiber/execution_context.h) is its child.
// The page /inspect/traces shows spans, a collector such as OpenTelemetry's or
// Jaeger gets them, and so do exporters of the program's own.
//
// In the library //rpc:tracing (flare::tracing), which a program without traces
// shouldn't link. docs/tracing.md has more.
#ifndef FLARE_RPC_TRACING_TRACING_H_
#define FLARE_RPC_TRACING_TRACING_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/tracing/baggage.h"
#include "flare/rpc/tracing/sampler.h"
#include "flare/rpc/tracing/span.h"
#include "flare/rpc/tracing/span_exporter.h"
#include "flare/rpc/tracing/trace_headers.h"

namespace flare {

class Tracer;

struct TracingOptions {
  // The name of this program in traces. Empty: the file name of the program.
  std::string service_name = "";
  // The share of the traces that begin here which are sampled: from 0 to 1.
  // Traces that begin elsewhere are sampled as their headers say.
  double sample_ratio = 1;
  // Decides instead (sampler.h), also for calls whose callers have decided.
  Sampler sampler = nullptr;
  // Calls that aren't traced: those of methods ("package.Service.Method") and
  // paths that begin so. A collector would have a span of each batch of spans.
  // Requests of HttpClients are compared by their origin
  // ("https://example.com"), not by their path; those of a client with
  // HttpClientOptions::extensions = false are never traced.
  std::vector<std::string> excluded = {"/inspect",
                                       "/metrics",
                                       "grpc.health.v1.Health.",
                                       "grpc.reflection.",
                                       "opentelemetry.proto.collector.",
                                       "/v1/traces"};
  // The forms of the headers that say to which trace a request belongs. The
  // first of them that a request has is read; calls are sent with all of them.
  // Others of the same names are replaced.
  std::vector<TraceHeaderForm> header_forms = {TraceHeaderForm::kW3c};
  // Hands W3C Baggage of calls that are served on to all calls that are made
  // meanwhile, unless these have a header `baggage` of their own: strangers'
  // baggage, too.
  bool baggage = false;
  // So much of it: 1 to 8192, up to where the standard demands that it is
  // handed on whole. Members beyond that are dropped, and counted: calls over
  // HTTP would fail at servers that take heads of 8 KiB in all, as those of
  // this library do by default.
  std::size_t max_baggage_bytes = kDefaultBaggageBytes;
  // A collector that takes OTLP: over gRPC, as the URI of a channel
  // ("grpc://10.0.0.9:4317"), or over HTTP ("http://10.0.0.9:4318"). Empty:
  // none. otlp_exporter.h has more.
  std::string collector = "";
  // Further fields of the requests to it: {"api-key", "..."}.
  std::vector<std::pair<std::string, std::string>> collector_headers = {};
  // Others that get spans.
  std::vector<std::shared_ptr<SpanExporter>> exporters = {};
  // Spans on the page: so many of the last ones, and slow ones besides.
  std::size_t recent_spans = 1000;

  // Spans that wait to be exported. More are dropped, and counted.
  std::size_t max_queue = 4096;
  // Spans that are exported at a time, and the time between batches that have
  // fewer.
  std::size_t max_batch = 512;
  std::chrono::nanoseconds export_interval = std::chrono::seconds(1);
  std::chrono::nanoseconds export_timeout = std::chrono::seconds(5);
};

class Tracing {
 public:
  struct Statistics {
    std::uint64_t exported = 0;
    std::uint64_t dropped = 0;  // The queue was full, or there was no memory.
    std::uint64_t failed = 0;   // The collector didn't take them.
    // Members of baggage beyond a limit, or without room in a call's metadata.
    std::uint64_t dropped_baggage = 0;
  };

  // In flare::Start(). Fails, with a text that names it, if an option makes no
  // sense, or if there is another one. Doesn't block, nor connect.
  static Expected<std::unique_ptr<Tracing>, Status> Install(
      TracingOptions options = {});

  // Exports the spans that wait, which blocks the fiber: for up to twice the
  // timeout if the collector doesn't answer. Servers and channels that exist go
  // on to send headers. Destroy it behind them, in flare::Start().
  ~Tracing();
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

  // Any thread.
  Statistics statistics() const;
  // The spans of the page, the one that ended last first. Any thread.
  SpanBatch recent_spans() const;

 private:
  struct Turn;  // The only one's.

  Tracing(std::unique_ptr<Turn> turn, std::shared_ptr<Tracer> tracer);

  const std::unique_ptr<Turn> turn_;  // Ends behind the rest.
  const std::shared_ptr<Tracer> tracer_;
  const InstalledExtension extension_;
};

}  // namespace flare

#endif  // FLARE_RPC_TRACING_TRACING_H_

// Sends spans to a collector by OTLP, over gRPC or over HTTP.
//
//   auto exporter = flare::NewOtlpExporter(
//       {.collector = "grpc://127.0.0.1:4317", .service_name = "fares"});
//
// TracingOptions::collector makes one. Attributes have the names of
// OpenTelemetry's semantic conventions for RPC.
#ifndef FLARE_RPC_TRACING_OTLP_EXPORTER_H_
#define FLARE_RPC_TRACING_OTLP_EXPORTER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/tracing/span_exporter.h"

namespace flare {

struct OtlpOptions {
  // The URI of a channel, "grpc://HOST:PORT" or "tls+grpc://...", or the URL of
  // requests that bring spans as protobuf, "http://HOST:PORT" or "https://...".
  // A URL without a path gets "/v1/traces".
  std::string collector;
  std::string service_name;
  // Names and values of further fields, such as a key, of each request: of its
  // metadata over gRPC.
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Fails if the collector, or a header, is malformed. Needs a running runtime.
// Doesn't connect. While the collector can't be connected to, or says that it
// is busy, Export() waits for it, until its deadline.
Expected<std::shared_ptr<SpanExporter>, Status> NewOtlpExporter(
    OtlpOptions options);

}  // namespace flare

#endif  // FLARE_RPC_TRACING_OTLP_EXPORTER_H_

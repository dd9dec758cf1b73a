// Sends spans to a collector by OTLP over gRPC.
//
//   auto exporter = flare::NewOtlpExporter("grpc://127.0.0.1:4317", "fares");
//
// TracingOptions::collector makes one. Attributes have the names of
// OpenTelemetry's semantic conventions for RPC.
#ifndef FLARE_RPC_TRACING_OTLP_EXPORTER_H_
#define FLARE_RPC_TRACING_OTLP_EXPORTER_H_

#include <memory>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/tracing/span_exporter.h"

namespace flare {

// `collector` is the URI of a channel: "grpc://HOST:PORT", or "tls+grpc://...".
// Fails if it is malformed. Doesn't connect. While the collector can't be
// connected to, Export() waits for it, until its deadline.
Expected<std::shared_ptr<SpanExporter>, Status> NewOtlpExporter(
    const std::string& collector, const std::string& service_name);

}  // namespace flare

#endif  // FLARE_RPC_TRACING_OTLP_EXPORTER_H_

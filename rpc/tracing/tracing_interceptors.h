// The interceptors that trace calls: they read and write the headers of traces
// (trace_headers.h), in metadata or in fields of HTTP requests, and make a span
// of each call.
#ifndef FLARE_RPC_TRACING_TRACING_INTERCEPTORS_H_
#define FLARE_RPC_TRACING_TRACING_INTERCEPTORS_H_

#include <memory>

#include "flare/rpc/interceptor.h"
#include "flare/rpc/tracing/tracer.h"

namespace flare {

std::shared_ptr<ServerInterceptor> NewTracingServerInterceptor(
    std::shared_ptr<Tracer> tracer);
std::shared_ptr<ClientInterceptor> NewTracingClientInterceptor(
    std::shared_ptr<Tracer> tracer);
std::shared_ptr<HttpClientInterceptor> NewTracingHttpClientInterceptor(
    std::shared_ptr<Tracer> tracer);

}  // namespace flare

#endif  // FLARE_RPC_TRACING_TRACING_INTERCEPTORS_H_

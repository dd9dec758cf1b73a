// Traces: a call that makes another one. Without arguments the program prints
// the spans of both; a collector gets them, too, if there is one:
//
//   docker run -p 4317:4317 -p 16686:16686 jaegertracing/jaeger
//   bazel-bin/example/short/tracing grpc://127.0.0.1:4317

#include "flare/rpc/tracing/tracing.h"

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/server.h"
#include "flare/rpc/tracing/scoped_span.h"

namespace echo = example::protobuf_echo;

namespace {

class Backend : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController*) override {
    flare::Span span = flare::CurrentSpan();
    span.SetAttribute("cache.hit", false);
    span.AddEvent("asking the database");
    flare::ScopedSpan part("query");  // Until the end of the scope.
    part.SetAttribute("rows", 1);
    response->set_body(request.body());
  }
};

// Its call is a child of the call that it serves.
class Frontend : public echo::SyncEchoService {
 public:
  explicit Frontend(const std::string& backend) : channel_(backend) {}

 private:
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    const auto reply = echo::EchoService_SyncStub(&channel_).Echo(request);
    if (!reply) return controller->SetFailed(reply.error().message());
    *response = *reply;
  }

  flare::RpcChannel channel_;
};

// An exporter of one's own.
class PrintSpans : public flare::SpanExporter {
  static const char* KindOf(const flare::SpanData& span) {
    if (span.kind == flare::SpanKind::kInternal) return "part";
    return span.kind == flare::SpanKind::kServer ? "server" : "client";
  }
  flare::Status Export(const flare::SpanBatch& spans,
                       std::chrono::steady_clock::time_point) override {
    for (const auto& span : spans) {
      std::cout << KindOf(*span)
                << (span->parent_id == 0 ? " (begins the trace)" : "") << ": "
                << span->name << ", " << span->sent.bytes << " bytes sent";
      for (const auto& event : span->events) std::cout << ", " << event.name;
      std::cout << '\n';
    }
    return {};
  }
};

// Whatever callers say, calls of one method are recorded.
bool Samples(const flare::SamplingQuestion& question) {
  return question.by_default ||
         question.name == "example.protobuf_echo.EchoService.Echo";
}

// At a port that the system chooses. False: the log says why.
bool Serve(std::unique_ptr<echo::SyncEchoService> service,
           flare::Server* server) {
  server->AddProtocols({"flare", "http+pb"});
  server->AddService(std::move(service));
  server->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  return server->Start();
}

int Entry(int argc, char** argv) {
  // Before servers are started and channels are opened.
  const auto tracing =
      flare::Tracing::Install({.service_name = "tracing-example",
                               .sampler = Samples,
                               .collector = argc > 1 ? argv[1] : "",
                               .exporters = {std::make_shared<PrintSpans>()}});
  if (!tracing) {
    std::cerr << tracing.error().message() << '\n';
    return 1;
  }
  flare::Server backend, frontend;
  if (!Serve(std::make_unique<Backend>(), &backend)) return 1;
  if (!Serve(std::make_unique<Frontend>("flare://" +
                                        backend.endpoint().ToString()),
             &frontend)) {
    return 1;
  }
  flare::RpcChannel channel("http+pb://" + frontend.endpoint().ToString());
  echo::EchoRequest request;
  request.set_body("hello");
  const auto reply = echo::EchoService_SyncStub(&channel).Echo(request);
  if (!reply) return 1;
  std::cout << reply->body() << '\n';
  return 0;  // The spans that wait are exported now.
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

// Metadata beside requests and replies: docs/metadata.md. Serves and calls,
// over each protocol in turn:
//
//   ./metadata

#include "flare/rpc/metadata.h"

#include <iostream>
#include <memory>
#include <string>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

constexpr int kNoToken = 1401;  // Codes of one's own are above 1000.

class TenantEcho : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    const flare::Metadata& metadata = controller->GetRequestMetadata();
    if (metadata.Get("authorization") != "Bearer secret") {
      controller->AddResponseMetadata("www-authenticate", "Bearer");
      return controller->SetFailed(kNoToken, "no token, or a wrong one");
    }
    controller->AddResponseMetadata("x-served-by", "north-1");
    // Names that end in "-bin" have any bytes as values.
    if (auto trace = metadata.Get("trace-bin")) {
      controller->AddResponseMetadata("trace-bin", *trace);
    }
    response->set_body(request.body());
  }
};

void Call(const echo::EchoService_SyncStub& stub) {
  flare::RpcClientController controller;
  controller.AddMetadata("authorization", "Bearer secret");
  controller.AddMetadata("trace-bin", std::string("\x01\x00\xff", 3));
  echo::EchoRequest request;
  request.set_body("hello");
  auto reply = stub.Echo(request, &controller);
  if (!reply) {
    std::cout << reply.error().ToString() << '\n';
    return;
  }
  const flare::Metadata& metadata = controller.GetResponseMetadata();
  std::cout << reply->body() << " from "
            << metadata.Get("x-served-by").value_or("somebody") << ", trace of "
            << metadata.Get("trace-bin").value_or("").size() << " bytes\n";
}

// Metadata comes with failures, too.
void CallWithoutToken(const echo::EchoService_SyncStub& stub) {
  flare::RpcClientController controller;
  auto reply = stub.Echo(echo::EchoRequest(), &controller);
  std::cout << controller.ErrorCode() << ": " << controller.ErrorText() << '\n';
  for (const auto [name, value] : controller.GetResponseMetadata()) {
    if (name == "www-authenticate") std::cout << "it wants " << value << '\n';
  }
}

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocols({"flare", "http+pb", "baidu-std", "trpc", "bolt"});
  server.AddService(std::make_unique<TenantEcho>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  if (!server.Start()) return 1;
  for (const std::string scheme :
       {"flare", "http+pb", "baidu-std", "trpc", "bolt"}) {
    flare::RpcChannel channel(scheme + "://" + server.endpoint().ToString());
    const echo::EchoService_SyncStub stub(&channel);
    std::cout << scheme << '\n';
    Call(stub);
    CallWithoutToken(stub);
  }
  server.Stop();
  server.Join();
  return 0;
}

// Warnings and errors alone, on stderr; servers have files (docs/debugging.md).
FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

// A gateway: it speaks gRPC and HTTP with its clients and flare with the server
// behind it, and knows nothing of the services whose calls it passes on.
// Server, gateway and client are in one process.

#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/rpc/generic_service.h"
#include "flare/rpc/generic_stub.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

class EchoServiceImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    if (request.body().empty()) return controller->SetFailed(1001, "no body");
    const auto name = controller->GetRequestMetadata().Get("name");
    response->set_body(request.body() + ", " + std::string(name.value_or("")));
  }
};

class Gateway : public flare::GenericService {
 public:
  explicit Gateway(const std::string& uri) : stub_(uri) {}

  // The deadline of the client's call, and its cancellation, are those of the
  // call that is made here.
  void Call(std::string_view method, flare::Buffer request,
            flare::Buffer* response,
            flare::RpcServerController* controller) override {
    flare::RpcClientController call;
    for (const auto& [name, value] : controller->GetRequestMetadata()) {
      call.AddMetadata(name, value);
    }
    call.SetRequestAttachment(controller->GetRequestAttachment());
    auto reply = stub_.Call(method, std::move(request), &call);
    for (const auto& [name, value] : call.GetResponseMetadata()) {
      controller->AddResponseMetadata(name, value);
    }
    if (!reply) {
      return controller->SetFailed(reply.error().code(),
                                   reply.error().message());
    }
    controller->SetResponseAttachment(call.GetResponseAttachment());
    *response = *std::move(reply);
  }

 private:
  const flare::GenericStub stub_;
};

bool Start(flare::Server* server, const std::vector<std::string>& protocols) {
  server->AddProtocols(protocols);
  server->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  return server->Start();
}

int Entry(int /*argc*/, char** /*argv*/) {
  flare::Server server;
  server.AddService(std::make_unique<EchoServiceImpl>());
  if (!Start(&server, {"flare"})) return 1;

  flare::Server gateway;
  gateway.SetGenericService(
      std::make_unique<Gateway>("flare://" + server.endpoint().ToString()));
  if (!Start(&gateway, {"grpc", "http+pb"})) return 1;

  for (const std::string protocol : {"grpc", "http+pb"}) {
    const echo::EchoService_SyncStub stub(protocol + "://" +
                                          gateway.endpoint().ToString());
    for (const char* body : {"hello", ""}) {
      flare::RpcClientController controller;
      controller.AddMetadata("name", "alice");
      echo::EchoRequest request;
      request.set_body(body);
      const auto reply = stub.Echo(request, &controller);
      std::cout << protocol << ": "
                << (reply ? reply->body() : reply.error().ToString()) << '\n';
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

// A server whose calls are wrapped by interceptors; see docs/interceptors.md.
// With its client in one process.

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

// Says how calls went.
class Logging : public flare::ServerInterceptor {
  void Intercept(flare::InterceptedCall& call,
                 flare::ServerNext& next) override {
    next.Run();  // The interceptors behind this one, and the method.
    std::cout << call.method() << " of " << call.peer().host()
              << (call.failed() ? " failed" : " succeeded") << '\n';
  }
};

// Lets nobody in but those that know the word.
class Gate : public flare::ServerInterceptor {
  void Intercept(flare::InterceptedCall& call,
                 flare::ServerNext& next) override {
    const auto* const request =
        dynamic_cast<const echo::EchoRequest*>(call.request());
    if (request != nullptr && request->body() == "sesame") return next.Run();
    call.SetFailed(1401, "say the word");
  }
};

class EchoImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController*) override {
    response->set_body(request.body());
  }
};

std::string Call(const flare::Server& server, std::string body) {
  const echo::EchoService_SyncStub stub("flare://" +
                                        server.endpoint().ToString());
  echo::EchoRequest request;
  request.set_body(std::move(body));
  flare::RpcClientController controller;
  auto reply = stub.Echo(request, &controller);
  return reply ? reply->body() : reply.error().message();
}

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocol("flare");
  server.AddInterceptor(std::make_shared<Logging>());
  server.AddService(std::make_unique<EchoImpl>(),
                    {.interceptors = {std::make_shared<Gate>()}});
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  if (!server.Start()) return 1;
  const std::string stranger = Call(server, "hello");
  const std::string friends = Call(server, "sesame");
  std::cout << stranger << '\n' << friends << '\n';
  server.Stop();
  server.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

// The server of the README: as short as a service can be.

#include "flare/rpc/server.h"

#include <memory>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"

namespace echo = example::protobuf_echo;

class EchoImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController*) override {
    response->set_body(request.body());  // May block: only this fiber waits.
  }
};

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocols({"flare", "http+pb", "http+proto3-json"});
  server.AddService(std::make_unique<EchoImpl>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 5570));
  if (!server.Start()) return 1;
  flare::WaitForQuitSignal();
  server.Stop();  // Answers accepted requests,
  server.Join();  // and waits for that.
  return 0;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

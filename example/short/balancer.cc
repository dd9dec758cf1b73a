// A balancer of your own: a standby gets calls only while the primary can't
// have them. Servers and client are in one process.

#include <cstddef>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/rpc/load_balancer.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

// Servers in the order of the URI: the first one that can have the call.
class FirstOfList : public flare::rpc::Picker {
 public:
  explicit FirstOfList(std::size_t servers) : servers_(servers) {}

  std::size_t Pick(const flare::rpc::PickedCall& call) override {
    return call.refused == 0 ? 0 : (call.last_refused + 1) % servers_;
  }

 private:
  const std::size_t servers_;
};

class PrimaryFirst : public flare::rpc::LoadBalancer {
  std::unique_ptr<flare::rpc::Picker> NewPicker(
      const flare::rpc::Backends& backends) override {
    return std::make_unique<FirstOfList>(backends.size());
  }
};

class NameImpl : public echo::SyncEchoService {
 public:
  explicit NameImpl(std::string name) : name_(std::move(name)) {}

  void Echo(const echo::EchoRequest&, echo::EchoResponse* response,
            flare::RpcServerController*) override {
    response->set_body(name_);
  }

 private:
  const std::string name_;
};

bool Serve(flare::Server* server, const std::string& name) {
  server->AddProtocol("flare");
  server->AddService(std::make_unique<NameImpl>(name));
  server->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  return server->Start();
}

void Call(const echo::EchoService_SyncStub& stub) {
  flare::RpcClientController call;
  call.SetMaxRetries(2);  // Attempts: the second one on another server.
  auto reply = stub.Echo(echo::EchoRequest(), &call);
  std::cout << (reply ? reply->body() : reply.error().ToString()) << '\n';
}

int Entry(int, char**) {
  flare::rpc::RegisterLoadBalancer(
      "primary", [] { return std::make_unique<PrimaryFirst>(); });
  flare::Server primary;
  flare::Server standby;
  if (!Serve(&primary, "primary") || !Serve(&standby, "standby")) return 1;

  flare::RpcChannel::Options options;
  options.override_nslb = "list+primary";
  flare::RpcChannel channel("flare://" + primary.endpoint().ToString() + "," +
                                standby.endpoint().ToString(),
                            options);
  const echo::EchoService_SyncStub stub(&channel);
  Call(stub);
  Call(stub);
  primary.Stop();
  primary.Join();
  Call(stub);

  standby.Stop();
  standby.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

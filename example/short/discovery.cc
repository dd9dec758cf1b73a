// Servers from a file, which are checked for health. One of them leaves the
// file, another one says that it doesn't serve: neither gets calls any more.
// The argument is a path for the file. Servers and client are in one process.

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/rpc/health_check_options.h"
#include "flare/rpc/server.h"
#include "flare/rpc/services/health.h"

namespace echo = example::protobuf_echo;
using std::chrono::milliseconds;

namespace {

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

struct NamedServer {
  bool Start(const std::string& name) {
    server.AddProtocols({"flare", "grpc"});  // Checks are made over grpc.
    server.AddService(std::make_unique<NameImpl>(name));
    health = flare::AddHealthService(&server);
    server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
    return server.Start();
  }
  std::string address() const { return server.endpoint().ToString(); }

  flare::Server server;
  std::shared_ptr<flare::Health> health;
};

// In one step: a channel that looks meanwhile must not see half of it.
void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

// Calls until the servers that answer are those expected; prints them.
void CallUntil(const echo::EchoService_SyncStub& stub,
               const std::set<std::string>& expected) {
  std::set<std::string> names;
  while (names != expected) {
    names.clear();
    for (int i = 0; i != 12; ++i) {
      auto reply = stub.Echo(echo::EchoRequest());
      names.insert(reply ? reply->body() : reply.error().ToString());
    }
    flare::this_fiber::SleepFor(milliseconds(50));
  }
  for (const std::string& name : names) std::cout << name << ' ';
  std::cout << '\n';
}

int Entry(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string path = std::filesystem::absolute(argv[1]);
  NamedServer north, south, west;
  if (!north.Start("north") || !south.Start("south") || !west.Start("west")) {
    return 1;
  }
  WriteFile(path, "# The name servers.\n" + north.address() + ";weight=2\n" +
                      south.address() + '\n' + west.address() + '\n');

  flare::RpcChannel::Options options;
  options.override_nslb = "file+wrr";  // Resolver and balancer.
  options.health_check = {.kind = flare::HealthCheckKind::kGrpc,
                          .interval = milliseconds(100)};
  flare::RpcChannel channel("flare://" + path, options);
  const echo::EchoService_SyncStub stub(&channel);
  CallUntil(stub, {"north", "south", "west"});
  south.health->SetAll(flare::Health::Status::kNotServing);
  CallUntil(stub, {"north", "west"});
  WriteFile(path, north.address() + '\n' + south.address() + '\n');
  CallUntil(stub, {"north"});

  for (NamedServer* each : {&north, &south, &west}) {
    each->server.Stop();
    each->server.Join();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

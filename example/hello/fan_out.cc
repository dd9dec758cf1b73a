// One call to several servers: docs/fan_out.md. With its servers in one
// process.

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/fan_out/parallel_channel.h"
#include "flare/rpc/fan_out/partition_channel.h"
#include "flare/rpc/fan_out/selective_channel.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

using Channels = std::vector<std::shared_ptr<google::protobuf::RpcChannel>>;

class EchoImpl : public echo::SyncEchoService {
 public:
  explicit EchoImpl(std::string name) : name_(std::move(name)) {}
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController*) override {
    response->set_body(request.body() + " from " + name_);
  }

 private:
  const std::string name_;
};

std::unique_ptr<flare::Server> Serve(const std::string& name) {
  auto server = std::make_unique<flare::Server>();
  server->AddProtocol("flare");
  server->AddService(std::make_unique<EchoImpl>(name));
  server->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  return server->Start() ? std::move(server) : nullptr;
}

void Call(google::protobuf::RpcChannel* channel, const std::string& body) {
  echo::EchoRequest request;
  request.set_body(body);
  auto reply = echo::EchoService_SyncStub(channel).Echo(request);
  std::cout << (reply ? reply->body() : reply.error().ToString()) << '\n';
}

// Adds a line for each reply.
flare::Status AddLine(const flare::FanOutReply& reply,
                      google::protobuf::Message* response) {
  auto* const all = static_cast<echo::EchoResponse*>(response);
  if (!all->body().empty()) *all->mutable_body() += '\n';
  *all->mutable_body() +=
      static_cast<const echo::EchoResponse&>(reply.message).body();
  return flare::Status();
}

void Parallel(const Channels& channels) {
  flare::ParallelChannel all(channels, {.merge = AddLine});
  Call(&all, "all");
  // The first reply wins; the other calls are cancelled.
  flare::ParallelChannel any(channels, {.enough = 1});
  Call(&any, "any");
}

// A key has its server.
void Partitioned(const Channels& channels) {
  flare::PartitionChannel shards(channels, flare::PartitionByField("body"));
  Call(&shards, "apple");
  Call(&shards, "apple");
}

// The first one can't be connected to.
void Selective(const Channels& channels) {
  flare::SelectiveChannel cluster(
      {std::make_shared<flare::RpcChannel>("flare://127.0.0.1:1"), channels[1]},
      {.in_order = true});
  Call(&cluster, "one");
}

int Entry(int, char**) {
  std::vector<std::unique_ptr<flare::Server>> servers;
  Channels channels;
  for (const char* const name : {"north", "south"}) {
    servers.push_back(Serve(name));
    if (servers.back() == nullptr) return 1;
    channels.push_back(std::make_shared<flare::RpcChannel>(
        "flare://" + servers.back()->endpoint().ToString()));
  }
  Parallel(channels);
  Partitioned(channels);
  Selective(channels);
  for (auto& server : servers) server->Stop();
  for (auto& server : servers) server->Join();
  return 0;
}

}  // namespace

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

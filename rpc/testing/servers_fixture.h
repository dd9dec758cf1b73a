// A runtime, and several servers in it whose services do what a test says.
//
//   class MyTest : public ServersTest {};
//   TEST_F(MyTest, Asks) {
//     StartServers(3);
//     service(1).on_call = [](TestCall call) { call.Reply("one"); };
//     RpcChannel channel(uri(1));
//   }
#ifndef FLARE_RPC_TESTING_SERVERS_FIXTURE_H_
#define FLARE_RPC_TESTING_SERVERS_FIXTURE_H_

#include <google/protobuf/message.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/fiber/event.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

class ServersTest : public ClientTest {
 protected:
  void TearDown() override {
    go_.Set();
    ShutdownClientSide();
    servers_.clear();
    RpcTest::TearDown();
  }

  // `count` servers that speak `protocol`, each with a service that echoes.
  void StartServers(std::size_t count, const std::string& protocol = "flare") {
    protocol_ = protocol;
    for (std::size_t i = 0; i != count; ++i) {
      services_.push_back(std::make_unique<FlexibleService>());
      Server::Options options;
      options.service_name = "test";
      auto server = std::make_unique<Server>(options);
      server->AddService(services_.back().get());
      server->AddProtocol(protocol);
      server->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
      ASSERT_TRUE(server->Start()) << server->error().ToString();
      servers_.push_back(std::move(server));
    }
  }

  FlexibleService& service(std::size_t i) { return *services_[i]; }
  std::string address(std::size_t i) {
    return servers_[i]->endpoint().ToString();
  }
  std::string uri(std::size_t i) { return protocol_ + "://" + address(i); }

  // Handlers: of a server that doesn't answer before the test's end, ...
  FlexibleService::Handler Silent() {
    return [this](TestCall call) {
      go_.Wait();
      call.Reply("too late");
    };
  }
  // ... answers with a text, ...
  static FlexibleService::Handler Says(std::string text) {
    return [text](TestCall call) { call.Reply(text); };
  }
  // ... and fails.
  static FlexibleService::Handler FailsWith(int code, std::string text = "no") {
    return [code, text](TestCall call) {
      call.controller->SetFailed(code, text);
      call.Reply();
    };
  }

 private:
  std::string protocol_;
  fiber::Event go_;
  std::vector<std::unique_ptr<FlexibleService>> services_;
  std::vector<std::unique_ptr<Server>> servers_;
};

// Throws before it has begun a call, as a channel without memory does.
class ThrowingChannel : public google::protobuf::RpcChannel {
 public:
  void CallMethod(const google::protobuf::MethodDescriptor*,
                  google::protobuf::RpcController*,
                  const google::protobuf::Message*, google::protobuf::Message*,
                  google::protobuf::Closure*) override {
    throw std::runtime_error("no start");
  }
};

// TestedCall, on a channel of any class.
class AnyChannelCall : public TestedCall {
 public:
  AnyChannelCall* StartOn(google::protobuf::RpcChannel* channel) {
    channel->CallMethod(MethodNamed("Call"), &controller, &request, &response,
                        this);
    return this;
  }
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_SERVERS_FIXTURE_H_

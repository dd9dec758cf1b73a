// A fiber runtime to make loads in, and a server in it for them.

#ifndef EXAMPLE_RPC_ECHO_LOAD_FIXTURE_H_
#define EXAMPLE_RPC_ECHO_LOAD_FIXTURE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "example/rpc/load_options.h"
#include "example/rpc/load_test_fixture.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/server.h"
#include "gtest/gtest.h"

namespace example {

// An echo service whose answers a test can change, and whose requests it can
// look at. Both are called on many fibers at once.
class EchoService : public protobuf_echo::SyncEchoService {
 public:
  using Change = std::function<void(int call, protobuf_echo::EchoResponse*,
                                    flare::RpcServerController*)>;
  using Look = std::function<void(const protobuf_echo::EchoRequest&)>;

  EchoService(Change change, Look look)
      : change_(std::move(change)), look_(std::move(look)) {}

  void Echo(const protobuf_echo::EchoRequest& request,
            protobuf_echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    response->set_body(request.body());
    controller->SetResponseAttachment(controller->GetRequestAttachment());
    if (change_) change_(calls_.fetch_add(1), response, controller);
    if (look_) look_(request);
  }

 private:
  const Change change_;
  const Look look_;
  std::atomic<int> calls_{0};
};

class EchoLoadTest : public LoadTest {
 protected:
  // Returns options with the server's address.
  LoadOptions StartServer(EchoService::Change change = nullptr,
                          EchoService::Look look = nullptr) {
    server_ = std::make_unique<flare::Server>();
    server_->AddProtocols({"flare", "grpc", "http+proto3-json"});
    server_->AddService(
        std::make_unique<EchoService>(std::move(change), std::move(look)));
    server_->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
    EXPECT_TRUE(server_->Start()) << server_->error();
    LoadOptions options;
    options.server_addr = "flare://" + server_->endpoint().ToString();
    options.timeout = std::chrono::seconds(60);
    return options;
  }

  // Returns when all calls have ended.
  void StopServer() {
    if (server_ == nullptr) return;
    server_->Stop();
    server_->Join();
    server_.reset();
  }

  void TearDown() override { StopServer(); }

 private:
  std::unique_ptr<flare::Server> server_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_ECHO_LOAD_FIXTURE_H_

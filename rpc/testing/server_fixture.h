// A runtime with epoll under it, and a server in it, for tests.
//
//   class MyTest : public ServerTest {};
//   TEST_F(MyTest, Answers) {
//     service().on_call = [](auto call) { call.Reply("hello"); };
//     StartServer();
//     RawClient client(endpoint());
//     ...
//   }
#ifndef FLARE_RPC_TESTING_SERVER_FIXTURE_H_
#define FLARE_RPC_TESTING_SERVER_FIXTURE_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc::testing {

inline constexpr char kCall[] = "flare.rpc.testing.TestService.Call";
inline constexpr char kOther[] = "flare.rpc.testing.TestService.Other";
inline constexpr char kCallStrict[] =
    "flare.rpc.testing.TestService.CallStrict";

inline TestRequest MakeRequest(std::string body, int number = 0) {
  TestRequest request;
  request.set_body(std::move(body));
  request.set_number(number);
  return request;
}

// The arguments of a method of TestService. May be kept until Reply().
struct TestCall {
  RpcServerController* controller;
  const TestRequest* request;
  TestResponse* response;
  google::protobuf::Closure* done;

  void Reply() const { done->Run(); }
  void Reply(std::string body) const {
    response->set_body(std::move(body));
    done->Run();
  }
};

// Does what the test says; by default it echoes.
class FlexibleService : public TestService {
 public:
  using Handler = std::function<void(TestCall)>;

  static void Echo(TestCall call) {
    if (call.request->has_number()) {
      call.response->set_number(call.request->number());
    }
    call.Reply(call.request->body());
  }
  // Sets `started`, if there is one, waits for `go`, and echoes. Both must
  // outlive the calls.
  static Handler EchoAfter(fiber::Event* go, fiber::Event* started = nullptr) {
    return [go, started](TestCall call) {
      if (started != nullptr) started->Set();
      go->Wait();
      Echo(call);
    };
  }

  void Call(google::protobuf::RpcController* controller,
            const TestRequest* request, TestResponse* response,
            google::protobuf::Closure* done) override {
    on_call({static_cast<RpcServerController*>(controller), request, response,
             done});
  }
  void Other(google::protobuf::RpcController* controller,
             const TestRequest* request, TestResponse* response,
             google::protobuf::Closure* done) override {
    on_other({static_cast<RpcServerController*>(controller), request, response,
              done});
  }
  // Doesn't fill in the response's required field if told to be "empty".
  void CallStrict(google::protobuf::RpcController*, const Strict* request,
                  Strict* response, google::protobuf::Closure* done) override {
    if (request->body() != "empty") response->set_body(request->body());
    done->Run();
  }

  Handler on_call = Echo;
  Handler on_other = Echo;
};

class ServerTest : public RpcTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    server_options_.service_name = "test";
  }

  void TearDown() override {
    server_.reset();
    RpcTest::TearDown();
  }

  Server::Options& server_options() { return server_options_; }
  FlexibleService& service() { return service_; }

  // A server that isn't started yet: for tests that add something.
  Server& server() {
    if (server_ == nullptr) {
      server_ = std::make_unique<Server>(server_options_);
      server_->AddService(&service_);
    }
    return *server_;
  }

  void StartServer(const std::vector<std::string>& protocols = {
                       "flare", "http+pb", "http+proto3-json", "http"}) {
    server().AddProtocols(protocols);
    server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server().Start()) << server().error().ToString();
  }

  const Endpoint& endpoint() { return server_->endpoint(); }

  void StopServer() {
    server_->Stop();
    server_->Join();
  }

 private:
  Server::Options server_options_;
  FlexibleService service_;
  std::unique_ptr<Server> server_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_SERVER_FIXTURE_H_

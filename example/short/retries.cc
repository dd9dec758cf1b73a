// A retry policy and a hedging policy. The first server refuses calls, or takes
// long; the second one is fast. Servers and client are in one process.

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/rpc/policy/call_policies.h"
#include "flare/rpc/policy/call_policy.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;
using std::chrono::milliseconds;

namespace {

constexpr char kEcho[] = "example.protobuf_echo.EchoService.Echo";

// Has a bad day.
class BadImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    if (request.body() == "refuse") {
      return controller->SetFailed(flare::rpc::STATUS_OVERLOADED, "not now");
    }
    // A hedged call that has lost is cancelled.
    if (!flare::this_fiber::SleepFor(controller->GetStopToken(),
                                     std::chrono::seconds(10))) {
      return controller->SetFailed("nobody waits for it any more");
    }
    response->set_body("late");
  }
};

class GoodImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest&, echo::EchoResponse* response,
            flare::RpcServerController*) override {
    response->set_body("answered");
  }
};

template <class Impl>
bool Serve(flare::Server* server) {
  server->AddProtocol("flare");
  server->AddService(std::make_unique<Impl>());
  server->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  return server->Start();
}

// Makes two calls, so that each server is the first one for one of them.
void Call(const std::string& uri, const std::string& body,
          std::shared_ptr<flare::CallPolicies> policies) {
  flare::RpcChannel channel(uri, {.policies = policies});
  const echo::EchoService_SyncStub stub(&channel);
  for (int i = 0; i != 2; ++i) {
    echo::EchoRequest request;
    request.set_body(body);
    flare::RpcClientController controller;
    controller.SetTimeout(std::chrono::seconds(5));  // For all attempts.
    auto reply = stub.Echo(request, &controller);
    std::cout << body << ": "
              << (reply ? reply->body() : reply.error().ToString()) << '\n';
  }
}

int Entry(int, char**) {
  flare::Server bad;
  flare::Server good;
  if (!Serve<BadImpl>(&bad) || !Serve<GoodImpl>(&good)) return 1;
  const std::string uri =
      "flare://" + bad.endpoint().ToString() + "," + good.endpoint().ToString();

  // A refused call is made again, after up to 20 ms, on the other server.
  auto retries = std::make_shared<flare::CallPolicies>();
  flare::RetryPolicy retry;
  retry.max_attempts = 3;
  retry.initial_backoff = milliseconds(20);
  if (!retries->Set(kEcho, {.retry = retry}).ok()) return 1;
  Call(uri, "refuse", retries);

  // A call that isn't answered after 50 ms goes to the other server, too.
  auto hedges = std::make_shared<flare::CallPolicies>();
  flare::HedgingPolicy hedging;
  hedging.max_attempts = 2;
  hedging.delay = milliseconds(50);
  if (!hedges->Set(kEcho, {.hedging = hedging}).ok()) return 1;
  Call(uri, "wait", hedges);

  for (flare::Server* server : {&bad, &good}) {
    server->Stop();
    server->Join();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }

// Servers that stop, and come back, while there are calls, over each protocol
// in which our clients are told.
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class ClientRestartTest : public ClientTest,
                          public ::testing::WithParamInterface<const char*> {
 protected:
  // Nobody is in a hurry: the machine may be busy.
  static Server::Options Patient() {
    Server::Options options;
    options.service_name = "test";
    options.stop_linger = std::chrono::seconds(15);
    options.drain_timeout = std::chrono::seconds(30);
    return options;
  }
  // Nobody has waited for the times above.
  void ExpectPromptEnd(Server* server) {
    EXPECT_EQ(server->Join(), 0u);
    EXPECT_LT(std::chrono::steady_clock::now() - begin_,
              std::chrono::seconds(14));
  }
  // Calls until the client knows that the server stops.
  static void CallUntilRefused(RpcChannel* channel) {
    for (int status = STATUS_SUCCESS; status == STATUS_SUCCESS;) {
      TestedCall late;
      status = late.Start(channel)->Await();
      EXPECT_TRUE(status == STATUS_SUCCESS || status == STATUS_FAIL_TO_CONNECT)
          << late.controller.ErrorText();
    }
  }
  static std::string scheme() { return std::string(GetParam()) + "://"; }
  static std::unique_ptr<Server> StartAt(const Endpoint& address,
                                         FlexibleService* service) {
    auto server = std::make_unique<Server>(Patient());
    server->AddProtocol(GetParam());
    server->AddService(service);
    server->ListenOn(address);
    EXPECT_TRUE(server->Start()) << server->error().ToString();
    return server;
  }

 private:
  const std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
};

// Without any retries.
TEST_P(ClientRestartTest, ServersRestartedInTurnCostNoCall) {
  // An address of our own, so that nobody else takes the port meanwhile.
  const std::string host = "127.91." + std::to_string(getpid() / 256 % 256) +
                           '.' + std::to_string(getpid() % 256);
  std::array<std::atomic<int>, 2> served{};
  std::array<FlexibleService, 2> services;
  std::array<std::unique_ptr<Server>, 2> servers;
  for (int i = 0; i != 2; ++i) {
    services[i].on_call = [&served, i](TestCall call) {
      ++served[i];
      FlexibleService::Echo(call);
    };
    servers[i] = StartAt(EndpointFromIpv4(host, 0), &services[i]);
  }
  RpcChannel channel(scheme() + servers[0]->endpoint().ToString() + "," +
                     servers[1]->endpoint().ToString());
  std::atomic<bool> done{false};
  constexpr int kCallers = 8;
  fiber::Event ended[kCallers];
  for (fiber::Event& each : ended) {
    fiber::Spawn([&] {
      while (!done) {
        TestedCall call;
        call.controller.SetTimeout(std::chrono::seconds(20));
        EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
            << call.controller.ErrorText();
      }
      each.Set();
    });
  }
  const auto wait_for_calls_to = [&](int i) {
    const int before = served[i];
    while (served[i] < before + 50) std::this_thread::yield();
  };
  for (int round = 0; round != 2; ++round) {
    for (int i = 0; i != 2; ++i) {
      wait_for_calls_to(0);
      wait_for_calls_to(1);
      const Endpoint address = servers[i]->endpoint();
      servers[i]->Stop();
      EXPECT_EQ(servers[i]->Join(), 0u);
      servers[i] = StartAt(address, &services[i]);
    }
  }
  wait_for_calls_to(0);
  wait_for_calls_to(1);
  done = true;
  for (fiber::Event& each : ended) each.Wait();
  ShutdownClientSide();
}

// The call that is under way goes on, the connection closes behind it, and
// further ones don't go there.
TEST_P(ClientRestartTest, ACallUnderWayIsWaitedFor) {
  fiber::Event began, go;
  FlexibleService service;
  service.on_call = [&](TestCall call) {
    if (call.request->body() != "wait") return FlexibleService::Echo(call);
    began.Set();
    go.Wait();
    FlexibleService::Echo(call);
  };
  const auto server = StartAt(EndpointFromIpv4("127.0.0.1", 0), &service);
  RpcChannel channel(scheme() + server->endpoint().ToString());
  TestedCall call;
  call.request.set_body("wait");
  call.controller.SetTimeout(std::chrono::seconds(20));
  call.Start(&channel);
  began.Wait();
  server->Stop();
  CallUntilRefused(&channel);
  EXPECT_FALSE(call.HasEnded());
  go.Set();
  EXPECT_EQ(call.Await(), STATUS_SUCCESS) << call.controller.ErrorText();
  ExpectPromptEnd(server.get());
}

TEST_P(ClientRestartTest, AnIdleConnectionIsClosed) {
  FlexibleService service;
  const auto server = StartAt(EndpointFromIpv4("127.0.0.1", 0), &service);
  RpcChannel channel(scheme() + server->endpoint().ToString());
  EXPECT_EQ(TestedCall().Start(&channel)->Await(), STATUS_SUCCESS);
  EXPECT_EQ(server->statistics().connections_open, 1u);
  server->Stop();
  ExpectPromptEnd(server.get());
}

// No reply comes by which the client would look at its connection again.
TEST_P(ClientRestartTest, ACancelledCallDoesNotKeepTheConnection) {
  fiber::Event began, gone;
  FlexibleService service;
  service.on_call = [&](TestCall call) {
    if (call.request->body() == "wait") {
      // It is stopped when the connection's input ends.
      const std::stop_callback stop(call.controller->GetStopToken(),
                                    [&] { gone.Set(); });
      began.Set();
      gone.Wait();
    }
    FlexibleService::Echo(call);
  };
  const auto server = StartAt(EndpointFromIpv4("127.0.0.1", 0), &service);
  RpcChannel channel(scheme() + server->endpoint().ToString());
  TestedCall call;
  call.request.set_body("wait");
  call.controller.SetTimeout(std::chrono::seconds(20));
  call.Start(&channel);
  began.Wait();
  server->Stop();
  CallUntilRefused(&channel);
  call.controller.StartCancel();
  EXPECT_NE(call.Await(), STATUS_SUCCESS);
  ExpectPromptEnd(server.get());
}

// A peer that hasn't said that it knows notices gets none.
TEST_P(ClientRestartTest, OthersAreNotTold) {
  FlexibleService service;
  const auto server = StartAt(EndpointFromIpv4("127.0.0.1", 0), &service);
  RawClient client(server->endpoint(), GetParam());
  client.Call(1, kCall, MakeRequest(""));
  EXPECT_TRUE(client.ReadReply());
  server->Stop();
  EXPECT_TRUE(client.AtEnd());
  client.Close();
  EXPECT_EQ(server->Join(), 0u);
}

INSTANTIATE_TEST_SUITE_P(, ClientRestartTest,
                         ::testing::Values("flare", "baidu-std", "trpc",
                                           "bolt"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace flare::rpc::testing

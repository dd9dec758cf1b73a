// Servers and channels in a runtime that fiber::StartRuntime() has started, not
// flare::Start().
#include <gflags/gflags.h>

#include <cstddef>
#include <memory>
#include <string>

#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/poller.h"
#include "flare/io/epoll_poller.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class PlainRuntimeTest : public ::testing::Test {
 protected:
  PlainRuntimeTest() {  // However busy the machine is.
    FLAGS_flare_rpc_client_default_rpc_timeout_ms = 20'000;
    FLAGS_flare_rpc_client_connect_timeout_ms = 20'000;
  }

 private:
  gflags::FlagSaver flags_;
};

// Without a word about pollers, and again after it has ended.
TEST_F(PlainRuntimeTest, ServesAndCalls) {
  for (int run = 0; run < 2; ++run) {
    fiber::RuntimeOptions options;
    options.concurrency = 2;
    ASSERT_TRUE(fiber::StartRuntime(options).ok());
    {
      FlexibleService service;
      Server server;
      server.AddProtocol("flare");
      server.AddService(&service);
      server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
      ASSERT_TRUE(server.Start());
      RpcChannel channel("flare://" + server.endpoint().ToString());
      const auto call = [&] {
        TestedCall call;
        EXPECT_EQ(call.Start(&channel)->Await(), STATUS_SUCCESS)
            << call.controller.ErrorText();
        EXPECT_EQ(call.response.body(), "ping");
      };
      call();         // By a thread ...
      OnFiber(call);  // ... and a fiber.
      server.Stop();
      server.Join();
    }
    ShutdownClientSide();
    fiber::TerminateRuntime();
  }
}

// Steps that such a program is likely to leave out cost it a line in the log.
TEST_F(PlainRuntimeTest, EndsWithOpenConnections) {
  RawServer server;
  fiber::RuntimeOptions options;
  options.concurrency = 2;
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  {
    RpcChannel channel(server.uri());
    TestedCall call;
    call.Start(&channel);
    auto peer = server.Accept();
    peer->Reply(peer->ReadRequest()->id, "hello");
    EXPECT_EQ(call.Await(), STATUS_SUCCESS);
  }
  fiber::TerminateRuntime();
}

TEST(PlainRuntimeDeathTest, SaysWhatIsMissing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto listen_without_poller = [] {
    fiber::RuntimeOptions options;
    options.concurrency = 1;
    options.make_poller = [](std::size_t) -> std::unique_ptr<fiber::Poller> {
      return nullptr;
    };
    ASSERT_TRUE(fiber::StartRuntime(options).ok());
    Server server;
    server.AddProtocol("flare");
    server.ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    static_cast<void>(server.Start());
  };
  EXPECT_DEATH(listen_without_poller(),
               "started without a poller.*io::EpollPoller::Factory");
}

}  // namespace
}  // namespace flare::rpc::testing

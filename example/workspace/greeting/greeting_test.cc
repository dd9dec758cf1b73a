// A service, and a test of it, in a workspace other than flare's.

#include <memory>

#include "flare/init.h"
#include "flare/rpc/server.h"
#include "greeting/greeting.flare.pb.h"
#include "gtest/gtest.h"

namespace example::greeting {
namespace {

class GreetingImpl : public SyncGreeting {
  void Greet(const Name& request, Words* response,
             flare::RpcServerController*) override {
    response->set_words("Hello, " + request.name() + ".");
  }
};

TEST(Greeting, IsByName) {
  flare::Server server;
  server.AddProtocol("flare");
  server.AddService(std::make_unique<GreetingImpl>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  ASSERT_TRUE(server.Start());
  Greeting_SyncStub stub("flare://" + server.endpoint().ToString());
  Name request;
  request.set_name("fibers");
  auto reply = stub.Greet(request);
  ASSERT_TRUE(reply) << reply.error().ToString();
  EXPECT_EQ(reply->words(), "Hello, fibers.");
  server.Stop();
  server.Join();
}

int RunTests(int, char**) { return RUN_ALL_TESTS(); }

}  // namespace
}  // namespace example::greeting

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return flare::Start(argc, argv, example::greeting::RunTests);
}

// Tests of a service, and of code that calls it, in a workspace other than
// flare's.

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "flare/base/sanitizer.h"
#include "flare/base/status.h"
#include "flare/fiber/fiber.h"
#include "flare/init.h"
#include "flare/rpc/mock/mock_calls.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/server.h"
#include "greeting/greeting.flare.pb.h"
#include "greeting/greeting_impl.h"
#include "gtest/gtest.h"

namespace example::greeting {
namespace {

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

// Code under test: it has words for a guest, whatever the service says.
std::string Welcome(const Greeting_SyncStub& greeting,
                    const std::string& guest) {
  Name request;
  request.set_name(guest);
  flare::RpcClientController controller;
  controller.SetTimeout(std::chrono::milliseconds(20));
  const auto reply = greeting.Greet(request, &controller);
  return reply ? reply->words() : "Welcome!";
}

TEST(Welcome, NeedsNoServer) {
  constexpr char kGreet[] = "example.greeting.Greeting.Greet";
  Words hello;
  hello.set_words("Hello.");
  flare::testing::MockRpcChannel channel;
  channel.AnswerOnce(kGreet, hello);
  channel.AnswerOnce(kGreet, flare::Status(1001, "hoarse"));
  channel.AnswerOnce(kGreet, flare::testing::MockAnswer(hello).After(
                                 std::chrono::seconds(30)));

  const Greeting_SyncStub greeting(&channel);
  EXPECT_EQ(Welcome(greeting, "Ann"), "Hello.");
  EXPECT_EQ(Welcome(greeting, "Bob"), "Welcome!");    // The call failed.
  EXPECT_EQ(Welcome(greeting, "Carol"), "Welcome!");  // It was too slow.

  const auto requests = channel.Requests<Name>(kGreet);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].name(), "Ann");
}

// Code that opens a channel by itself can be tested, too.
TEST(Welcome, NeedsNoServerAtAnyAddress) {
  flare::testing::MockAllChannels channels;
  channels.Answer("example.greeting.Greeting.Greet",
                  [](const Name& request, Words* response,
                     flare::RpcServerController* controller) {
                    if (request.name().empty()) {
                      return controller->SetFailed(1002, "who?");
                    }
                    response->set_words("Hi, " + request.name() + ".");
                  });
  const Greeting_SyncStub greeting("flare://greeting.example.com:80");
  EXPECT_EQ(Welcome(greeting, "Dan"), "Hi, Dan.");
  EXPECT_EQ(Welcome(greeting, ""), "Welcome!");
}

// The sanitizers' handlers of SIGSEGV are in the place of flare's.
#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)
// Writes to its low end only, which is in another fiber's stack.
[[gnu::noinline]] void UseLargeFrame() {
  char space[std::size_t{512} << 10];
  std::memset(space, 1, 100);
  asm volatile("" : : "r"(space) : "memory");
}

// By -fstack-clash-protection, in .bazelrc.
TEST(StackDeathTest, LargeFramesMeetTheGuard) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(flare::Fiber(UseLargeFrame).join(),
               "overflowed its stack of 128 KiB");
}
#endif

int RunTests(int, char**) { return RUN_ALL_TESTS(); }

}  // namespace
}  // namespace example::greeting

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return flare::Start(argc, argv, example::greeting::RunTests);
}

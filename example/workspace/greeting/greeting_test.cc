// A service, and a test of it, in a workspace other than flare's.

#include <cstddef>
#include <cstring>
#include <memory>

#include "flare/base/sanitizer.h"
#include "flare/fiber/fiber.h"
#include "flare/init.h"
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

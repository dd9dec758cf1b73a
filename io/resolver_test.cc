#include "flare/io/resolver.h"

#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/io/testing/hosts.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace {

// How long the system takes to look a name up.
std::atomic<int> look_up_ms{0};
// Set by a thread before it looks up.
flare::fiber::Event* looking_up = nullptr;
std::atomic<std::intptr_t> asked_at{0};  // On whose stack it did so.

}  // namespace

extern "C" int getaddrinfo(const char* name, const char* service,
                           const addrinfo* hints, addrinfo** result) {
  if (looking_up != nullptr) looking_up->Set();
  int here = 0;
  asked_at.store(reinterpret_cast<std::intptr_t>(&here));
  std::this_thread::sleep_for(std::chrono::milliseconds(look_up_ms.load()));
  if (name == std::string_view("both.test")) {
    return flare::io::testing::LookUp({"::1", "127.0.0.1", "::1"}, hints,
                                      result);
  }
  return flare::io::testing::SystemLookUp(name, service, hints, result);
}

namespace flare::io {
namespace {

class ResolverTest : public testing::IoTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(ResolverTest);

TEST(Resolver, LiteralsAreParsed) {
  for (const char* text : {"1.2.3.4:5", "[::1]:80", "unix:/tmp/x"}) {
    const auto endpoints = Resolve(text);
    ASSERT_TRUE(endpoints.has_value()) << endpoints.error().message();
    ASSERT_EQ(endpoints->size(), 1U);
    EXPECT_EQ(endpoints->front().ToString(), text);
  }
}

// "localhost" on many machines.
TEST(Resolver, NamesHaveEachAddressOnce) {
  const auto endpoints = Resolve("both.test:5567");
  ASSERT_TRUE(endpoints.has_value()) << endpoints.error().message();
  EXPECT_EQ(*endpoints,
            (std::vector<Endpoint>{MustParseEndpoint("[::1]:5567"),
                                   MustParseEndpoint("127.0.0.1:5567")}));
}

TEST(Resolver, TheSystemIsAsked) {
  const auto endpoints = Resolve("127.1:5567");
  ASSERT_TRUE(endpoints.has_value()) << endpoints.error().message();
  EXPECT_EQ(*endpoints,
            std::vector<Endpoint>{MustParseEndpoint("127.0.0.1:5567")});
}

TEST(Resolver, BadTextIsAnErrorThatNamesIt) {
  for (const char* text :
       {"", "localhost", "localhost:", ":80", "localhost:65536",
        "localhost:http", "localhost:-1", "a:b:1", "[::1", "[::1]", "::1",
        "two words:80", "unix:", "path/x:80"}) {
    const auto endpoints = Resolve(text);
    ASSERT_FALSE(endpoints.has_value()) << text;
    EXPECT_EQ(endpoints.error().code(), EINVAL) << text;
    EXPECT_NE(endpoints.error().message().find(std::string("'") + text + "'"),
              std::string::npos)
        << endpoints.error().message();
  }
}

TEST(Resolver, HowToWriteItIsSaid) {
  struct Case {
    const char* text;
    const char* how;
  } cases[] = {
      {"localhost", "write host:port"}, {"localhost:", "write host:port"},
      {"[::1]:", "write host:port"},    {"[::1]", "write [::1]:80"},
      {"[::1:80", "write [::1]:80"},    {"::1", "write [::1]:80"},
      {"fe80::1:80", "write [::1]:80"}};
  for (const Case& c : cases) {
    const auto endpoints = Resolve(c.text);
    ASSERT_FALSE(endpoints.has_value()) << c.text;
    EXPECT_NE(endpoints.error().message().find(c.how), std::string::npos)
        << endpoints.error();
  }
}

TEST(Resolver, NothingFollowsThePort) {
  for (const char* text : {"127.0.0.1:80/", "[::1]:80/", "host:80/path"}) {
    const auto endpoints = Resolve(text);
    ASSERT_FALSE(endpoints.has_value()) << text;
    EXPECT_NE(endpoints.error().message().find("nothing may follow the port"),
              std::string::npos)
        << endpoints.error();
  }
}

TEST(Resolver, PathsOfSocketsAreShort) {
  const auto endpoints = Resolve("unix:/" + std::string(107, 'x'));
  ASSERT_FALSE(endpoints.has_value());
  EXPECT_NE(endpoints.error().message().find("a path of 1 to 107 bytes"),
            std::string::npos)
      << endpoints.error();
}

TEST(Resolver, AddressesWithoutRouteAreLeftOut) {
  const Endpoint here = MustParseEndpoint("127.0.0.1:1");
  const Endpoint also_here = MustParseEndpoint("127.0.0.2:1");
  // Of which network?
  const Endpoint nowhere = MustParseEndpoint("[fe80::1]:1");
  const Endpoint nowhere_else = MustParseEndpoint("[fe80::2]:1");
  using Endpoints = std::vector<Endpoint>;
  EXPECT_EQ(WithRoute({nowhere, also_here, nowhere_else, here}),
            (Endpoints{also_here, here}));
  EXPECT_EQ(WithRoute({nowhere, nowhere_else}),
            (Endpoints{nowhere, nowhere_else}));
  EXPECT_EQ(WithRoute({nowhere}), Endpoints{nowhere});
  EXPECT_EQ(WithRoute({}), Endpoints{});
}

// RFC 6761: .invalid never resolves, with or without a network.
TEST(Resolver, UnknownHostIsAnError) {
  const auto endpoints = Resolve("no-such-host.invalid:80");
  ASSERT_FALSE(endpoints.has_value());
  EXPECT_NE(endpoints.error().code(), 0);
  EXPECT_NE(endpoints.error().message().find("no-such-host.invalid:80"),
            std::string::npos);
}

TEST_P(ResolverTest, SuspendsFibersOnly) {
  constexpr int kFibers = 8;
  fiber::Latch done(kFibers);
  for (int i = 0; i < kFibers; ++i) {
    fiber::Spawn([&, i] {
      const auto good = Resolve("127.1:" + std::to_string(i + 1));
      EXPECT_TRUE(good.has_value());
      if (good) {
        EXPECT_EQ(good->front().port(), i + 1);
      }
      done.count_down();
    });
  }
  EXPECT_TRUE(done.wait_for(testing::kLimit));
}

// A fiber's stack may be too small for the system's resolver; on its worker or
// in a region. It isn't asked on it.
TEST_P(ResolverTest, TheSystemIsNotAskedOnStacksOfFibers) {
  const auto resolve = [] {
    int here = 0;
    EXPECT_TRUE(Resolve("127.1:1").has_value());
    const std::ptrdiff_t away =
        asked_at.load() - reinterpret_cast<std::intptr_t>(&here);
    EXPECT_GT(std::abs(away), 256 << 10);
  };
  Fiber(resolve).join();
  Fiber([&] { fiber::RunBlocking(resolve); }).join();
}

// A look-up in the meantime writes its result to the stack of a fiber.
TEST_P(ResolverTest, TheEndOfTheRuntimeWaitsForLookUps) {
  fiber::Event begun;
  looking_up = &begun;
  look_up_ms.store(200);
  std::atomic<bool> ended{false};
  fiber::Spawn([&] {
    EXPECT_TRUE(Resolve("127.1:1").has_value());
    ended.store(true);
  });
  begun.Wait();
  fiber::TerminateRuntime();
  EXPECT_TRUE(ended.load());
  look_up_ms.store(0);
  looking_up = nullptr;
}

}  // namespace
}  // namespace flare::io

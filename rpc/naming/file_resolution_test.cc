#include "flare/rpc/naming/file_resolution.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using namespace std::chrono_literals;

// "address*weight" of each server.
std::vector<std::string> Weighted(NameResolution* resolution) {
  std::vector<std::string> servers;
  for (const Peer& peer : resolution->Peers()) {
    servers.push_back(peer.endpoint.ToString() + "*" +
                      std::to_string(peer.weight));
  }
  std::sort(servers.begin(), servers.end());
  return servers;
}

class FileResolutionTest : public RawServerTest {
 protected:
  void SetUp() override {
    RawServerTest::SetUp();
    OpenClientSide();  // Without channels, refreshes begin only after this.
    std::remove(path_.c_str());
  }
  void TearDown() override {
    RawServerTest::TearDown();
    std::remove(path_.c_str());
  }

  // At once, as careful writers do.
  void Write(const std::string& text) {
    const std::string other = path_ + ".new";
    std::ofstream(other) << text;
    ASSERT_EQ(std::rename(other.c_str(), path_.c_str()), 0);
  }

  std::shared_ptr<NameResolution> Open() {
    auto resolution = ResolveName("file", path_, nullptr, 1ms);
    EXPECT_TRUE(resolution) << resolution.error().message();
    return *resolution;
  }

  // Asks for the version, as calls do, until `done`.
  template <class F>
  static bool Eventually(NameResolution* resolution, F done) {
    return fiber::testing::Eventually([&] {
      (void)resolution->Version();
      return done();
    });
  }
  static bool EventuallyFails(NameResolution* resolution,
                              std::string_view text) {
    return Eventually(resolution, [&] {
      return resolution->Failure().message().find(text) != std::string::npos;
    });
  }

  const std::string path_ = ::testing::TempDir() + "/file_resolution_test." +
                            std::to_string(getpid());
};

TEST_F(FileResolutionTest, ReadsLinesWeightsAndComments) {
  Write(
      "# The servers of the north.\n"
      "10.0.0.1:5567\n"
      "\n"
      "  [::1]:80 ; weight=3  # The large one.\r\n"
      "unix:/run/a.sock, 10.0.0.2:5567;weight=0\n"
      "10.0.0.1:5567\n");
  const auto resolution = Open();
  EXPECT_EQ(Weighted(resolution.get()),
            (std::vector<std::string>{"10.0.0.1:5567*1", "10.0.0.2:5567*0",
                                      "[::1]:80*3", "unix:/run/a.sock*1"}));
  EXPECT_FALSE(resolution->IsStatic());
  EXPECT_TRUE(resolution->Failure().ok());
}

TEST_F(FileResolutionTest, IsReadAgainWhenItChanges) {
  Write("10.0.0.1:1\n10.0.0.2:1\n");
  const auto resolution = Open();
  const std::uint64_t version = resolution->Version();
  Write("10.0.0.1:1;weight=2\n10.0.0.3:1\n");
  ASSERT_TRUE(Eventually(resolution.get(),
                         [&] { return resolution->Version() > version; }));
  EXPECT_EQ(Weighted(resolution.get()),
            (std::vector<std::string>{"10.0.0.1:1*2", "10.0.0.3:1*1"}));
}

TEST_F(FileResolutionTest, ListOfBeforeStaysWhileTheFileIsWrong) {
  Write("10.0.0.1:1\n");
  const auto resolution = Open();
  NameResolution* const r = resolution.get();
  const std::uint64_t version = r->Version();
  const std::vector<std::string> before = {"10.0.0.1:1*1"};
  Write("10.0.0.7:1\n\n10.0.0.8:1;weight=much\n");
  ASSERT_TRUE(
      EventuallyFails(r, path_ + ":3: server \"10.0.0.8:1;weight=much\""));
  EXPECT_EQ(Weighted(r), before);
  Write("10.0.0.7:1\n10.0.0.8:0\n");
  ASSERT_TRUE(EventuallyFails(r, ":2: server \"10.0.0.8:0\" has port 0"));
  Write("10.0.0.7\n");
  ASSERT_TRUE(EventuallyFails(r, ":1: server \"10.0.0.7\" is no address"));
  Write("# Nothing yet.\n");
  ASSERT_TRUE(EventuallyFails(r, path_ + " names no server"));
  std::remove(path_.c_str());
  ASSERT_TRUE(EventuallyFails(r, "No such file"));
  EXPECT_EQ(Weighted(r), before);
  EXPECT_EQ(r->Version(), version);
  Write("# Nothing yet.\n");  // As it was when it was there last.
  ASSERT_TRUE(EventuallyFails(r, path_ + " names no server"));
  Write("10.0.0.1:1\n");
  ASSERT_TRUE(Eventually(r, [&] { return r->Failure().ok(); }));
  EXPECT_EQ(r->Version(), version);
  EXPECT_EQ(Weighted(r), before);
}

TEST_F(FileResolutionTest, HostNamesAreLookedUpAgain) {
  struct Hosts {
    ThreadMutex mutex;
    std::map<std::string, std::string> known FLARE_GUARDED_BY(mutex);
    void Set(const std::string& name, const std::string& address) {
      ScopedLock guard(mutex);
      known[name] = address;
    }
  };
  const auto hosts = std::make_shared<Hosts>();
  SetHostLookupForTesting(
      [hosts](std::string_view name)
          -> Expected<std::vector<Endpoint>, flare::Status> {
        ScopedLock guard(hosts->mutex);
        const auto found = hosts->known.find(std::string(name));
        if (found == hosts->known.end()) return flare::Status(2, "no host");
        return std::vector{MustParseEndpoint(found->second)};
      });
  hosts->Set("a.test:1", "10.0.0.1:1");
  Write("a.test:1\nb.test:1\n");
  const auto resolution = Open();
  NameResolution* const r = resolution.get();
  EXPECT_EQ(Weighted(r), std::vector<std::string>{"10.0.0.1:1*1"});
  EXPECT_NE(r->Failure().message().find("server \"b.test:1\""),
            std::string::npos)
      << r->Failure().message();
  hosts->Set("a.test:1", "10.0.0.2:1");
  hosts->Set("b.test:1", "10.0.0.3:1");
  EXPECT_TRUE(Eventually(r, [&] {
    return Weighted(r) ==
           std::vector<std::string>{"10.0.0.2:1*1", "10.0.0.3:1*1"};
  }));
  // Another name.
  hosts->Set("c.test:1", "10.0.0.4:1");
  Write("b.test:1;weight=5\nc.test:1\n");
  EXPECT_TRUE(Eventually(r, [&] {
    return Weighted(r) ==
           std::vector<std::string>{"10.0.0.3:1*5", "10.0.0.4:1*1"};
  }));
  SetHostLookupForTesting(nullptr);
}

TEST_F(FileResolutionTest, ChannelOpensBeforeTheFileIsThere) {
  RpcChannel::Options options;
  options.override_nslb = "file+rr";
  options.name_update_interval = 1ms;
  RpcChannel channel;
  ASSERT_TRUE(channel.Open("flare://" + path_, options))
      << channel.status().message();
  std::string text;
  EXPECT_EQ(CallOnce(&channel, &text), STATUS_NO_PEER);
  EXPECT_NE(text.find("can't read '" + path_ + "'"), std::string::npos) << text;
  RawServer server;
  Write(server.endpoint().ToString() + "\n");
  std::unique_ptr<TestedCall> call;
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    if (call == nullptr || call->HasEnded()) {
      if (call != nullptr) call->Await();  // Before it is destroyed.
      call = std::make_unique<TestedCall>();
      call->Start(&channel);
    }
    return server.HasVisitor();
  }));
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(call->Await(), STATUS_SUCCESS) << call->controller.ErrorText();
}

}  // namespace
}  // namespace flare::rpc::testing

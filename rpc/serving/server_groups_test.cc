// Servers that are given scheduling groups of their own: their calls run there
// and nowhere else, whatever happens in the others.
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

// Four groups of one worker: 0 and 1 are "front", 2 is "batch".
class ServerGroupsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fiber::RuntimeOptions options;
    options.concurrency = 4;
    options.group_size = 1;
    options.group_sets = "front:0,1;batch:2";
    options.work_stealing_ratio = 1;
    options.make_poller = io::EpollPoller::Factory();
    const flare::Status started = fiber::StartRuntime(options);
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  void TearDown() override {
    servers_.clear();
    fiber::TerminateRuntime();
  }

  Server* Start(const std::string& groups, FlexibleService* service,
                const Endpoint& address = EndpointFromIpv4("127.0.0.1", 0)) {
    Server::Options options;
    options.scheduling_groups = groups;
    servers_.push_back(std::make_unique<Server>(options));
    Server* const server = servers_.back().get();
    server->AddProtocol("flare");
    server->AddService(service);
    server->ListenOn(address);
    return server->Start() ? server : nullptr;
  }

  std::vector<std::unique_ptr<Server>> servers_;
};

// Notes on which groups its calls run.
class NotingService : public FlexibleService {
 public:
  NotingService() {
    on_call = [this](TestCall call) {
      {
        std::scoped_lock guard(lock_);
        groups_.insert(fiber::GetCurrentSchedulingGroupIndex());
      }
      Echo(call);
    };
  }
  std::set<std::size_t> groups() {
    std::scoped_lock guard(lock_);
    return groups_;
  }

 private:
  Spinlock lock_;
  std::set<std::size_t> groups_;
};

void CallOnManyConnections(const Endpoint& server) {
  for (int connection = 0; connection < 40; ++connection) {
    RawClient client(server);
    for (int i = 1; i <= 20; ++i) {
      client.Call(i, kCall, MakeRequest("hello"));
    }
    for (int i = 1; i <= 20; ++i) ASSERT_TRUE(client.ReadReply());
  }
}

TEST_F(ServerGroupsTest, CallsStayInTheirSet) {
  NotingService front;
  NotingService batch;
  Server* const front_server = Start("front", &front);
  Server* const batch_server = Start("batch", &batch);
  ASSERT_NE(front_server, nullptr);
  ASSERT_NE(batch_server, nullptr);
  CallOnManyConnections(front_server->endpoint());
  CallOnManyConnections(batch_server->endpoint());
  for (const std::size_t group : front.groups()) EXPECT_LE(group, 1U);
  EXPECT_EQ(batch.groups(), std::set<std::size_t>{2});
}

// A Unix socket is one socket for all groups, and must be put in the right one.
TEST_F(ServerGroupsTest, UnixSocketsToo) {
  NotingService batch;
  // Bazel's folders are too deep for a socket's address.
  const std::string path =
      "/tmp/server_groups_test." + std::to_string(getpid());
  Server* const server = Start("batch", &batch, EndpointFromUnix(path));
  ASSERT_NE(server, nullptr);
  CallOnManyConnections(server->endpoint());
  EXPECT_EQ(batch.groups(), std::set<std::size_t>{2});
}

// All workers of one set are held; the other set's server answers.
TEST_F(ServerGroupsTest, OneServiceCannotStarveAnother) {
  std::atomic<bool> release{false};
  constexpr int kHeld = 8;
  FlexibleService hog;
  hog.on_call = [&](TestCall call) {
    while (!release) std::this_thread::yield();
    FlexibleService::Echo(call);
  };
  FlexibleService front;
  Server* const hog_server = Start("batch", &hog);
  Server* const front_server = Start("front", &front);
  ASSERT_NE(hog_server, nullptr);
  ASSERT_NE(front_server, nullptr);
  RawClient hogging(hog_server->endpoint());
  for (int i = 1; i <= kHeld; ++i) hogging.Call(i, kCall, MakeRequest("hog"));
  CallOnManyConnections(front_server->endpoint());
  release = true;
  for (int i = 1; i <= kHeld; ++i) ASSERT_TRUE(hogging.ReadReply());
}

TEST_F(ServerGroupsTest, AnUnknownSetIsNamed) {
  FlexibleService service;
  EXPECT_EQ(Start("nightly", &service), nullptr);
  const std::string& why = servers_.back()->error().message();
  EXPECT_NE(why.find("nightly"), std::string::npos) << why;
  EXPECT_NE(why.find("front"), std::string::npos) << why;
}

}  // namespace
}  // namespace flare::rpc::testing

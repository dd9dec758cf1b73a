// Acceptors of Unix sockets: whose file is at the path, and whose it may
// replace. Behaviour that all kinds of addresses share is tested in
// acceptor_test.cc.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/io/acceptor.h"
#include "flare/io/testing/acceptor_fixture.h"
#include "flare/io/testing/forked_child.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::PlainConnect;
using testing::Receive;

class UnixAcceptorTest : public testing::AcceptorTest {
 protected:
  // Below a directory that is removed at the end.
  std::string TemporaryPath() {
    char pattern[] = "/tmp/unix_acceptor_test.XXXXXX";
    EXPECT_NE(::mkdtemp(pattern), nullptr);
    directory_ = pattern;
    return directory_ + "/socket";
  }

  void TearDown() override {
    testing::AcceptorTest::TearDown();
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  std::string directory_;
};
FLARE_INSTANTIATE_RUNTIME_TEST(UnixAcceptorTest);

TEST_P(UnixAcceptorTest, Accepts) {
  const std::string path = TemporaryPath();
  {
    auto acceptor = MustListen(EndpointFromUnix(path), greeter_.Callback());
    const UniqueFd client = PlainConnect(acceptor->local_endpoint());
    ASSERT_TRUE(client) << std::strerror(errno);
    EXPECT_EQ(Receive(client.get(), 2), "hi");

    const auto second =
        Acceptor::Listen(EndpointFromUnix(path), {}, greeter_.Callback());
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code(), EADDRINUSE);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));  // Removed at the end.
}

// A child of the server's process doesn't remove the file.
TEST_P(UnixAcceptorTest, ForkedChildrenLeaveTheFile) {
  const std::string path = TemporaryPath();
  auto acceptor = MustListen(EndpointFromUnix(path), greeter_.Callback());
  testing::ExpectAbortInChild([&] { acceptor.reset(); });
  EXPECT_TRUE(std::filesystem::exists(path));
  const UniqueFd client = PlainConnect(acceptor->local_endpoint());
  EXPECT_EQ(Receive(client.get(), 2), "hi");
}

TEST_P(UnixAcceptorTest, ForkedChildrenMayDestroyWhatWasStopped) {
  auto acceptor =
      MustListen(EndpointFromUnix(TemporaryPath()), greeter_.Callback());
  acceptor->Stop();
  acceptor->Join();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    acceptor.reset();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
}

// Leaves the file of a server that has died.
void LeaveSocketFile(const std::string& path) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage;
  const socklen_t length = EndpointFromUnix(path).ToSockaddr(&storage);
  ASSERT_EQ(
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length), 0);
}

TEST_P(UnixAcceptorTest, StaleSocketIsReplaced) {
  const std::string path = TemporaryPath();
  LeaveSocketFile(path);
  ASSERT_TRUE(std::filesystem::exists(path));
  auto acceptor = MustListen(EndpointFromUnix(path), greeter_.Callback());
  const UniqueFd client = PlainConnect(acceptor->local_endpoint());
  EXPECT_EQ(Receive(client.get(), 2), "hi");
}

TEST_P(UnixAcceptorTest, OfManyAtOnceOneListens) {
  const std::string path = TemporaryPath();
  for (int round = 0; round != 200; ++round) {
    SCOPED_TRACE(round);
    if (round % 2 == 0) LeaveSocketFile(path);
    constexpr int kServers = 3;
    std::vector<std::unique_ptr<Acceptor>> acceptors(kServers);
    std::atomic<int> missing{kServers};
    std::vector<std::thread> threads;
    threads.reserve(kServers);
    for (auto& acceptor : acceptors) {
      threads.emplace_back([&] {
        missing.fetch_sub(1);
        while (missing.load() != 0) std::this_thread::yield();
        auto listening =
            Acceptor::Listen(EndpointFromUnix(path), {}, greeter_.Callback());
        if (listening) acceptor = *std::move(listening);
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(std::count(acceptors.begin(), acceptors.end(), nullptr),
              kServers - 1);
    EXPECT_TRUE(PlainConnect(EndpointFromUnix(path)));
  }
}

// Such as systemd-tmpfiles, which leaves alone folders that others have locked.
TEST_P(UnixAcceptorTest, FoldersThatOthersLockAreUsed) {
  const std::string path = TemporaryPath();
  const UniqueFd folder(
      ::open(std::filesystem::path(path).parent_path().c_str(),
             O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(folder.get(), LOCK_EX | LOCK_NB), 0);
  LeaveSocketFile(path);
  auto acceptor = MustListen(EndpointFromUnix(path), greeter_.Callback());
  EXPECT_TRUE(PlainConnect(EndpointFromUnix(path)));
}

TEST_P(UnixAcceptorTest, OtherFilesAreNotReplaced) {
  const std::string path = TemporaryPath();
  std::fclose(std::fopen(path.c_str(), "w"));
  for (const std::string& other : {path, directory_}) {
    const auto acceptor =
        Acceptor::Listen(EndpointFromUnix(other), {}, greeter_.Callback());
    ASSERT_FALSE(acceptor.has_value());
    EXPECT_EQ(acceptor.error().code(), EADDRINUSE);
    EXPECT_NE(acceptor.error().message().find("is no socket"),
              std::string::npos)
        << acceptor.error();
  }
  EXPECT_TRUE(std::filesystem::is_regular_file(path));
}

// An acceptor that waits for the path gets it while the end is still under way,
// and keeps it beyond that.
TEST_P(UnixAcceptorTest, SocketFileIsHandedOver) {
  const Endpoint address = EndpointFromUnix(TemporaryPath());
  auto acceptor = MustListen(address, greeter_.Callback());
  for (int i = 0; i < 20; ++i) {
    std::thread ending([&] { acceptor.reset(); });
    auto successor = Acceptor::Listen(address, {}, greeter_.Callback());
    while (!successor) {
      successor = Acceptor::Listen(address, {}, greeter_.Callback());
    }
    ending.join();
    const UniqueFd client = PlainConnect(address);
    ASSERT_TRUE(client);
    EXPECT_EQ(Receive(client.get(), 2), "hi");
    acceptor = *std::move(successor);
  }
  acceptor->Stop();
  EXPECT_FALSE(std::filesystem::exists(address.path()));
}

// The file of a successor that took the path over is left alone.
TEST_P(UnixAcceptorTest, SuccessorsSocketFileSurvives) {
  const std::string path = TemporaryPath();
  auto acceptor = MustListen(EndpointFromUnix(path), greeter_.Callback());
  std::filesystem::rename(path, path + ".old");
  auto successor = MustListen(EndpointFromUnix(path), greeter_.Callback());
  acceptor.reset();
  EXPECT_TRUE(std::filesystem::exists(path));
  const UniqueFd client = PlainConnect(EndpointFromUnix(path));
  EXPECT_EQ(Receive(client.get(), 2), "hi");
}

// While nothing can be accepted, as many connect as the backlog has room for.
TEST_P(UnixAcceptorTest, BacklogCanBeChanged) {
  const Endpoint address = EndpointFromUnix(TemporaryPath());
  auto acceptor =
      Acceptor::Listen(address, {.backlog = 1}, greeter_.Callback());
  ASSERT_TRUE(acceptor.has_value()) << acceptor.error().message();
  constexpr int kClients = 6;
  std::vector<UniqueFd> clients;
  clients.reserve(kClients);
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back(
        ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  }
  sockaddr_storage storage;
  const socklen_t length = address.ToSockaddr(&storage);
  std::size_t connected = 0;
  const auto connect = [&] {
    while (connected < clients.size() &&
           ::connect(clients[connected].get(),
                     reinterpret_cast<sockaddr*>(&storage), length) == 0) {
      ++connected;
    }
  };
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  connect();
  EXPECT_EQ(connected, 2U);  // The kernel allows one more.
  (*acceptor)->SetBacklog(10);
  connect();
  EXPECT_EQ(connected, 6U);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const UniqueFd& client : clients) {
    ASSERT_EQ(::fcntl(client.get(), F_SETFL, 0), 0);
    EXPECT_EQ(Receive(client.get(), 2), "hi");
  }
}

}  // namespace
}  // namespace flare::io

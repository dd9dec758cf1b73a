// Acceptors on sockets that listen already, and those that leave theirs to
// another process, represented by a copy of the descriptor here.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/io/acceptor.h"
#include "flare/io/socket_options.h"
#include "flare/io/testing/acceptor_fixture.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::Greeter;
using testing::PlainConnect;
using testing::Receive;

UniqueFd MustOpen(const Endpoint& address) {
  auto socket = OpenListeningSocket(address, /*backlog=*/16);
  EXPECT_TRUE(socket.has_value()) << socket.error().message();
  return *std::move(socket);
}

std::vector<UniqueFd> CopyOf(const std::vector<int>& sockets) {
  std::vector<UniqueFd> copies;
  for (const int fd : sockets) {
    copies.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  return copies;
}

class AdoptedAcceptorTest : public testing::AcceptorTest {
 protected:
  std::unique_ptr<Acceptor> MustAdopt(std::vector<UniqueFd> sockets) {
    auto acceptor =
        Acceptor::Adopt(std::move(sockets), {}, greeter_.Callback());
    EXPECT_TRUE(acceptor.has_value()) << acceptor.error().message();
    return *std::move(acceptor);
  }

  Status ErrorOf(std::vector<UniqueFd> sockets) {
    auto acceptor =
        Acceptor::Adopt(std::move(sockets), {}, greeter_.Callback());
    return acceptor ? Status() : acceptor.error();
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(AdoptedAcceptorTest);

TEST_P(AdoptedAcceptorTest, AcceptsWhatWaitedAndWhatComes) {
  std::vector<UniqueFd> sockets;
  sockets.push_back(MustOpen(MustParseEndpoint("127.0.0.1:0")));
  // As a socket is that another program has opened.
  ASSERT_EQ(::fcntl(sockets[0].get(), F_SETFL, 0), 0);
  ASSERT_EQ(::fcntl(sockets[0].get(), F_SETFD, 0), 0);
  const int fd = sockets[0].get();
  const Endpoint address = GetLocalEndpoint(fd);
  const UniqueFd early = PlainConnect(address);
  auto acceptor = MustAdopt(std::move(sockets));
  EXPECT_EQ(acceptor->local_endpoint(), address);
  EXPECT_EQ(acceptor->sockets(), std::vector<int>{fd});
  EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(Receive(early.get(), 2), "hi");
  const UniqueFd late = PlainConnect(address);
  EXPECT_EQ(Receive(late.get(), 2), "hi");
}

// Even if they were opened without that.
TEST_P(AdoptedAcceptorTest, AcceptedSocketsAskSilentPeers) {
  std::vector<UniqueFd> sockets;
  sockets.push_back(MustOpen(MustParseEndpoint("127.0.0.1:0")));
  auto acceptor = Acceptor::Adopt(
      std::move(sockets), {.keep_alive = std::chrono::seconds(30)},
      [&](UniqueFd fd, const Endpoint&, std::size_t) {
        EXPECT_EQ(testing::KeepAliveOf(fd.get()), (std::pair(30, 5)));
        testing::SendAll(fd.get(), "hi");
      });
  ASSERT_TRUE(acceptor.has_value());
  const UniqueFd client = PlainConnect((*acceptor)->local_endpoint());
  EXPECT_EQ(Receive(client.get(), 2), "hi");
}

// With several groups there is a socket for each.
TEST_P(AdoptedAcceptorTest, TakesOverAllSocketsOfAnother) {
  Greeter older_greeter;
  auto older =
      MustListen(MustParseEndpoint("127.0.0.1:0"), older_greeter.Callback());
  const Endpoint address = older->local_endpoint();
  auto acceptor = MustAdopt(CopyOf(older->sockets()));
  older->LeaveSockets();
  older.reset();
  const std::size_t before = older_greeter.count();
  for (int i = 0; i < 20; ++i) {
    const UniqueFd client = PlainConnect(address);
    ASSERT_TRUE(client);
    EXPECT_EQ(Receive(client.get(), 2), "hi");
  }
  EXPECT_EQ(greeter_.count(), 20U);
  EXPECT_EQ(older_greeter.count(), before);
}

TEST_P(AdoptedAcceptorTest, LeavesTheFileOfAUnixSocket) {
  char pattern[] = "/tmp/adopted_acceptor_test.XXXXXX";
  ASSERT_NE(::mkdtemp(pattern), nullptr);
  const std::string folder = pattern;
  const Endpoint address = EndpointFromUnix(folder + "/socket");
  auto older = MustListen(address, greeter_.Callback());
  std::vector<UniqueFd> copies = CopyOf(older->sockets());
  older->LeaveSockets();
  older.reset();
  const UniqueFd early = PlainConnect(address);
  ASSERT_TRUE(early);
  auto acceptor = MustAdopt(std::move(copies));
  EXPECT_EQ(Receive(early.get(), 2), "hi");
  acceptor.reset();
  EXPECT_FALSE(std::filesystem::exists(folder + "/socket"));
  std::filesystem::remove_all(folder);
}

TEST_P(AdoptedAcceptorTest, RefusesOthers) {
  EXPECT_EQ(ErrorOf({}).code(), EINVAL);

  std::vector<UniqueFd> sockets;
  sockets.push_back(CreateStreamSocket(AF_INET).value());
  Status error = ErrorOf(std::move(sockets));
  EXPECT_EQ(error.code(), EINVAL);
  EXPECT_NE(error.message().find("is no stream socket that listens"),
            std::string::npos)
      << error;

  sockets.clear();
  sockets.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(ErrorOf(std::move(sockets)).code(), ENOTSOCK);

  sockets.clear();
  sockets.push_back(MustOpen(MustParseEndpoint("127.0.0.1:0")));
  sockets.push_back(MustOpen(MustParseEndpoint("127.0.0.1:0")));
  const std::string second = GetLocalEndpoint(sockets[1].get()).ToString();
  error = ErrorOf(std::move(sockets));
  EXPECT_EQ(error.code(), EINVAL);
  EXPECT_NE(error.message().find(second), std::string::npos) << error;
}

}  // namespace
}  // namespace flare::io

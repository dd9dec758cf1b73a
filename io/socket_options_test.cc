#include "flare/io/socket_options.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace flare::io {
namespace {

using std::chrono::seconds;

int GetInt(int fd, int level, int name) {
  int value = -1;
  socklen_t length = sizeof(value);
  EXPECT_EQ(::getsockopt(fd, level, name, &value, &length), 0);
  return value;
}

UniqueFd MustCreate(int family) {
  auto fd = CreateStreamSocket(family);
  EXPECT_TRUE(fd.has_value());
  return std::move(*fd);
}

TEST(SocketOptions, SocketsDontBlockNorLeakIntoChildren) {
  const UniqueFd fd = MustCreate(AF_INET);
  EXPECT_NE(::fcntl(fd.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(GetInt(fd.get(), SOL_SOCKET, SO_TYPE), SOCK_STREAM);
}

TEST(SocketOptions, UnknownFamilyIsAnError) {
  const auto fd = CreateStreamSocket(AF_UNSPEC);
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code(), EAFNOSUPPORT);
  EXPECT_NE(fd.error().message().find("create a socket"), std::string::npos);
}

TEST(SocketOptions, TakeEffect) {
  const UniqueFd fd = MustCreate(AF_INET);
  EXPECT_TRUE(SetTcpNoDelay(fd.get()));
  EXPECT_EQ(GetInt(fd.get(), IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_TRUE(SetTcpUserTimeout(fd.get(), 12345));
  EXPECT_EQ(GetInt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 12345);
  EXPECT_TRUE(SetKeepAlive(fd.get(), seconds(7), seconds(3)));
  EXPECT_EQ(GetInt(fd.get(), SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(GetInt(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE), 7);
  EXPECT_EQ(GetInt(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL), 3);
  EXPECT_EQ(GetInt(fd.get(), IPPROTO_TCP, TCP_KEEPCNT), 3);
  EXPECT_TRUE(SetReuseAddress(fd.get()));
  EXPECT_EQ(GetInt(fd.get(), SOL_SOCKET, SO_REUSEADDR), 1);
  EXPECT_TRUE(SetReusePort(fd.get()));
  EXPECT_EQ(GetInt(fd.get(), SOL_SOCKET, SO_REUSEPORT), 1);
  EXPECT_TRUE(SetUrgentInline(fd.get()));
  EXPECT_EQ(GetInt(fd.get(), SOL_SOCKET, SO_OOBINLINE), 1);
  EXPECT_TRUE(SetSendBuffer(fd.get(), 8192));
  EXPECT_EQ(GetInt(fd.get(), SOL_SOCKET, SO_SNDBUF), 16384);
  EXPECT_TRUE(SetReceiveBuffer(fd.get(), 8192));
  EXPECT_EQ(GetInt(fd.get(), SOL_SOCKET, SO_RCVBUF), 16384);
}

TEST(SocketOptions, FailuresAreReported) {
  const UniqueFd fd = MustCreate(AF_UNIX);
  EXPECT_FALSE(SetTcpNoDelay(fd.get()));
  EXPECT_FALSE(SetTcpUserTimeout(fd.get(), 1000));
  EXPECT_FALSE(SetKeepAlive(fd.get(), seconds(7), seconds(3)));
  EXPECT_FALSE(SetReuseAddress(-1));
  EXPECT_EQ(TakeSocketError(-1), EBADF);
}

TEST(SocketOptions, EndpointsOfAConnection) {
  const UniqueFd listener = MustCreate(AF_INET);
  EXPECT_TRUE(GetRemoteEndpoint(listener.get()).empty());
  sockaddr_storage storage;
  socklen_t length = EndpointFromIpv4("127.0.0.1", 0).ToSockaddr(&storage);
  ASSERT_EQ(
      ::bind(listener.get(), reinterpret_cast<sockaddr*>(&storage), length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const Endpoint address = GetLocalEndpoint(listener.get());
  EXPECT_EQ(address.host(), "127.0.0.1");
  EXPECT_NE(address.port(), 0);

  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  length = address.ToSockaddr(&storage);
  ASSERT_EQ(
      ::connect(client.get(), reinterpret_cast<sockaddr*>(&storage), length),
      0);
  const UniqueFd server(::accept(listener.get(), nullptr, nullptr));
  ASSERT_TRUE(server);
  EXPECT_EQ(GetRemoteEndpoint(client.get()), address);
  EXPECT_EQ(GetLocalEndpoint(client.get()), GetRemoteEndpoint(server.get()));
  EXPECT_TRUE(GetLocalEndpoint(-1).empty());
}

TEST(SocketOptions, SocketErrorIsTakenOnce) {
  // A port that was just free: nobody listens there.
  const UniqueFd bound = MustCreate(AF_INET);
  sockaddr_storage storage;
  socklen_t length = EndpointFromIpv4("127.0.0.1", 0).ToSockaddr(&storage);
  ASSERT_EQ(::bind(bound.get(), reinterpret_cast<sockaddr*>(&storage), length),
            0);
  length = GetLocalEndpoint(bound.get()).ToSockaddr(&storage);
  const UniqueFd client = MustCreate(AF_INET);
  EXPECT_EQ(TakeSocketError(client.get()), 0);
  const int result =
      ::connect(client.get(), reinterpret_cast<sockaddr*>(&storage), length);
  ASSERT_EQ(result, -1);
  if (errno == EINPROGRESS) {  // Loopback may also refuse at once.
    EXPECT_EQ(TakeSocketError(client.get()), ECONNREFUSED);
  }
  EXPECT_EQ(TakeSocketError(client.get()), 0);
}

}  // namespace
}  // namespace flare::io

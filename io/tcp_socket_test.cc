#include "flare/io/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/task_group.h"
#include "flare/io/socket_options.h"
#include "flare/io/tcp_listener.h"
#include "flare/io/testing/forked_child.h"
#include "flare/io/testing/loopback.h"
#include "flare/io/testing/socket_waiters.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using std::chrono::milliseconds;

class TcpSocketTest : public testing::IoTest {
 protected:
  static void ExpectOk(const Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }

  static TcpListener MustListen(
      const Endpoint& address = MustParseEndpoint("127.0.0.1:0"),
      const TcpListener::Options& options = {}) {
    auto listener = TcpListener::Listen(address, options);
    EXPECT_TRUE(listener.has_value()) << listener.error().message();
    return *std::move(listener);
  }

  static TcpSocket MustConnect(const Endpoint& peer,
                               const TcpSocket::Options& options = {}) {
    auto socket = TcpSocket::Connect(peer, options, testing::kLimit);
    EXPECT_TRUE(socket.has_value()) << socket.error().message();
    return *std::move(socket);
  }

  static TcpSocket MustAccept(TcpListener* listener) {
    auto socket = listener->Accept(testing::kLimit);
    EXPECT_TRUE(socket.has_value()) << socket.error().message();
    return *std::move(socket);
  }

  static std::string MustRead(TcpSocket* socket, std::size_t size) {
    std::string bytes(size, '\0');
    ExpectOk(socket->ReadExactly(bytes, testing::kLimit));
    return bytes;
  }

  // A name in the abstract namespace that no other test has.
  static Endpoint UnixName(const char* test) {
    return EndpointFromUnix("@flare-" + std::to_string(::getpid()) + test);
  }

  struct Pair {
    TcpSocket ours;
    TcpSocket peers;
  };

  static Pair Connected(const TcpSocket::Options& options = {}) {
    TcpListener listener = MustListen();
    TcpSocket ours = MustConnect(listener.local_endpoint(), options);
    return {std::move(ours), MustAccept(&listener)};
  }

  // Fills the kernel's buffers, as the peer reads nothing.
  static std::size_t Fill(TcpSocket* socket) {
    const std::string much(1 << 16, 'x');
    std::size_t sum = 0;
    for (;;) {
      const auto some = socket->WriteSome(much, milliseconds(0));
      if (!some) return sum;
      sum += *some;
    }
  }

  template <class F>
  static void OnBoth(F f) {
    f();
    Fiber(f).join();
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(TcpSocketTest);

TEST_P(TcpSocketTest, CarriesBytesBothWaysAndTheirEnds) {
  OnBoth([] {
    TcpListener listener = MustListen();
    TcpSocket client = MustConnect(listener.local_endpoint());
    TcpSocket server = MustAccept(&listener);
    EXPECT_EQ(server.remote_endpoint(), client.local_endpoint());
    EXPECT_EQ(client.remote_endpoint(), listener.local_endpoint());
    ExpectOk(client.Write("question"));
    ExpectOk(client.ShutdownWrite());
    EXPECT_EQ(MustRead(&server, 8), "question");
    std::array<char, 8> bytes;
    EXPECT_EQ(server.Read(bytes, testing::kLimit).value_or(9), 0U);
    EXPECT_EQ(server.Read(bytes, testing::kLimit).value_or(9), 0U);
    ExpectOk(server.Write("answer"));
    EXPECT_EQ(MustRead(&client, 6), "answer");
    server.Close();
    EXPECT_EQ(client.Read(bytes, testing::kLimit).value_or(9), 0U);
    EXPECT_EQ(server.Read(bytes).error().code(), EBADF);
    EXPECT_EQ(server.Write("late").code(), EBADF);
    EXPECT_EQ(server.ShutdownWrite().code(), EBADF);
  });
}

TEST_P(TcpSocketTest, SmallPiecesAreSentAtOnce) {
  Pair pair = Connected();
  for (const TcpSocket* const socket : {&pair.ours, &pair.peers}) {
    int value = 0;
    socklen_t length = sizeof(value);
    EXPECT_EQ(
        ::getsockopt(socket->fd(), IPPROTO_TCP, TCP_NODELAY, &value, &length),
        0);
    EXPECT_NE(value, 0);
  }
}

TEST_P(TcpSocketTest, ReadExactlySaysHowTheInputEnded) {
  Pair pair = Connected();
  ExpectOk(pair.peers.Write("1234567"));
  ExpectOk(pair.peers.ShutdownWrite());
  std::array<char, 4> bytes;
  ExpectOk(pair.ours.ReadExactly(bytes, testing::kLimit));
  const Status within = pair.ours.ReadExactly(bytes, testing::kLimit);
  EXPECT_EQ(within.code(), ECONNRESET);
  EXPECT_NE(within.message().find("3 of 4 bytes"), std::string::npos) << within;
  EXPECT_EQ(pair.ours.ReadExactly(bytes, testing::kLimit).code(), ENODATA);
  ExpectOk(pair.ours.ReadExactly({}));
}

TEST_P(TcpSocketTest, OneFiberReadsWhileAnotherOneWrites) {
  Pair pair = Connected({.send_buffer = 4096});
  const std::string much = testing::Pattern(300'000);
  fiber::TaskGroup fibers;
  for (TcpSocket* const socket : {&pair.ours, &pair.peers}) {
    fibers.Spawn([=, &much] { return socket->Write(much, testing::kLimit); });
    fibers.Spawn(
        [=, &much] { EXPECT_EQ(MustRead(socket, much.size()), much); });
  }
  ExpectOk(fibers.Wait());
}

TEST_P(TcpSocketTest, WritesTheSlicesOfABuffer) {
  Pair pair = Connected({.send_buffer = 4096});
  Buffer buffer;
  std::string all;
  for (int i = 0; i != 300; ++i) {
    const std::string slice = testing::Pattern(1000, static_cast<unsigned>(i));
    buffer.Append(CreateBufferSlow(slice));
    all += slice;
  }
  Fiber writer([&] { ExpectOk(pair.ours.Write(buffer, testing::kLimit)); });
  EXPECT_EQ(MustRead(&pair.peers, all.size()), all);
  writer.join();
}

TEST_P(TcpSocketTest, DeadlinesEndReadsAndWrites) {
  OnBoth([] {
    Pair pair = Connected();
    std::array<char, 8> bytes;
    const auto read = pair.ours.Read(bytes, milliseconds(1));
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code(), ETIMEDOUT);
    EXPECT_NE(
        read.error().message().find(pair.peers.local_endpoint().ToString()),
        std::string::npos);
    const std::size_t filled = Fill(&pair.ours);
    EXPECT_EQ(pair.ours.Write("x", milliseconds(1)).code(), ETIMEDOUT);
    // The connection goes on.
    MustRead(&pair.peers, filled);
    ExpectOk(pair.ours.Write("more", testing::kLimit));
    EXPECT_EQ(MustRead(&pair.peers, 4), "more");
  });
}

TEST_P(TcpSocketTest, AStopEndsReadsAndWrites) {
  Pair pair = Connected();
  Fill(&pair.ours);
  std::stop_source source;
  const std::stop_token stop = source.get_token();
  Fiber reader([&] {
    std::array<char, 8> bytes;
    EXPECT_EQ(pair.ours.Read(bytes, stop).error().code(), ECANCELED);
  });
  Fiber writer(
      [&] { EXPECT_EQ(pair.ours.Write("x", stop).code(), ECANCELED); });
  ASSERT_TRUE(testing::SocketWaiters(2));
  source.request_stop();
  reader.join();
  writer.join();
}

TEST_P(TcpSocketTest, TheEndOfTheOutputWakesWriters) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  auto local = TcpSocket::Adopt(UniqueFd(fds[0]));
  const UniqueFd peer(fds[1]);
  ASSERT_TRUE(local.has_value());
  Pair pair = Connected();
  for (TcpSocket* const socket : {&*local, &pair.ours}) {
    Fill(socket);
    const auto write = [&] {
      EXPECT_EQ(socket->Write("x", testing::kLimit).code(), EPIPE);
    };
    Fiber first(write);
    Fiber second(write);
    ASSERT_TRUE(testing::SocketWaiters(2));
    ExpectOk(socket->ShutdownWrite());
    first.join();
    second.join();
  }
}

TEST_P(TcpSocketTest, CloseWakesAllThatWaitAndThePeerSeesTheEnd) {
  Pair pair = Connected();
  const std::size_t filled = Fill(&pair.ours);
  const auto read = [&] {
    std::array<char, 8> bytes;
    EXPECT_EQ(pair.ours.Read(bytes).error().code(), EBADF);
  };
  Fiber reader(read);
  std::thread thread(read);
  Fiber writer([&] { EXPECT_EQ(pair.ours.Write("x").code(), EBADF); });
  ASSERT_TRUE(testing::SocketWaiters(2));
  pair.ours.Close();
  reader.join();
  thread.join();
  writer.join();
  MustRead(&pair.peers, filled);
  std::array<char, 8> bytes;
  EXPECT_EQ(pair.peers.Read(bytes, testing::kLimit).value_or(9), 0U);
}

// Neither does it take one from others, who may need it.
TEST_P(TcpSocketTest, CloseNeedsNoFreeDescriptor) {
  Pair pair = Connected();
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(pair.ours.fd()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<UniqueFd> rest;
  while (rest.emplace_back(::eventfd(0, EFD_CLOEXEC))) continue;
  pair.ours.Close();
  rest.clear();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  std::array<char, 8> bytes;
  const auto read = pair.ours.Read(bytes, testing::kLimit);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code(), EBADF);
  EXPECT_EQ(pair.peers.Read(bytes, testing::kLimit).value_or(9), 0U);
}

TEST_P(TcpSocketTest, AForkedChildLeavesTheSocketToItsParent) {
  Pair pair = Connected();
  testing::ExpectAbortInChild([&] { pair.ours.Close(); });
  testing::ExpectAbortInChild([&] { TcpSocket(std::move(pair.ours)); });
  Fiber reader([&] { EXPECT_EQ(MustRead(&pair.ours, 5), "there"); });
  ASSERT_TRUE(testing::SocketWaiters(1));
  ExpectOk(pair.peers.Write("there"));
  reader.join();
}

// ... whichever end has connected, and if it was adopted.
TEST_P(TcpSocketTest, UrgentBytesAreReadLikeOthers) {
  Pair pair = Connected();
  testing::SocketPair made = testing::TcpPair();
  auto adopted = TcpSocket::Adopt(std::move(made.ours));
  ASSERT_TRUE(adopted.has_value());
  const std::pair<TcpSocket*, int> ways[] = {{&pair.ours, pair.peers.fd()},
                                             {&pair.peers, pair.ours.fd()},
                                             {&*adopted, made.peer.get()}};
  for (const auto& [receiver, sender] : ways) {
    EXPECT_EQ(::send(sender, "1", 1, 0), 1);
    EXPECT_EQ(::send(sender, "2", 1, MSG_OOB), 1);
    EXPECT_EQ(::send(sender, "3", 1, 0), 1);
    EXPECT_EQ(MustRead(receiver, 3), "123");
  }
}

TEST_P(TcpSocketTest, AResetIsAnErrorOfReadersAndWriters) {
  Pair pair = Connected();
  Fill(&pair.ours);
  Fiber reader([&] {
    std::array<char, 8> bytes;
    const auto got = pair.ours.Read(bytes, testing::kLimit);
    ASSERT_FALSE(got.has_value());
    // The writer may have been told first.
    EXPECT_EQ(got.error().code(), ECONNRESET);
  });
  ASSERT_TRUE(testing::SocketWaiters(1));
  SetResetOnClose(pair.peers.fd());
  pair.peers.Close();
  reader.join();
  EXPECT_EQ(pair.ours.Write("x", testing::kLimit).code(), EPIPE);
}

TEST_P(TcpSocketTest, ARefusedConnectionIsAnError) {
  OnBoth([] {
    // The port is taken, so that no other test gets it, but nobody listens.
    auto holder = CreateStreamSocket(AF_INET);
    ASSERT_TRUE(holder.has_value());
    sockaddr_storage any;
    const socklen_t length = MustParseEndpoint("127.0.0.1:0").ToSockaddr(&any);
    ASSERT_EQ(::bind(holder->get(), reinterpret_cast<sockaddr*>(&any), length),
              0);
    const Endpoint nobody = GetLocalEndpoint(holder->get());
    const auto socket = TcpSocket::Connect(nobody, testing::kLimit);
    ASSERT_FALSE(socket.has_value());
    EXPECT_EQ(socket.error().code(), ECONNREFUSED);
    EXPECT_EQ(socket.error().message(),
              "connect to " + nobody.ToString() + ": Connection refused");
  });
}

// A listener whose backlog is full doesn't answer.
TEST_P(TcpSocketTest, ADeadlineEndsAConnect) {
  TcpListener listener =
      MustListen(MustParseEndpoint("127.0.0.1:0"), {.backlog = 0});
  std::vector<TcpSocket> accepted_by_kernel;
  for (;;) {
    auto socket =
        TcpSocket::Connect(listener.local_endpoint(), milliseconds(50));
    if (!socket) {
      EXPECT_EQ(socket.error().code(), ETIMEDOUT) << socket.error();
      break;
    }
    accepted_by_kernel.push_back(*std::move(socket));
    ASSERT_LT(accepted_by_kernel.size(), 10U);
  }
}

TEST_P(TcpSocketTest, AppliesItsOptions) {
  TcpListener listener = MustListen();
  TcpSocket socket = MustConnect(listener.local_endpoint(),
                                 {.receive_buffer = 20000,
                                  .send_buffer = 30000,
                                  .keep_alive = std::chrono::seconds(60),
                                  .local = MustParseEndpoint("127.0.0.2:0")});
  EXPECT_EQ(socket.local_endpoint().host(), "127.0.0.2");
  const auto get = [&](int name) {
    int value = 0;
    socklen_t length = sizeof(value);
    EXPECT_EQ(::getsockopt(socket.fd(), SOL_SOCKET, name, &value, &length), 0);
    return value;
  };
  EXPECT_EQ(get(SO_RCVBUF), 40000);
  EXPECT_EQ(get(SO_SNDBUF), 60000);
  EXPECT_EQ(get(SO_KEEPALIVE), 1);
}

// The kernel keeps the first connection for a minute.
TEST_P(TcpSocketTest, TakesThePortOfAnEndedConnection) {
  TcpListener first = MustListen();
  TcpListener second = MustListen();
  TcpSocket ended = MustConnect(first.local_endpoint(),
                                {.local = MustParseEndpoint("127.0.0.5:0")});
  const Endpoint local = ended.local_endpoint();
  TcpSocket peer = MustAccept(&first);
  ended.Close();
  std::array<char, 8> bytes;
  EXPECT_EQ(peer.Read(bytes, testing::kLimit).value_or(9), 0U);
  peer.Close();
  TcpSocket next = MustConnect(second.local_endpoint(), {.local = local});
  EXPECT_EQ(next.local_endpoint(), local);
}

TEST_P(TcpSocketTest, AdoptsSocketsMadeElsewhere) {
  OnBoth([] {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    auto ours = TcpSocket::Adopt(UniqueFd(fds[0]));
    auto peers = TcpSocket::Adopt(UniqueFd(fds[1]));
    ASSERT_TRUE(ours && peers);
    EXPECT_EQ(ours->Read({}, milliseconds(0)).value_or(9), 0U);
    ExpectOk(ours->Write("here"));
    EXPECT_EQ(MustRead(&*peers, 4), "here");
    EXPECT_EQ(TcpSocket::Adopt(UniqueFd()).error().code(), EBADF);
    UniqueFd datagrams(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(TcpSocket::Adopt(std::move(datagrams)).error().code(),
              EPROTOTYPE);
  });
}

TEST_P(TcpSocketTest, SpeaksOverUnixSockets) {
  const std::string path =
      "/tmp/flare_tcp_socket_" + std::to_string(::getpid());
  const Endpoint address = EndpointFromUnix(path);
  {
    TcpListener listener = MustListen(address);
    TcpSocket client = MustConnect(address);
    TcpSocket server = MustAccept(&listener);
    ExpectOk(client.Write("hello"));
    EXPECT_EQ(MustRead(&server, 5), "hello");
    TcpListener moved = std::move(listener);
    EXPECT_EQ(::access(path.c_str(), F_OK), 0);
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the file has been left";
  EXPECT_EQ(TcpSocket::Connect(address).error().code(), ENOENT);
}

// The kernel makes no event when a Unix socket's backlog has room again.
TEST_P(TcpSocketTest, WaitsForRoomInTheBacklogOfAUnixSocket) {
  const Endpoint address = UnixName("backlog");
  TcpListener listener = MustListen(address, {.backlog = 0});
  TcpSocket first = MustConnect(address);
  EXPECT_EQ(TcpSocket::Connect(address, milliseconds(1)).error().code(),
            ETIMEDOUT);
  std::stop_source source;
  source.request_stop();
  EXPECT_EQ(TcpSocket::Connect(address, source.get_token()).error().code(),
            ECANCELED);
  Fiber second([&] { MustConnect(address); });
  MustAccept(&listener);
  MustAccept(&listener);
  second.join();
}

TEST_P(TcpSocketTest, AListenerIsClosedWhileFibersAccept) {
  TcpListener listener = MustListen(MustParseEndpoint("127.0.0.3:0"));
  const Endpoint address = listener.local_endpoint();
  const auto accept = [&] {
    EXPECT_EQ(listener.Accept().error().code(), EBADF);
  };
  Fiber first(accept);
  Fiber second(accept);
  ASSERT_TRUE(testing::SocketWaiters(2));
  listener.Close();
  first.join();
  second.join();
  EXPECT_EQ(TcpSocket::Connect(address).error().code(), ECONNREFUSED);
  EXPECT_EQ(listener.local_endpoint(), address);
  MustListen(address);
}

TEST_P(TcpSocketTest, AcceptHasLimits) {
  TcpListener listener = MustListen();
  EXPECT_EQ(listener.Accept(milliseconds(1)).error().code(), ETIMEDOUT);
  std::stop_source source;
  source.request_stop();
  const std::stop_token stop = source.get_token();
  EXPECT_EQ(listener.Accept(stop).error().code(), ECANCELED);
}

TEST_P(TcpSocketTest, ListenersShareAPortIfBothAreAskedTo) {
  TcpListener first =
      MustListen(MustParseEndpoint("127.0.0.1:0"), {.reuse_port = true});
  TcpListener second = MustListen(first.local_endpoint(), {.reuse_port = true});
  const auto third = TcpListener::Listen(first.local_endpoint());
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code(), EADDRINUSE);
}

// Several fibers accept from one listener, and each connection is served.
TEST_P(TcpSocketTest, StressEchoOverManyConnections) {
  constexpr int kClients = 12;
  constexpr int kRounds = 40;
  TcpListener listener = MustListen();
  const Endpoint address = listener.local_endpoint();
  fiber::TaskGroup servers;
  const auto serve = [](TcpSocket socket) {
    std::array<char, 512> bytes;
    for (;;) {
      const auto size = socket.Read(bytes, testing::kLimit);
      if (!size || *size == 0) return;
      if (!socket.Write({bytes.data(), *size}, testing::kLimit).ok()) return;
    }
  };
  for (int i = 0; i != 3; ++i) {
    servers.Spawn([&] {
      while (auto socket = listener.Accept()) {
        servers.Spawn([&serve, s = *std::move(socket)]() mutable {
          serve(std::move(s));
        });
      }
    });
  }
  fiber::TaskGroup clients;
  for (int i = 0; i != kClients; ++i) {
    clients.Spawn([&, i]() -> Status {
      TcpSocket socket = MustConnect(address);
      const std::string message =
          testing::Pattern(static_cast<std::size_t>(100 * i + 1));
      for (int round = 0; round != kRounds; ++round) {
        if (Status sent = socket.Write(message); !sent.ok()) return sent;
        EXPECT_EQ(MustRead(&socket, message.size()), message);
      }
      return Status();
    });
  }
  ExpectOk(clients.Wait());
  listener.Close();
  ExpectOk(servers.Wait());
}

// Writers, readers and Close() at the same time, over and over.
TEST_P(TcpSocketTest, StressCloseBesideCalls) {
  for (int round = 0; round != 40; ++round) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    auto ours = TcpSocket::Adopt(UniqueFd(fds[0]));
    auto peers = TcpSocket::Adopt(UniqueFd(fds[1]));
    ASSERT_TRUE(ours && peers);
    fiber::TaskGroup users;
    const std::string much(20'000, 'x');
    for (TcpSocket* const socket : {&*ours, &*peers}) {
      users.Spawn([&, socket] {
        while (socket->Write(much).ok()) continue;
      });
      users.Spawn([socket] {
        std::array<char, 4096> bytes;
        while (socket->Read(bytes).value_or(0) != 0) this_fiber::Yield();
      });
    }
    users.Spawn([&, round] {
      for (int i = 0; i != round; ++i) this_fiber::Yield();
      ours->Close();
      peers->Close();
    });
    ExpectOk(users.WaitFor(testing::kLimit));
  }
}

}  // namespace
}  // namespace flare::io

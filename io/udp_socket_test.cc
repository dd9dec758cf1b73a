#include "flare/io/udp_socket.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/task_group.h"
#include "flare/io/datagram_batch.h"
#include "flare/io/testing/loopback.h"
#include "flare/io/testing/socket_waiters.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

class UdpSocketTest : public testing::IoTest {
 protected:
  static Endpoint AnyPort() { return MustParseEndpoint("127.0.0.1:0"); }

  static UdpSocket MustBind(const Endpoint& local = AnyPort(),
                            const UdpSocket::Options& options = {}) {
    auto socket = UdpSocket::Bind(local, options);
    EXPECT_TRUE(socket.has_value()) << socket.error().message();
    return *std::move(socket);
  }

  static UdpSocket MustConnect(const Endpoint& peer) {
    auto socket = UdpSocket::Connect(peer);
    EXPECT_TRUE(socket.has_value()) << socket.error().message();
    return *std::move(socket);
  }

  static void ExpectOk(const Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }

  // Two sockets that know only each other: the second one's host refuses
  // datagrams of anybody else. No other test gets its port.
  struct Deaf {
    UdpSocket friend_ = MustBind();
    UdpSocket socket = MustConnect(friend_.local_endpoint());
  };

  // Addresses of other hosts than other tests', which don't take their ports.
  static Endpoint OtherHost(int number) {
    return EndpointFromIpv4("127.0.0." + std::to_string(number), 0);
  }

  template <class F>
  static void OnBoth(F f) {
    f();
    Fiber(f).join();
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(UdpSocketTest);

TEST_P(UdpSocketTest, SendsAndReceives) {
  OnBoth([] {
    UdpSocket server = MustBind();
    UdpSocket client = MustConnect(server.local_endpoint());
    ExpectOk(client.Send("question"));
    std::array<char, 64> bytes;
    const auto got = server.Receive(bytes, testing::kLimit);
    ASSERT_TRUE(got.has_value()) << got.error();
    EXPECT_EQ(std::string_view(bytes.data(), got->size), "question");
    EXPECT_FALSE(got->truncated);
    EXPECT_EQ(got->from, client.local_endpoint());
    ExpectOk(server.SendTo(got->from, "answer"));
    const auto answer = client.Receive(bytes, testing::kLimit);
    ASSERT_TRUE(answer.has_value()) << answer.error();
    EXPECT_EQ(std::string_view(bytes.data(), answer->size), "answer");
    EXPECT_EQ(answer->from, server.local_endpoint());
  });
}

TEST_P(UdpSocketTest, SpeaksIpv6) {
  auto server = UdpSocket::Bind(MustParseEndpoint("[::1]:0"));
  if (!server) GTEST_SKIP() << server.error();
  UdpSocket client = MustConnect(server->local_endpoint());
  ExpectOk(client.Send("six"));
  std::array<char, 64> bytes;
  const auto got = server->Receive(bytes, testing::kLimit);
  ASSERT_TRUE(got.has_value()) << got.error();
  EXPECT_EQ(got->from, client.local_endpoint());
  EXPECT_EQ(got->size, 3U);
}

TEST_P(UdpSocketTest, KeepsTheBoundsOfEmptyAndLongestDatagrams) {
  UdpSocket server = MustBind();
  UdpSocket client = MustConnect(server.local_endpoint());
  const std::string longest = testing::Pattern(65507);
  for (const std::string_view datagram :
       {std::string_view(), std::string_view(longest)}) {
    ExpectOk(client.Send(datagram));
    std::string bytes(65535, '\0');
    const auto got = server.Receive(bytes, testing::kLimit);
    ASSERT_TRUE(got.has_value()) << got.error();
    EXPECT_EQ(got->size, datagram.size());
    EXPECT_FALSE(got->truncated);
    bytes.resize(got->size);
    EXPECT_EQ(bytes, datagram);
  }
  const Status longer = client.Send(longest + '!');
  EXPECT_EQ(longer.code(), EMSGSIZE);
  EXPECT_NE(longer.message().find(server.local_endpoint().ToString()),
            std::string::npos)
      << longer;
}

TEST_P(UdpSocketTest, SaysThatADatagramWasCut) {
  UdpSocket server = MustBind();
  UdpSocket client = MustConnect(server.local_endpoint());
  ExpectOk(client.Send("12345"));
  ExpectOk(client.Send("123"));
  std::array<char, 3> bytes;
  const auto cut = server.Receive(bytes, testing::kLimit);
  ASSERT_TRUE(cut.has_value()) << cut.error();
  EXPECT_TRUE(cut->truncated);
  EXPECT_EQ(cut->size, 3U);
  const auto whole = server.Receive(bytes, testing::kLimit);
  ASSERT_TRUE(whole.has_value()) << whole.error();
  EXPECT_FALSE(whole->truncated);
}

TEST_P(UdpSocketTest, ADeadlineEndsAReceive) {
  OnBoth([] {
    UdpSocket socket = MustBind();
    std::array<char, 8> bytes;
    const auto waited = socket.Receive(bytes, milliseconds(1));
    ASSERT_FALSE(waited.has_value());
    EXPECT_EQ(waited.error().code(), ETIMEDOUT);
    EXPECT_NE(waited.error().message().find("127.0.0.1:"), std::string::npos);
    // It only tries.
    const auto tried = socket.Receive(bytes, milliseconds(0));
    ASSERT_FALSE(tried.has_value());
    EXPECT_EQ(tried.error().code(), ETIMEDOUT);
    // The socket goes on.
    ExpectOk(socket.SendTo(socket.local_endpoint(), "me"));
    EXPECT_TRUE(socket.Receive(bytes, milliseconds(0)).has_value());
  });
}

TEST_P(UdpSocketTest, AStopEndsAReceive) {
  UdpSocket socket = MustBind();
  std::stop_source source;
  Fiber receiver([&, stop = source.get_token()] {
    std::array<char, 8> bytes;
    const auto got = socket.Receive(bytes, {stop, testing::kLimit});
    ASSERT_FALSE(got.has_value());
    EXPECT_EQ(got.error().code(), ECANCELED);
  });
  ASSERT_TRUE(testing::SocketWaiters(1));
  source.request_stop();
  receiver.join();
}

TEST_P(UdpSocketTest, CloseEndsReceivesAndFreesThePort) {
  UdpSocket socket = MustBind(OtherHost(3));
  const Endpoint address = socket.local_endpoint();
  const auto receive = [&] {
    std::array<char, 8> bytes;
    const auto got = socket.Receive(bytes);
    ASSERT_FALSE(got.has_value());
    EXPECT_EQ(got.error().code(), EBADF) << got.error();
  };
  Fiber first(receive);
  Fiber second(receive);
  std::thread third(receive);
  ASSERT_TRUE(testing::SocketWaiters(2));
  Fiber([&] { socket.Close(); }).join();
  first.join();
  second.join();
  third.join();
  OnBoth(receive);
  EXPECT_EQ(socket.SendTo(address, "late").code(), EBADF);
  socket.Close();
  MustBind(address);
}

TEST_P(UdpSocketTest, AMovedSocketIsTheSame) {
  UdpSocket socket = MustBind();
  const Endpoint address = socket.local_endpoint();
  UdpSocket other = MustBind(OtherHost(4));
  const Endpoint freed = other.local_endpoint();
  other = std::move(socket);
  EXPECT_EQ(other.local_endpoint(), address);
  MustBind(freed);
}

// Nobody listens: the host sends an ICMP message back.
TEST_P(UdpSocketTest, ARefusalIsTheErrorOfOneCall) {
  OnBoth([] {
    const Deaf deaf;
    UdpSocket client = MustConnect(deaf.socket.local_endpoint());
    ExpectOk(client.Send("anybody?"));
    std::array<char, 8> bytes;
    const auto refused = client.Receive(bytes, testing::kLimit);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ECONNREFUSED) << refused.error();
    const auto nothing = client.Receive(bytes, milliseconds(0));
    ASSERT_FALSE(nothing.has_value());
    EXPECT_EQ(nothing.error().code(), ETIMEDOUT);
    ExpectOk(client.Send("anybody?"));
    EXPECT_EQ(client.Send("nobody?").code(), ECONNREFUSED);
  });
}

TEST_P(UdpSocketTest, ARefusalWakesAReceiverThatWaits) {
  const Deaf deaf;
  UdpSocket client = MustConnect(deaf.socket.local_endpoint());
  Fiber receiver([&] {
    std::array<char, 8> bytes;
    const auto refused = client.Receive(bytes, testing::kLimit);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ECONNREFUSED) << refused.error();
  });
  ASSERT_TRUE(testing::SocketWaiters(1));
  ExpectOk(client.Send("anybody?"));
  receiver.join();
}

TEST_P(UdpSocketTest, SaysWhyItCannotBeOpened) {
  UdpSocket socket = MustBind();
  const auto taken = UdpSocket::Bind(socket.local_endpoint());
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code(), EADDRINUSE);
  EXPECT_NE(taken.error().message().find(socket.local_endpoint().ToString()),
            std::string::npos);
  const auto unix_socket = UdpSocket::Bind(EndpointFromUnix("@udp"));
  ASSERT_FALSE(unix_socket.has_value());
  EXPECT_EQ(unix_socket.error().code(), EAFNOSUPPORT);
  EXPECT_FALSE(UdpSocket::Connect(Endpoint()).has_value());
}

TEST_P(UdpSocketTest, SocketsOfIpv4IgnoreAnOptionOfIpv6) {
  MustBind(AnyPort(), {.ipv6_only = true});
}

TEST_P(UdpSocketTest, SocketsShareAPort) {
  UdpSocket first = MustBind(AnyPort(), {.reuse_port = true});
  UdpSocket second = MustBind(first.local_endpoint(), {.reuse_port = true});
  EXPECT_FALSE(UdpSocket::Bind(first.local_endpoint()).has_value());
  // Whichever of the two the kernel gives it to.
  ExpectOk(MustConnect(first.local_endpoint()).Send("one"));
  std::atomic<int> received{0};
  fiber::TaskGroup receivers;
  for (UdpSocket* const socket : {&first, &second}) {
    receivers.Spawn([&, socket] {
      std::array<char, 8> bytes;
      if (!socket->Receive(bytes)) return;
      ++received;
      first.Close();
      second.Close();
    });
  }
  ExpectOk(receivers.WaitFor(testing::kLimit));
  EXPECT_EQ(received, 1);
}

TEST_P(UdpSocketTest, AppliesItsOptions) {
  const UdpSocket peer = MustBind();
  auto socket =
      UdpSocket::Connect(peer.local_endpoint(), {.receive_buffer = 20000,
                                                 .send_buffer = 30000,
                                                 .broadcast = true,
                                                 .local = OtherHost(2)});
  ASSERT_TRUE(socket.has_value()) << socket.error();
  EXPECT_EQ(socket->local_endpoint().host(), "127.0.0.2");
  const auto get = [&](int name) {
    int value = 0;
    socklen_t length = sizeof(value);
    EXPECT_EQ(::getsockopt(socket->fd(), SOL_SOCKET, name, &value, &length), 0);
    return value;
  };
  EXPECT_EQ(get(SO_RCVBUF), 40000);
  EXPECT_EQ(get(SO_SNDBUF), 60000);
  EXPECT_EQ(get(SO_BROADCAST), 1);
}

TEST_P(UdpSocketTest, CountsDatagramsThatDidNotFit) {
  UdpSocket server = MustBind(AnyPort(), {.receive_buffer = 1});
  UdpSocket client = MustConnect(server.local_endpoint());
  EXPECT_EQ(server.lost(), 0U);
  const std::string datagram(1000, 'x');
  for (int i = 0; i != 50; ++i) ExpectOk(client.Send(datagram));
  EXPECT_GT(server.lost(), 0U);
}

TEST_P(UdpSocketTest, ABatchTakesAllThatHaveCome) {
  OnBoth([] {
    UdpSocket server = MustBind();
    UdpSocket client = MustConnect(server.local_endpoint());
    ExpectOk(client.Send("one"));
    ExpectOk(client.Send(""));
    ExpectOk(client.Send("longer than 8 bytes"));
    DatagramBatch batch(16, 8);
    const auto count = server.Receive(&batch, testing::kLimit);
    ASSERT_TRUE(count.has_value()) << count.error();
    ASSERT_EQ(*count, 3U);
    ASSERT_EQ(batch.size(), 3U);
    EXPECT_EQ(batch.data(0), "one");
    EXPECT_EQ(batch.data(1), "");
    EXPECT_EQ(batch.data(2), "longer t");
    EXPECT_FALSE(batch.truncated(0));
    EXPECT_TRUE(batch.truncated(2));
    EXPECT_EQ(batch.endpoint(1), client.local_endpoint());

    // Back to the sender, one of them changed.
    EXPECT_FALSE(batch.Replace(0, "too long too"));
    EXPECT_TRUE(batch.Replace(0, "1"));
    const auto sent = server.Send(batch);
    ASSERT_TRUE(sent.has_value()) << sent.error();
    EXPECT_EQ(*sent, 3U);
    DatagramBatch back(2, 64);  // Fewer than there are.
    ASSERT_EQ(client.Receive(&back, testing::kLimit).value_or(0), 2U);
    EXPECT_EQ(back.data(0), "1");
    EXPECT_EQ(back.data(1), "");
    ASSERT_EQ(client.Receive(&back, testing::kLimit).value_or(0), 1U);
    EXPECT_EQ(back.data(0), "longer t");
    EXPECT_FALSE(back.truncated(0));

    const auto none = client.Receive(&back, milliseconds(0));
    EXPECT_FALSE(none.has_value());
    EXPECT_TRUE(back.empty());
  });
}

TEST_P(UdpSocketTest, ABatchGoesToSeveralPeers) {
  UdpSocket sender = MustBind();
  std::vector<UdpSocket> peers;
  DatagramBatch batch(4, 16);
  for (int i = 0; i != 4; ++i) {
    peers.push_back(MustBind());
    EXPECT_TRUE(batch.Add(peers.back().local_endpoint(), std::to_string(i)));
  }
  EXPECT_FALSE(batch.Add(Endpoint(), "full"));
  ASSERT_EQ(sender.Send(batch).value_or(0), 4U);
  for (int i = 0; i != 4; ++i) {
    std::array<char, 8> bytes;
    const auto got =
        peers[static_cast<std::size_t>(i)].Receive(bytes, testing::kLimit);
    ASSERT_TRUE(got.has_value()) << got.error();
    EXPECT_EQ(std::string(bytes.data(), got->size), std::to_string(i));
  }
}

// The batch is sent up to the datagram that can't be; then that one's error.
TEST_P(UdpSocketTest, ABatchStopsAtTheDatagramThatFails) {
  UdpSocket server = MustBind();
  UdpSocket client = MustBind();
  const Endpoint to = server.local_endpoint();
  DatagramBatch batch(3, 65535);
  EXPECT_TRUE(batch.Add(to, "first"));
  EXPECT_TRUE(batch.Add(to, std::string(65535, 'x')));
  EXPECT_TRUE(batch.Add(to, "third"));
  ASSERT_EQ(client.Send(batch).value_or(0), 1U);
  const auto failed = client.Send(batch, 1);
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code(), EMSGSIZE);
  ASSERT_EQ(client.Send(batch, 2).value_or(0), 1U);
  std::array<char, 8> bytes;
  EXPECT_TRUE(server.Receive(bytes, testing::kLimit).has_value());
  EXPECT_TRUE(server.Receive(bytes, milliseconds(0)).has_value());
}

TEST_P(UdpSocketTest, ABatchIsCutToWhatTheKernelTakes) {
  EXPECT_EQ(DatagramBatch(100000, 1).capacity(), DatagramBatch::kMostDatagrams);
  DatagramBatch batch(0, 4);
  EXPECT_EQ(batch.capacity(), 1U);
  EXPECT_TRUE(batch.Add("four"));
  EXPECT_TRUE(batch.endpoint(0).empty());
  batch.Clear();
  EXPECT_FALSE(batch.Add("fives"));
  EXPECT_TRUE(batch.Add("ok"));
  EXPECT_EQ(batch.data(0), "ok");
}

// Servers take datagrams from one socket, and none of those is left behind.
TEST_P(UdpSocketTest, StressFibersShareASocket) {
  constexpr int kClients = 6;
  constexpr int kRounds = 150;
  UdpSocket server = MustBind();
  const Endpoint address = server.local_endpoint();
  fiber::TaskGroup servers;
  for (int i = 0; i != 4; ++i) {
    servers.Spawn([&] {
      std::array<char, 64> bytes;
      for (;;) {
        const auto got = server.Receive(bytes);
        if (!got) {
          EXPECT_EQ(got.error().code(), EBADF) << got.error();
          return;
        }
        ExpectOk(server.SendTo(got->from, {bytes.data(), got->size}));
      }
    });
  }
  fiber::TaskGroup clients;
  for (int i = 0; i != kClients; ++i) {
    clients.Spawn([&address, i]() -> Status {
      UdpSocket client = MustConnect(address);
      for (int round = 0; round != kRounds; ++round) {
        const std::string question = std::to_string(i * 1000 + round);
        // Two in flight: one edge may announce both.
        for (int copy = 0; copy != 2; ++copy) {
          if (Status sent = client.Send(question); !sent.ok()) return sent;
        }
        for (int copy = 0; copy != 2; ++copy) {
          std::array<char, 64> bytes;
          const auto got = client.Receive(bytes, testing::kLimit);
          if (!got) return got.error();
          EXPECT_EQ(std::string_view(bytes.data(), got->size), question);
        }
      }
      return Status();
    });
  }
  ExpectOk(clients.Wait());
  server.Close();
  ExpectOk(servers.Wait());
}

// Sockets come, are closed beside calls that begin, wait and end, and go.
TEST_P(UdpSocketTest, StressCloseBesideCalls) {
  for (int round = 0; round != 60; ++round) {
    UdpSocket socket = MustBind();
    const Endpoint self = socket.local_endpoint();
    fiber::TaskGroup users;
    for (int i = 0; i != 2; ++i) {
      users.Spawn([&] {
        std::array<char, 8> bytes;
        while (socket.Receive(bytes)) continue;
      });
    }
    users.Spawn([&] {
      while (socket.SendTo(self, "x").ok()) this_fiber::Yield();
    });
    users.Spawn([&] { socket.Close(); });
    ExpectOk(users.WaitFor(testing::kLimit));
  }
}

}  // namespace
}  // namespace flare::io

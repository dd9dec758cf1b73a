// The relay, with servers that answer, fail, are silent, talk nonsense, and
// aren't there.

#include "benchmark/baseline/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "benchmark/baseline/bare_frames.h"
#include "benchmark/baseline/baseline_testing.h"
#include "benchmark/baseline/server_connection.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace baseline {
namespace {

// A listening socket on the loopback, and a test's steps with it.
class Backend {
 public:
  // One that doesn't listen refuses connections, and nobody else has its port.
  explicit Backend(bool listens = true) {
    listening_.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    PCHECK(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address),
                  sizeof(address)) == 0);
    if (listens) Listen();
    endpoint_ = flare::io::GetLocalEndpoint(listening_.get());
  }

  flare::Endpoint endpoint() const { return endpoint_; }
  // Blocks until one comes.
  flare::io::UniqueFd Accept(int flags = 0) {
    flare::io::UniqueFd fd(
        ::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | flags));
    PCHECK(fd) << "accept";
    return fd;
  }
  void Listen() { PCHECK(::listen(listening_.get(), 64) == 0); }

 private:
  flare::io::UniqueFd listening_;
  flare::Endpoint endpoint_;
};

// Reads `n` requests from a connection, of the flare protocol; returns the
// replies to them.
std::vector<std::string> ReadRequests(int fd, std::size_t n) {
  std::vector<std::string> replies;
  std::string in;
  while (replies.size() != n) {
    char chunk[4096];
    const ssize_t got = ::read(fd, chunk, sizeof(chunk));
    if (got <= 0) break;
    in.append(chunk, static_cast<std::size_t>(got));
    BareMessage message;
    std::size_t need = 0;
    while (ScanRequest(in, &message, &need) == Scan::kMessage) {
      std::string reply;
      AppendReplyHead(message, &reply);
      TurnIntoReplyBody(in.data() + message.head, message.size - message.head);
      reply.append(in, message.head, message.size - message.head);
      replies.push_back(std::move(reply));
      in.erase(0, message.size);
    }
  }
  return replies;
}

class RelayTest : public testing::Test {
 protected:
  void StartRelay(const flare::Endpoint& backend, std::string scheme = "flare",
                  std::uint32_t timeout_ms = 60'000,
                  std::size_t connections = 1,
                  std::size_t max_waiting = RelayOptions().max_waiting) {
    RelayOptions options;
    options.server.scheme = std::move(scheme);
    options.server.host = backend.ToString();
    options.server.endpoint = backend;
    options.timeout_ms = timeout_ms;
    options.connections = connections;
    options.max_waiting = max_waiting;
    loop_.emplace([&](EventLoop* loop) {
      relay_ = std::make_unique<Relay>(loop, options);
    });
  }
  void TearDown() override { loop_.reset(); }

  void Connect(Peer* peer) {
    (*loop_)->Adopt(std::make_unique<ServerConnection>(
        peer->TakeOtherEnd(), protocols_, relay_.get(), &requests_));
  }

  const flare::rpc::ServerProtocolSet protocols_ =
      *flare::rpc::ServerProtocolSet::FromNames({"trpc", "flare", "http+pb"});
  example::RequestCounter requests_;
  std::unique_ptr<Relay> relay_;
  std::optional<RunningLoop> loop_;
};

TEST_F(RelayTest, PassesCallsOnInAllProtocols) {
  for (const char* scheme : {"flare", "http+pb", "trpc"}) {
    SCOPED_TRACE(scheme);
    Backend backend;
    StartRelay(backend.endpoint(), scheme, 60'000, 2);
    Peer peer(scheme);
    Connect(&peer);
    std::string bytes;
    for (std::uint64_t id = 1; id <= 200; ++id) {
      bytes += peer.Encode(id, std::string(id, 'x'),
                           id % 2 == 0 ? kEchoMethod : kRelayMethod);
    }
    peer.Send(bytes);
    InlineHandler handler{example::WorkSource()};
    RunningLoop server;
    for (int i = 0; i != 2; ++i) {
      server->Adopt(std::make_unique<ServerConnection>(
          backend.Accept(SOCK_NONBLOCK), protocols_, &handler, &requests_));
    }
    const auto replies = peer.Receive(200);
    ASSERT_EQ(replies.size(), 200);
    for (const auto& [id, reply] : replies) {
      EXPECT_EQ(reply.status, 0);
      EXPECT_EQ(reply.body, std::string(id, 'x'));
    }
    server.Join();
    loop_.reset();
  }
}

TEST_F(RelayTest, PassesAttachmentsAndFailuresOn) {
  Backend backend;
  StartRelay(backend.endpoint());
  Peer peer;
  Connect(&peer);
  peer.Send(peer.Encode(1, "a", kEchoMethod, "attached"));
  const flare::io::UniqueFd fd = backend.Accept();
  Peer::SendAll(fd.get(), ReadRequests(fd.get(), 1).at(0));
  EXPECT_EQ(peer.Receive(1)[1].attachment, "attached");

  peer.Send(peer.Encode(2, "b", "no.such.Method"));
  EXPECT_EQ(peer.Receive(1)[2].status, flare::rpc::STATUS_METHOD_NOT_FOUND);
}

TEST_F(RelayTest, FailsWithoutAServerAndRecovers) {
  Backend backend(/*listens=*/false);
  StartRelay(backend.endpoint());
  Peer peer;
  Connect(&peer);
  for (std::uint64_t id = 1; id <= 20; ++id) {
    peer.Send(peer.Encode(id, "a"));
    ASSERT_EQ(peer.Receive(1)[id].status, flare::rpc::STATUS_FAIL_TO_CONNECT);
  }
  backend.Listen();
  std::uint64_t id = 21;
  InlineHandler handler{example::WorkSource()};
  RunningLoop server;
  std::thread acceptor([&] {
    server->Adopt(std::make_unique<ServerConnection>(
        backend.Accept(SOCK_NONBLOCK), protocols_, &handler, &requests_));
  });
  EXPECT_TRUE(Eventually([&] {
    peer.Send(peer.Encode(++id, "a"));
    return peer.Receive(1)[id].status == 0;
  }));
  acceptor.join();
}

TEST_F(RelayTest, FailsCallsOfAConnectionThatBreaks) {
  Backend backend;
  StartRelay(backend.endpoint());
  Peer peer;
  Connect(&peer);
  for (const char* last_words : {"", "nonsense, and more than a header"}) {
    peer.Send(peer.Encode(1, "a") + peer.Encode(2, "b"));
    flare::io::UniqueFd fd = backend.Accept();
    EXPECT_EQ(ReadRequests(fd.get(), 2).size(), 2);
    Peer::SendAll(fd.get(), last_words);
    if (*last_words == '\0') fd.Reset();
    auto replies = peer.Receive(2);
    EXPECT_EQ(replies[1].status, flare::rpc::STATUS_CHANNEL_SHUTDOWN);
    EXPECT_EQ(replies[2].status, flare::rpc::STATUS_CHANNEL_SHUTDOWN);
  }
}

TEST_F(RelayTest, GivesUpAndIgnoresLateReplies) {
  Backend backend;
  StartRelay(backend.endpoint(), "flare", 30);
  Peer peer;
  Connect(&peer);
  peer.Send(peer.Encode(1, "late"));
  const flare::io::UniqueFd fd = backend.Accept();
  const auto late = ReadRequests(fd.get(), 1);
  EXPECT_EQ(peer.Receive(1)[1].status, flare::rpc::STATUS_TIMEOUT);
  // The next call has the same slot, but the late reply isn't taken for its.
  // Under load it may be late itself, and another one tried.
  std::uint64_t id = 1;
  EXPECT_TRUE(Eventually([&] {
    peer.Send(peer.Encode(++id, "in time"));
    const auto replies = ReadRequests(fd.get(), 1);
    Peer::SendAll(fd.get(), late.at(0) + replies.at(0));
    const Reply reply = peer.Receive(1)[id];
    return reply.status == 0 && reply.body == "in time";
  }));
}

TEST_F(RelayTest, TakesRepliesWhileItsRequestsWait) {
  Backend backend;
  StartRelay(backend.endpoint());
  Peer peer;
  Connect(&peer);
  peer.Send(peer.Encode(1, "a"));
  const flare::io::UniqueFd fd = backend.Accept();
  // More than the socket takes; the server sends first, and reads then.
  const std::string body(1 << 20, 'b');
  constexpr std::uint64_t kLast = 32;
  for (std::uint64_t id = 2; id <= kLast; ++id) {
    peer.Send(peer.Encode(id, body));
  }
  EXPECT_TRUE(Eventually([&] { return requests_.Total() == kLast; }));
  Peer::SendAll(fd.get(), ReadRequests(fd.get(), 1).at(0));
  EXPECT_EQ(peer.Receive(1)[1].body, "a");
}

TEST_F(RelayTest, RefusesCallsThatItsServerDoesNotTake) {
  Backend backend;
  StartRelay(backend.endpoint(), "flare", 60'000, 1, 1 << 20);
  Peer peer;
  Connect(&peer);
  const std::string body(1 << 20, 'b');
  constexpr std::uint64_t kLast = 32;  // More than it and sockets may keep.
  for (std::uint64_t id = 1; id <= kLast; ++id) {
    peer.Send(peer.Encode(id, body));
  }
  const auto replies = peer.Receive(1);
  ASSERT_EQ(replies.size(), 1);
  EXPECT_EQ(replies.begin()->second.status, flare::rpc::STATUS_OVERLOADED);
}

TEST_F(RelayTest, OutlivesCallersThatGo) {
  Backend backend;
  StartRelay(backend.endpoint());
  flare::io::UniqueFd fd;
  for (int i = 0; i != 20; ++i) {
    SCOPED_TRACE(i);
    Peer peer;
    Connect(&peer);
    // A client that goes without having read all breaks the connection; else it
    // might still want replies.
    const bool breaks = i % 2 == 0;
    if (breaks) peer.Send(peer.Encode(1, "", "no.such.Method"));
    peer.Send(peer.Encode(2, "a"));
    if (!fd) fd = backend.Accept();
    const auto replies = ReadRequests(fd.get(), 1);
    peer.Close();
    if (breaks) {
      EXPECT_TRUE(Eventually([&] { return (*loop_)->connections() == 1; }));
    }
    Peer::SendAll(fd.get(), replies.at(0));
    EXPECT_TRUE(Eventually([&] { return (*loop_)->connections() == 1; }));
  }
}

TEST_F(RelayTest, StopsWithCallsUnderWay) {
  Backend backend;
  StartRelay(backend.endpoint());
  Peer peer;
  Connect(&peer);
  peer.Send(peer.Encode(1, "a") + peer.Encode(2, "b"));
  const flare::io::UniqueFd fd = backend.Accept();
  EXPECT_EQ(ReadRequests(fd.get(), 2).size(), 2);
  loop_.reset();
  EXPECT_TRUE(peer.IsClosedByServer());
}

}  // namespace
}  // namespace baseline

// epoll_limit: frames against flare's own codecs, output against a reference,
// and its server and client against each other.

#include <sys/socket.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "benchmark/baseline/bare_client.h"
#include "benchmark/baseline/bare_frames.h"
#include "benchmark/baseline/bare_stream.h"
#include "benchmark/baseline/baseline_testing.h"
#include "example/rpc/call_recorder.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace baseline {
namespace {

// --- Frames ----------------------------------------------------------------

TEST(BareFramesTest, FindsRequestsOfBothProtocols) {
  for (const char* scheme : {"flare", "http+pb"}) {
    SCOPED_TRACE(scheme);
    const Peer peer(scheme);
    const std::string one = peer.Encode(77, std::string(1000, 'a'));
    BareMessage message;
    std::size_t need = 0;
    for (std::size_t n = 1; n != one.size(); ++n) {
      ASSERT_EQ(
          ScanRequest(std::string_view(one).substr(0, n), &message, &need),
          Scan::kNeedMore)
          << n;
      if (need != 0) {
        ASSERT_TRUE(need == 16 || need == one.size()) << need;
      }
    }
    const std::string two = one + peer.Encode(78, "b");
    ASSERT_EQ(ScanRequest(two, &message, &need), Scan::kMessage);
    EXPECT_EQ(message.size, one.size());
    EXPECT_EQ(message.size - message.head, 1003);  // With tag and length.
    EXPECT_TRUE(message.has_id);
    EXPECT_EQ(message.id, 77);
  }
}

TEST(BareFramesTest, RepliesAreReadByTheRealClient) {
  for (const char* scheme : {"flare", "http+pb"}) {
    for (const std::size_t size : {0, 1, 300, 100'000}) {
      SCOPED_TRACE(std::string(scheme) + " " + std::to_string(size));
      Peer peer(scheme);
      std::string in = peer.Encode(300, std::string(size, 'a'));
      BareMessage message;
      std::size_t need = 0;
      ASSERT_EQ(ScanRequest(in, &message, &need), Scan::kMessage);
      std::string reply;
      AppendReplyHead(message, &reply);
      TurnIntoReplyBody(in.data() + message.head, message.size - message.head);
      reply.append(in, message.head);

      BareMessage response;
      ASSERT_EQ(ScanResponse(reply, &response, &need), Scan::kMessage);
      EXPECT_EQ(response.id, 300);
      EXPECT_EQ(response.size, reply.size());
      EXPECT_EQ(response.status, 0);

      const flare::io::UniqueFd server = peer.TakeOtherEnd();
      std::thread writer([&] { Peer::SendAll(server.get(), reply); });
      const auto replies = peer.Receive(1);
      writer.join();
      ASSERT_EQ(replies.count(300), 1);
      EXPECT_EQ(replies.at(300).status, 0);
      EXPECT_EQ(replies.at(300).body, std::string(size, 'a'));
    }
  }
}

TEST(BareFramesTest, TellsPlainRequestsAndResponses) {
  BareMessage message;
  std::size_t need = 0;
  ASSERT_EQ(ScanRequest("GET /x HTTP/1.1\r\nHost: a\r\n\r\n", &message, &need),
            Scan::kMessage);
  EXPECT_EQ(message.kind, BareMessage::Kind::kHttp);
  EXPECT_FALSE(message.close);
  ASSERT_EQ(ScanRequest("GET /x HTTP/1.0\r\n\r\n", &message, &need),
            Scan::kMessage);
  EXPECT_TRUE(message.close);
  const std::string reply = PlainReply("body");
  ASSERT_EQ(ScanResponse(reply, &message, &need), Scan::kMessage);
  EXPECT_EQ(message.size - message.head, 4);
  EXPECT_FALSE(message.has_id);
  ASSERT_EQ(ScanResponse("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
                         &message, &need),
            Scan::kMessage);
  EXPECT_EQ(message.status, 503);
}

TEST(BareFramesTest, RefusesWhatIsMalformed) {
  BareMessage message;
  std::size_t need = 0;
  const std::string huge_body("CPRF\0\0\0\0\xff\xff\xff\xff\0\0\0\0", 16);
  const std::string huge_meta("CPRF\xff\xff\xff\xff\0\0\0\0\0\0\0\0", 16);
  const std::string no_id("CPRF\0\0\0\0\0\0\0\0\0\0\0\0", 16);
  for (const std::string& bytes :
       {huge_body, huge_meta, no_id, std::string("\x16\x03\x01"),
        std::string("GET / HTTP/1.1\r\nno colon\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: a\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n"),
        "GET /" + std::string(100'000, 'a')}) {
    EXPECT_EQ(ScanRequest(bytes, &message, &need), Scan::kBad)
        << bytes.substr(0, 40);
  }
  EXPECT_EQ(ScanResponse("HTTP/1.1 200 OK\r\n\r\n", &message, &need),
            Scan::kBad);
  EXPECT_EQ(ScanResponse("HTTP/3 what\r\n\r\n", &message, &need), Scan::kBad);
}

// --- Output ----------------------------------------------------------------

TEST(BareOutputTest, SendsAllInOrderWhateverTheSocketTakes) {
  int fds[2];
  ASSERT_EQ(
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
      0);
  const flare::io::UniqueFd from(fds[0]);
  const flare::io::UniqueFd to(fds[1]);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::string large(1 << 20, '\0');
  for (char& c : large) c = static_cast<char>(random());

  BareOutput output;
  std::string expected;
  std::string received;
  // Until its dropped bytes have been cleaned away a few times, without ever
  // getting empty.
  for (int round = 0; round != 4000; ++round) {
    const std::size_t size = random() % 4 == 0 ? random() % 20'000 : 10;
    const auto bytes =
        std::string_view(large).substr(random() % (1 << 19), size);
    output.Append(bytes);
    expected += bytes;
    const bool at_end = round >= 3900;
    if (random() % 3 == 0 || at_end) {
      ASSERT_TRUE(output.Send(from.get()));
    }
    while (at_end || received.size() + 100'000 < expected.size()) {
      char chunk[5000];
      const ssize_t n = ::read(to.get(), chunk, 1 + random() % sizeof(chunk));
      if (n <= 0) {
        ASSERT_TRUE(output.Send(from.get()));
        if (at_end) break;
        continue;
      }
      received.append(chunk, static_cast<std::size_t>(n));
    }
  }
  while (received.size() != expected.size()) {
    ASSERT_TRUE(output.Send(from.get()));
    char chunk[5000];
    const ssize_t n = ::read(to.get(), chunk, sizeof(chunk));
    ASSERT_GT(n, 0);
    received.append(chunk, static_cast<std::size_t>(n));
  }
  EXPECT_TRUE(output.empty());
  EXPECT_TRUE(received == expected);
}

TEST(BareOutputTest, TellsOfABrokenConnection) {
  int fds[2];
  ASSERT_EQ(
      ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
      0);
  const flare::io::UniqueFd from(fds[0]);
  flare::io::UniqueFd(fds[1]).Reset();
  BareOutput output;
  output.Append("x");
  EXPECT_FALSE(output.Send(from.get()));
}

// --- Client ----------------------------------------------------------------

class BareClientTest : public testing::Test {
 protected:
  // A client of three slots, and the other end of its connection.
  flare::io::UniqueFd Start(const std::string& scheme, std::uint64_t requests) {
    loop_.reset();  // And with it the connection that uses all this.
    server_address_.scheme = scheme;
    server_address_.host = "host:1";
    requests_ = *BareRequests::Encode(server_address_, 3, 5);
    load_ = std::make_unique<BareLoad>(&recorder_);
    load_->Limit(requests);
    int fds[2];
    PCHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    flare::io::UniqueFd client(fds[0]);
    const int flags = ::fcntl(client.get(), F_GETFL);
    PCHECK(::fcntl(client.get(), F_SETFL, flags | O_NONBLOCK) == 0);
    loop_.emplace();
    (*loop_)->Adopt(std::make_unique<BareClientConnection>(
        std::move(client), &requests_, 3, load_.get()));
    return flare::io::UniqueFd(fds[1]);
  }

  // Reads up to `n` requests and answers each with `answer(message)`.
  template <class Answer>
  static void Serve(int fd, std::size_t n, Answer&& answer) {
    std::string in;
    while (n != 0) {
      char chunk[4096];
      const ssize_t got = ::read(fd, chunk, sizeof(chunk));
      ASSERT_GT(got, 0);
      in.append(chunk, static_cast<std::size_t>(got));
      BareMessage message;
      std::size_t need = 0;
      while (n != 0 && ScanRequest(in, &message, &need) == Scan::kMessage) {
        Peer::SendAll(fd, answer(message));
        in.erase(0, message.size);
        --n;
      }
    }
  }

  example::CallStatistics WaitForEnd() {
    EXPECT_TRUE(Eventually([&] { return load_->under_way() == 0; }));
    loop_->Join();
    return recorder_.Take();
  }

  ServerAddress server_address_;
  example::CallRecorder recorder_;
  BareRequests requests_;
  std::unique_ptr<BareLoad> load_;
  std::optional<RunningLoop> loop_;
};

std::string EmptyReply(const BareMessage& request) {
  BareMessage reply = request;
  reply.size = reply.head;
  std::string bytes;
  AppendReplyHead(reply, &bytes);
  return bytes;
}

TEST_F(BareClientTest, SendsAsManyRequestsAsItIsTold) {
  for (const char* scheme : {"flare", "http+pb"}) {
    SCOPED_TRACE(scheme);
    const flare::io::UniqueFd fd = Start(scheme, 100);
    Serve(fd.get(), 100, EmptyReply);
    EXPECT_TRUE(Eventually([&] { return load_->under_way() == 0; }));
    const example::CallStatistics calls = recorder_.Take();
    EXPECT_EQ(calls.successes(), 100);
    EXPECT_EQ(calls.failure_count(), 0);
  }
}

TEST_F(BareClientTest, CountsFailures) {
  const flare::io::UniqueFd fd = Start("http", 10);
  Serve(fd.get(), 10, [i = 0](const BareMessage&) mutable {
    return ++i % 2 == 0 ? PlainReply("x")
                        : "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n";
  });
  const example::CallStatistics calls = WaitForEnd();
  EXPECT_EQ(calls.successes(), 5);
  EXPECT_EQ(calls.failures, (std::map<int, std::uint64_t>{{404, 5}}));
}

// The next message needs another size than the one before.
TEST_F(BareClientTest, SeesAShortReplyAfterALongOne) {
  const flare::io::UniqueFd fd = Start("http", 3);
  std::size_t left = 3;
  Serve(fd.get(), 3, [&](const BareMessage&) {
    // Each comes by itself.
    EXPECT_TRUE(Eventually([&] { return load_->under_way() == left; }));
    return PlainReply(std::string(10 * --left, 'x'));
  });
  EXPECT_EQ(WaitForEnd().successes(), 3);
}

TEST_F(BareClientTest, CountsWhatAClosedConnectionLeaves) {
  flare::io::UniqueFd fd = Start("flare", 0);
  Serve(fd.get(), 5, EmptyReply);
  fd.Reset();
  const example::CallStatistics calls = WaitForEnd();
  // Input with the reset, or after it, may stay unread.
  EXPECT_LE(calls.successes(), 5);
  EXPECT_EQ(calls.failure_count(), 3);  // Those under way, one in each slot.
}

TEST_F(BareClientTest, DistrustsRepliesToWhatItDidNotSend) {
  const flare::io::UniqueFd fd = Start("flare", 0);
  Serve(fd.get(), 1, [](BareMessage message) {
    message.id = 4;
    return EmptyReply(message);
  });
  EXPECT_EQ(WaitForEnd().failure_count(), 3);
}

}  // namespace
}  // namespace baseline

// Messages that don't come to their end (Server::Options::message_timeout).
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "flare/fiber/event.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/server_input_fixture.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

class SlowInputTest : public ServerInputTest {
 protected:
  void SetUp() override {
    ServerInputTest::SetUp();
    server_options().message_timeout = std::chrono::milliseconds(300);
    server_options().remove_idle_connection_interval =
        std::chrono::milliseconds(5);
    server_options().maximum_packet_size = 1000;
  }

  // Sends `bytes` and then `more` now and then. Returns the output until the
  // server ends the connection.
  std::string Trickle(const std::string& bytes, const std::string& more = "1") {
    RawClient client(endpoint());
    client.Send(bytes);
    std::atomic<bool> ended{false};
    std::thread sender([&] {
      while (!ended && client.TrySend(more)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
      }
    });
    std::string all = client.ReadAll();
    ended = true;
    sender.join();
    return all;
  }

  // Where there is output unless the test was stalled before it had sent.
  std::string Answered(const std::string& bytes,
                       const std::string& more = "1") {
    std::string all;
    for (int i = 0; i != 20 && all.empty(); ++i) all = Trickle(bytes, more);
    return all;
  }
};

TEST_F(SlowInputTest, EndsItsConnection) {
  StartServer();
  const std::string meta = Meta(1, true);
  EXPECT_EQ(Trickle("G"), "");
  EXPECT_EQ(Trickle(Frame(meta.size(), 500, 0, meta)), "");
  EXPECT_EQ(Trickle("GET / HTTP/1.1\r\nA: "), "");
  const std::string post = "POST /x HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(Trickle(post + "Content-Length: 900\r\n\r\n"), "");
  EXPECT_EQ(Trickle(post + "Transfer-Encoding: chunked\r\n\r\n384\r\n"), "");
  EXPECT_TRUE(RawClient(endpoint()).AtEnd());  // Sends nothing at all.
  EXPECT_EQ(Final().connections_slow, 6u);
}

// Whole frames come, and no request to its end, or not the first one.
TEST_F(SlowInputTest, EndsItThoughOthersComeBesideIt) {
  StartServer({"flare", "grpc", "http"});
  const auto frame = [](int type, int flags, int id,
                        const std::string& payload) {
    std::string bytes(Http2Session::kFrameHeaderSize, '\0');
    bytes[2] = static_cast<char>(payload.size());
    bytes[3] = static_cast<char>(type);
    bytes[4] = static_cast<char>(flags);
    bytes[8] = static_cast<char>(id);
    return bytes + payload;
  };
  const std::string begin =
      std::string(Http2Session::kPreface) + frame(4, 0, 0, "");
  const std::string head = "\x83\x86\x84\x41\x01h";  // POST http://h/
  const std::string ping = frame(6, 0, 0, std::string(8, 'p'));
  EXPECT_NE(Answered(begin + frame(1, 4, 1, head), ping), "");
  EXPECT_NE(Answered(begin + frame(1, 4, 1, head), frame(0, 0, 1, "1")), "");
  EXPECT_NE(Answered(begin + frame(1, 0, 1, head), frame(9, 0, 1, "")), "");
  EXPECT_GE(Final().connections_slow, 3u);
}

TEST_F(SlowInputTest, IsToldFromNothingAtAll) {
  const LoggedLines warnings(google::WARNING);
  StartServer();
  EXPECT_TRUE(RawClient(endpoint()).AtEnd());
  // There is at most one line a second.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  // A byte that comes late, as the test was stalled, isn't one.
  do EXPECT_EQ(Trickle("G"), "");
  while (!warnings.Have("closed: a message took too long"));
  EXPECT_TRUE(warnings.Have("closed: nothing came (--"));
  EXPECT_GE(Final().connections_slow, 2u);
}

TEST_F(SlowInputTest, EndsItBehindTheRepliesToWhatCameBefore) {
  service().on_call = [](TestCall call) {
    this_fiber::SleepFor(std::chrono::milliseconds(600));
    FlexibleService::Echo(call);
  };
  StartServer();
  RawClient encoder(endpoint());
  const std::string call = encoder.Encode(1, kCall, MakeRequest("body"));
  encoder.Close();
  EXPECT_NE(Answered(call + call.substr(0, 20)), "");
  // It is refused at once, and skipped for as long as any message may take.
  const std::string meta = Meta(1, true);
  EXPECT_NE(Answered(Frame(meta.size(), 2000, 0, meta)), "");
  EXPECT_GE(Final().connections_slow, 2u);
}

// The rest of the last one is all taken, and never comes.
TEST_F(SlowInputTest, EndsItWhereTheBeginningCameWithOthers) {
  server_options().connection_max_idle = std::chrono::nanoseconds(0);
  StartServer();
  EXPECT_TRUE(Answered("GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                       "POST /x HTTP/1.1\r\nHost: x\r\n"
                       "Transfer-Encoding: chunked\r\n\r\n384\r\n11",
                       /*more=*/"")
                  .starts_with("HTTP/1.1 404"));
  EXPECT_GE(Final().connections_slow, 1u);
}

TEST_F(SlowInputTest, IsNoneWhileThereIsProgress) {
  server_options().message_timeout = std::chrono::seconds(2);
  server_options().maximum_packet_size = 4'000'000;
  StartServer();
  RawClient client(endpoint());
  const std::string call =
      client.Encode(1, kCall, MakeRequest(std::string(2'000'000, 'x')));
  constexpr std::size_t kPiece = 160'000;
  for (std::size_t at = 0; at < call.size(); at += kPiece) {
    client.Send(call.substr(at, kPiece));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  const auto reply = client.ReadReply();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 0);
}

TEST_F(SlowInputTest, IsNoneThatTheServerItselfDoesNotRead) {
  // It counts from when the connection is accepted, as long as nothing came.
  server_options().message_timeout = std::chrono::seconds(1);
  server_options().max_concurrent_requests_per_connection = 1;
  fiber::Event go;
  service().on_call = FlexibleService::EchoAfter(&go);
  StartServer();
  RawClient client(endpoint());
  const std::string call = client.Encode(1, kCall, MakeRequest("body"));
  client.Send(call + call.substr(0, 20));
  std::this_thread::sleep_for(std::chrono::milliseconds(1800));
  client.Send(call.substr(20));
  go.Set();
  EXPECT_TRUE(client.ReadReply());
  EXPECT_TRUE(client.ReadReply());
  client.Close();
  EXPECT_EQ(Final().connections_slow, 0u);
}

}  // namespace
}  // namespace flare::rpc::testing

// Connections of a RedisClient, by a server that does what a test says.
#include "flare/rpc/redis/redis_connection.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/scripted_redis_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using testing::ErrorOf;
using testing::kPing;
using testing::PatientRedisOptions;
using testing::RawPeer;
using testing::Said;

class RedisConnectionTest : public testing::ScriptedRedisTest {
 protected:
  std::string uri() const { return "redis://" + server_.endpoint().ToString(); }

  Future<RedisClient::Result> Ping(RedisCallOptions options = {}) {
    return Do({"PING"}, options);
  }

  // A command through, so that there is a connection.
  std::unique_ptr<RawPeer> Connect(
      const RedisClientOptions& options = PatientRedisOptions()) {
    Open(uri(), options);
    auto reply = Ping();
    auto peer = server_.Accept();
    Answer(peer.get(), kPing, "+PONG\r\n");
    EXPECT_EQ(Said(std::move(reply)), "PONG");
    return peer;
  }

  RedisSession Dedicate(std::unique_ptr<RawPeer>* peer) {
    auto made = fiber::Async([&] { return client_.Dedicate(); });
    *peer = server_.Accept();
    return *fiber::BlockingGet(std::move(made));
  }

  testing::RawServer server_;
};

TEST_F(RedisConnectionTest, MatchesRepliesInOrder) {
  auto peer = Connect();
  auto all = client_.AsyncExecuteAll({{"A"}, {"B", "\r\n"}, {"C"}});
  constexpr std::string_view kSent =
      "*1\r\n$1\r\nA\r\n*2\r\n$1\r\nB\r\n$2\r\n\r\n\r\n*1\r\n$1\r\nC\r\n";
  EXPECT_EQ(peer->ReadExactly(kSent.size()), kSent);
  for (char c : "+a\r\n*1\r\n$1\r\nb\r\n"s) peer->Send({&c, 1});
  // The next command doesn't wait for the last reply.
  auto next = Ping();
  EXPECT_EQ(peer->ReadExactly(kPing.size()), kPing);
  peer->Send("-c\r\n+PONG\r\n");
  const auto replies = fiber::BlockingGet(std::move(all));
  ASSERT_TRUE(replies);
  EXPECT_EQ(replies->at(0).text(), "a");
  EXPECT_EQ(replies->at(1).ToString(), "[\"b\"]");
  EXPECT_EQ(replies->at(2).ToString(), "error: c");
  EXPECT_EQ(Said(std::move(next)), "PONG");
}

TEST_F(RedisConnectionTest, DropsLateReplies) {
  auto peer = Connect();
  const auto late = ErrorOf(Ping({.timeout = 1ms}));
  EXPECT_EQ(late.code(), REDIS_TIMEOUT) << late.ToString();
  EXPECT_TRUE(RedisClient::MayHaveRun(late));
  auto next = Ping();
  peer->ReadExactly(2 * kPing.size());
  peer->Send("+late\r\n+PONG\r\n");
  EXPECT_EQ(Said(std::move(next)), "PONG");
  EXPECT_FALSE(server_.HasVisitor());
}

TEST_F(RedisConnectionTest, RepeatsNothingThatMayHaveRun) {
  auto peer = Connect();
  auto lost = Ping();
  peer->ReadExactly(kPing.size());
  peer->Close();
  const auto error = ErrorOf(std::move(lost));
  EXPECT_EQ(error.code(), REDIS_CONNECTION_LOST) << error.ToString();
  EXPECT_TRUE(RedisClient::MayHaveRun(error));
  EXPECT_TRUE(error.message().ends_with("it may have run"));
  EXPECT_FALSE(server_.HasVisitor());
  // The next command connects again.
  auto next = Ping();
  peer = server_.Accept();
  Answer(peer.get(), kPing, "+PONG\r\n");
  EXPECT_EQ(Said(std::move(next)), "PONG");
}

TEST_F(RedisConnectionTest, ClosesOnMalformedReplies) {
  auto peer = Connect();
  auto all = client_.AsyncExecuteAll({{"PING"}, {"PING"}});
  peer->ReadExactly(2 * kPing.size());
  auto behind = Ping();
  peer->ReadExactly(kPing.size());
  peer->Send("+PONG\r\nHTTP/1.1 400 Bad Request\r\n");
  const auto malformed = fiber::BlockingGet(std::move(all));
  ASSERT_FALSE(malformed);
  EXPECT_EQ(malformed.error().code(), REDIS_MALFORMED_REPLY);
  EXPECT_NE(malformed.error().message().find("HTTP/1.1 400"),
            std::string::npos);
  const auto lost = ErrorOf(std::move(behind));
  EXPECT_EQ(lost.code(), REDIS_CONNECTION_LOST);
  EXPECT_NE(lost.message().find("HTTP/1.1 400"), std::string::npos);
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(RedisConnectionTest, ClosesOnRepliesThatNobodyAskedFor) {
  auto peer = Connect();
  peer->Send("+more\r\n");
  EXPECT_TRUE(peer->AtEnd());
  // As a server with too many clients has it.
  auto options = PatientRedisOptions();
  options.min_reconnect_delay = options.max_reconnect_delay = 1h;
  Open(uri(), options);
  auto refused = Ping();
  // The command may come behind the end of the first connection, before the
  // client has drawn its conclusions, and have another one.
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    if (server_.HasVisitor()) {
      peer = server_.Accept();
      peer->Send("-ERR max number of clients reached\r\n");
    }
    return refused.IsReady();
  }));
  const auto error = ErrorOf(std::move(refused));
  // It may have come before the command was sent, or as its reply.
  EXPECT_TRUE(error.ok() || error.message().find("max number of clients") !=
                                std::string::npos)
      << error.ToString();
}

// A proxy without a server, say. No command has been sent.
TEST_F(RedisConnectionTest, IsNoneIfThePeerClosesAtOnce) {
  auto options = PatientRedisOptions();
  options.password = "pass";
  Open(uri(), options);
  for (int i = 0; i != 20; ++i) {
    auto refused = Ping();
    server_.Accept()->Close();
    const auto error = ErrorOf(std::move(refused));
    EXPECT_EQ(error.code(), REDIS_FAIL_TO_CONNECT) << error.ToString();
  }
}

TEST_F(RedisConnectionTest, GreetsBeforeCommands) {
  auto options = PatientRedisOptions();
  options.user = "al\r\nice";
  Open("redis://:pass@" + server_.endpoint().ToString() + "/7", options);
  auto reply = Ping();
  auto peer = server_.Accept();
  constexpr std::string_view kGreeting =
      "*3\r\n$4\r\nAUTH\r\n$7\r\nal\r\nice\r\n$4\r\npass\r\n"
      "*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n";
  EXPECT_EQ(peer->ReadExactly(kGreeting.size()), kGreeting);
  EXPECT_FALSE(peer->HasInput());
  peer->Send("+OK\r\n+OK\r\n");
  Answer(peer.get(), kPing, "+PONG\r\n");
  EXPECT_EQ(Said(std::move(reply)), "PONG");
}

TEST_F(RedisConnectionTest, IsClosedIfTheServerRefusesTheGreeting) {
  auto options = PatientRedisOptions();
  options.password = "pass";
  options.resp3 = true;
  Open(uri(), options);
  auto reply = Ping();
  auto peer = server_.Accept();
  constexpr std::string_view kGreeting =
      "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n"
      "$4\r\npass\r\n";
  EXPECT_EQ(peer->ReadExactly(kGreeting.size()), kGreeting);
  peer->Send("-ERR unknown command 'HELLO'\r\n");
  const auto error = ErrorOf(std::move(reply));
  EXPECT_EQ(error.code(), REDIS_REFUSED);
  EXPECT_FALSE(RedisClient::MayHaveRun(error));
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(RedisConnectionTest, GivesUpConnecting) {
  // A server that doesn't answer the greeting.
  auto options = PatientRedisOptions();
  options.password = "pass";
  options.connect_timeout = 10ms;
  Open(uri(), options);
  const auto silent = ErrorOf(Ping());
  EXPECT_EQ(silent.code(), REDIS_FAIL_TO_CONNECT) << silent.ToString();
  // One that doesn't accept.
  testing::SilentAddress nobody;
  Open("redis" + nobody.uri().substr(5), options);
  EXPECT_EQ(ErrorOf(Ping()).code(), REDIS_FAIL_TO_CONNECT);
  Open("redis" + nobody.uri().substr(5));
  const auto unsent = ErrorOf(Ping({.timeout = 1ms}));
  EXPECT_EQ(unsent.code(), REDIS_TIMEOUT_UNSENT);
  EXPECT_FALSE(RedisClient::MayHaveRun(unsent));
}

TEST_F(RedisConnectionTest, SpacesAttempts) {
  testing::DeadAddress dead;
  const std::string to = "redis" + dead.uri().substr(5);
  Open(to);
  for (int i = 0; i != 3; ++i) {
    EXPECT_EQ(ErrorOf(Ping()).message().find("so soon"), std::string::npos);
  }
  auto options = PatientRedisOptions();
  options.min_reconnect_delay = options.max_reconnect_delay = 1h;
  Open(to, options);
  EXPECT_EQ(ErrorOf(Ping()).message().find("so soon"), std::string::npos);
  for (int i = 0; i != 3; ++i) {
    const auto spaced = ErrorOf(Ping());
    EXPECT_EQ(spaced.code(), REDIS_FAIL_TO_CONNECT);
    EXPECT_NE(spaced.message().find("so soon"), std::string::npos);
    EXPECT_FALSE(client_.Dedicate());
  }
  // A connection that breaks soon counts as a failure.
  auto peer = Connect(options);
  peer->Send("+more\r\n");
  EXPECT_TRUE(peer->AtEnd());
  flare::Status error;
  while ((error = ErrorOf(Ping())).code() == REDIS_CONNECTION_LOST) {
  }
  EXPECT_NE(error.message().find("so soon"), std::string::npos)
      << error.ToString();
  EXPECT_FALSE(server_.HasVisitor());
}

TEST_F(RedisConnectionTest, LimitsWhatIsOutstanding) {
  auto options = PatientRedisOptions();
  options.max_outstanding = 2;
  auto peer = Connect(options);
  // More than that, if there is nothing else.
  auto three = client_.AsyncExecuteAll({{"PING"}, {"PING"}, {"PING"}});
  peer->ReadExactly(3 * kPing.size());
  EXPECT_EQ(ErrorOf(Ping()).code(), REDIS_OVERLOADED);
  peer->Send("+1\r\n+2\r\n");
  peer->Send("+3\r\n");
  EXPECT_TRUE(fiber::BlockingGet(std::move(three)));
  auto next = Ping();
  peer->ReadExactly(kPing.size());
  peer->Send("+PONG\r\n");
  EXPECT_EQ(Said(std::move(next)), "PONG");

  options.max_outstanding = 10;
  options.max_outstanding_bytes = 2 * kPing.size();
  peer = Connect(options);
  // They count until the reply has come, though nobody waits for it.
  for (int i = 0; i != 2; ++i) {
    EXPECT_EQ(ErrorOf(Ping({.timeout = 1ms})).code(), REDIS_TIMEOUT);
  }
  const auto over = ErrorOf(Ping());
  EXPECT_EQ(over.code(), REDIS_OVERLOADED);
  EXPECT_FALSE(RedisClient::MayHaveRun(over));
}

TEST_F(RedisConnectionTest, LeavesASilentServer) {
  auto options = PatientRedisOptions();
  options.max_silence = 1ms;
  auto peer = Connect(options);
  auto waits = Ping();
  peer->ReadExactly(kPing.size());
  EXPECT_EQ(ErrorOf(Ping({.timeout = 20ms})).code(), REDIS_TIMEOUT);
  const auto lost = ErrorOf(std::move(waits));
  EXPECT_EQ(lost.code(), REDIS_CONNECTION_LOST);
  EXPECT_NE(lost.message().find("max_silence"), std::string::npos);
  EXPECT_EQ(peer->ReadAll(), kPing);  // To the end.
}

TEST_F(RedisConnectionTest, LeavesASilentServerWithAFullQueue) {
  auto options = PatientRedisOptions();
  options.max_silence = 1ms;
  options.max_outstanding = 1;
  auto peer = Connect(options);
  auto waits = Ping();
  peer->ReadExactly(kPing.size());
  // Whether the next one comes to be sent, over another connection, is up to
  // the time.
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    return ErrorOf(Ping({.timeout = 1ms})).code() != REDIS_OVERLOADED;
  }));
  EXPECT_NE(ErrorOf(std::move(waits)).message().find("max_silence"),
            std::string::npos);
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(RedisConnectionTest, EndsCommandsBeforeTheClient) {
  auto peer = Connect();
  auto client = std::make_unique<RedisClient>(std::move(client_));
  auto reply =
      fiber::Async([&client = *client] { return client.Execute({"PING"}); });
  peer->ReadExactly(kPing.size());
  client = nullptr;
  EXPECT_FALSE(peer->HasInput());
  peer->Send("+PONG\r\n");
  EXPECT_EQ(Said(std::move(reply)), "PONG");
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(RedisConnectionTest, RefusesCommandsWithoutOneReply) {
  Open(uri());
  std::unique_ptr<RawPeer> peer;
  RedisSession session = Dedicate(&peer);
  const auto code = [](const auto& result) {
    return result ? 0 : result.error().code();
  };
  for (const RedisCommand& command :
       std::vector<RedisCommand>{{"subscribe", "a", "b"},
                                 {"PUNSUBSCRIBE"},
                                 {"MONITOR"},
                                 {"SYNC"},
                                 {"CLIENT", "REPLY", "OFF"}}) {
    EXPECT_EQ(code(session.Execute(command, {.timeout = 1ms})),
              REDIS_INVALID_COMMAND);
    EXPECT_EQ(code(session.ExecuteAll({{"PING"}, command}, {.timeout = 1ms})),
              REDIS_INVALID_COMMAND);
  }
  EXPECT_FALSE(session.Subscribe({"CLIENT", "REPLY", "OFF"}).ok());
  EXPECT_TRUE(session.Subscribe({"MONITOR"}).ok());
  EXPECT_EQ(code(session.Execute({"PING"})), REDIS_INVALID_COMMAND);
  EXPECT_EQ(peer->ReadUntil("MONITOR\r\n"), "*1\r\n$7\r\nMONITOR\r\n");
}

TEST_F(RedisConnectionTest, TellsOfATransactionWithoutMulti) {
  auto peer = Connect();
  const auto transact = [&](std::string_view replies) {
    auto reply = fiber::Async([this] {
      return client_.Transact({{"INCR", "a"}, {"INCR", "b"}});
    });
    peer->ReadUntil("EXEC\r\n");
    peer->Send(replies);
    return fiber::BlockingGet(std::move(reply));
  };
  const auto refused = transact("-NOPERM\r\n-NOPERM\r\n-NOPERM\r\n-ERR\r\n");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->ToString(), "error: NOPERM");
  const auto torn = transact("-NOPERM\r\n-NOPERM\r\n:1\r\n-ERR\r\n");
  ASSERT_FALSE(torn);
  EXPECT_EQ(torn.error().code(), REDIS_NO_TRANSACTION);
  EXPECT_TRUE(RedisClient::MayHaveRun(torn.error()));
}

TEST_F(RedisConnectionTest, LimitsWhatASubscriptionSends) {
  auto options = PatientRedisOptions();
  options.max_outstanding_bytes = 1000;
  Open(uri(), options);
  std::unique_ptr<RawPeer> peer;  // Reads nothing.
  RedisSession session = Dedicate(&peer);
  const RedisCommand large{"SUBSCRIBE", std::string(1 << 20, 'x')};
  int code = 0;
  for (int i = 0; i != 100 && code == 0; ++i) {
    code = session.Subscribe(large).code();
  }
  EXPECT_EQ(code, REDIS_OVERLOADED);
}

TEST_F(RedisConnectionTest, ReadsOnAfterManyBytesOfMessages) {
  auto options = PatientRedisOptions();
  options.max_reply_size = 1000;
  Open(uri(), options);
  std::unique_ptr<RawPeer> peer;
  RedisSession session = Dedicate(&peer);
  ASSERT_TRUE(session.Subscribe({"MONITOR"}).ok());
  std::string sent;
  for (int i = 0; i != 100; ++i) {  // Small and large ones.
    sent += '+' + std::to_string(i) + std::string(i % 3 * 400, 'x') + "\r\n";
  }
  peer->Send(sent);
  for (int i = 0; i != 100; ++i) {
    const auto message = session.Receive({.timeout = 20s});
    ASSERT_TRUE(message) << message.error().ToString();
    EXPECT_EQ(message->text().substr(0, message->text().find('x')),
              std::to_string(i));
  }
}

TEST_F(RedisConnectionTest, EndsWithTheClient) {
  auto peer = Connect();
  auto session = fiber::Async([&] { return client_.Dedicate(); });
  auto own = server_.Accept();
  auto dedicated = fiber::BlockingGet(std::move(session));
  ASSERT_TRUE(dedicated) << dedicated.error().ToString();
  client_ = RedisClient();
  EXPECT_FALSE(peer->HasInput());  // The session keeps the parts that it needs.
  {
    RedisSession gone = *std::move(dedicated);
    auto pushed = fiber::Async([&] { return gone.Receive(); });
    own->Send(">1\r\n+invalidate\r\n");
    EXPECT_EQ(Said(std::move(pushed)), "push [invalidate]");
  }
  EXPECT_TRUE(own->AtEnd());
  EXPECT_TRUE(peer->AtEnd());
}

TEST_F(RedisConnectionTest, EndsWithTheClientSide) {
  auto options = PatientRedisOptions();
  options.min_reconnect_delay = options.max_reconnect_delay = 1h;
  auto peer = Connect(options);
  auto failed = Ping();
  peer->ReadExactly(kPing.size());
  ShutdownClientSide();
  EXPECT_TRUE(RedisClient::MayHaveRun(ErrorOf(std::move(failed))));
  const auto later = ErrorOf(Ping());
  EXPECT_EQ(later.code(), REDIS_SHUTDOWN) << later.ToString();
}

}  // namespace
}  // namespace flare::rpc

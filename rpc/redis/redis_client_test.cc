// RedisClient and RedisSession with a real server.
#include "flare/rpc/redis_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/random.h"
#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/redis/redis_counters.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/redis_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using Kind = RedisReply::Kind;
using testing::PatientRedisOptions;
using testing::Said;

class RedisClientTest : public testing::RedisTest {
 protected:
  void SetUp() override {
    RedisTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_NO_FATAL_FAILURE(redis_.Start());
    client_ = Open(redis_.uri());
  }

  std::string Do(const RedisCommand& command) {
    return Said(client_.Execute(command));
  }

  RedisClient client_;
};

TEST_F(RedisClientTest, GetsWhatItSets) {
  EXPECT_EQ(Do({"SET", "key", "value"}), "OK");
  EXPECT_EQ(Do({"GET", "key"}), "\"value\"");
  EXPECT_EQ(Do({"GET", "other"}), "nil");
  const std::string bytes("\0\r\n$-1\r\n\xff", 9);
  EXPECT_EQ(Do({"SET", bytes, bytes}), "OK");
  EXPECT_EQ(client_.Execute({"GET", bytes})->text(), bytes);
  EXPECT_EQ(Do({"SET", "", ""}), "OK");
  EXPECT_EQ(Do({"GET", ""}), "\"\"");
}

TEST_F(RedisClientTest, HasRepliesOfAllKinds) {
  EXPECT_EQ(Do(RedisCommand{"RPUSH", "list"}.Add("a").Add(7)), "2");
  EXPECT_EQ(Do(RedisCommand(std::vector{"LRANGE"s, "list"s, "0"s, "-1"s})),
            "[\"a\", \"7\"]");
  EXPECT_EQ(Do({"EVAL", "return {1, {'a', false}}", "0"}), "[1, [\"a\", nil]]");
  // The server's errors are replies.
  const auto wrong = client_.Execute({"GET", "list"});
  ASSERT_TRUE(wrong);
  EXPECT_TRUE(wrong->is_error());
  EXPECT_TRUE(wrong->text().starts_with("WRONGTYPE ")) << wrong->text();
  EXPECT_TRUE(Do({"NOSUCH"}).starts_with("error: ERR unknown command"));
}

TEST_F(RedisClientTest, SpeaksResp3) {
  auto options = PatientRedisOptions();
  options.resp3 = true;
  options.database = 1;
  client_ = Open(redis_.uri(), options);
  Do({"HSET", "hash", "a", "1"});
  const auto map = client_.Execute({"HGETALL", "hash"});
  ASSERT_TRUE(map) << Said(map);
  EXPECT_EQ(map->kind(), Kind::kMap);
  EXPECT_EQ(map->Find("a")->text(), "1");
  Do({"ZADD", "sorted", "1.5", "a"});
  EXPECT_EQ(client_.Execute({"ZSCORE", "sorted", "a"})->real(), 1.5);
  EXPECT_EQ(Do({"GET", "other"}), "nil");
  // A push of the shared connection belongs to nobody.
  EXPECT_EQ(Do({"CLIENT", "TRACKING", "ON", "BCAST"}), "OK");
  EXPECT_EQ(Do({"SET", "key", "value"}), "OK");
  EXPECT_EQ(Do({"GET", "key"}), "\"value\"");
}

TEST_F(RedisClientTest, SharesOneConnectionAmongFibers) {
  std::vector<Future<int>> fibers;
  for (int fiber = 0; fiber != 50; ++fiber) {
    fibers.push_back(fiber::Async([this, fiber] {
      int own = 0;
      for (int i = 0; i != 20; ++i) {
        const std::string text =
            std::to_string(fiber) + '/' + std::to_string(i);
        const auto reply = client_.Execute({"ECHO", text});
        if (reply && reply->text() == text) ++own;
      }
      return own;
    }));
  }
  for (auto& fiber : fibers) {
    EXPECT_EQ(fiber::BlockingGet(std::move(fiber)), 20);
  }
  // As the server counts them, this one included.
  const std::string clients = client_.Execute({"CLIENT", "LIST"})->text();
  EXPECT_EQ(std::count(clients.begin(), clients.end(), '\n'), 1) << clients;
}

TEST_F(RedisClientTest, SendsSeveralAtOnce) {
  std::vector<RedisCommand> commands;
  for (int i = 0; i != 1000; ++i) {
    commands.push_back(RedisCommand{"RPUSH", "list"}.Add(i));
  }
  commands.push_back({"GET", "list"});  // An error, which stops nothing.
  commands.push_back({"LLEN", "list"});
  const auto replies = client_.ExecuteAll(commands);
  ASSERT_TRUE(replies) << replies.error().ToString();
  ASSERT_EQ(replies->size(), 1002u);
  for (int i = 0; i != 1000; ++i) EXPECT_EQ((*replies)[i].integer(), i + 1);
  EXPECT_TRUE((*replies)[1000].is_error());
  EXPECT_EQ((*replies)[1001].integer(), 1000);
  EXPECT_EQ(client_.ExecuteAll({})->size(), 0u);
}

TEST_F(RedisClientTest, RunsTransactions) {
  EXPECT_EQ(Said(client_.Transact({{"SET", "a", "1"}, {"INCR", "a"}})),
            "[OK, 2]");
  EXPECT_EQ(Said(client_.Transact({})), "[]");
  // Refused as a whole.
  EXPECT_TRUE(Said(client_.Transact({{"SET", "a", "5"}, {"NOSUCH"}}))
                  .starts_with("error: EXECABORT "));
  EXPECT_EQ(Do({"GET", "a"}), "\"2\"");
  // Fails as it runs, which undoes nothing.
  const auto failed = client_.Transact({{"LPUSH", "a", "1"}, {"INCR", "a"}});
  ASSERT_TRUE(failed);
  EXPECT_TRUE((*failed)[0].is_error());
  EXPECT_EQ((*failed)[1].integer(), 3);
}

TEST_F(RedisClientTest, GivesFutures) {
  auto first = client_.AsyncExecute({"ECHO", "a"});
  auto second = client_.AsyncExecuteAll({{"ECHO", "b"}, {"ECHO", "c"}});
  EXPECT_EQ(Said(fiber::BlockingGet(std::move(first))), "\"a\"");
  EXPECT_EQ(fiber::BlockingGet(std::move(second))->at(1).text(), "c");
}

TEST_F(RedisClientTest, WorksOnFibersToo) {
  testing::OnFiber([&] { EXPECT_EQ(Do({"PING"}), "PONG"); });
}

TEST_F(RedisClientTest, KeepsTheSharedConnectionFromStateAndBlocking) {
  for (const RedisCommand& command : std::vector<RedisCommand>{
           {"BLPOP", "list", "0"},
           {"blpop", "list", "0"},
           {"MULTI"},
           {"SELECT", "1"},
           {"SUBSCRIBE", "a"},
           {"XREAD", "COUNT", "1", "block", "0", "STREAMS", "s", "$"},
           {"CLIENT", "REPLY", "OFF"},
           RedisCommand(std::vector<std::string>())}) {
    const auto refused = client_.Execute(command);
    ASSERT_FALSE(refused) << command.name();
    EXPECT_EQ(refused.error().code(), RedisClient::REDIS_INVALID_COMMAND);
    EXPECT_FALSE(RedisClient::MayHaveRun(refused.error()));
    EXPECT_FALSE(client_.Transact({command}));
    EXPECT_FALSE(client_.ExecuteAll({{"PING"}, command}));
  }
  EXPECT_TRUE(client_.Execute({"XREAD", "STREAMS", "s", "0"}));
  EXPECT_FALSE(RedisClient().Execute({"PING"}));
  EXPECT_FALSE(RedisClient().Dedicate());
}

// --- sessions ----------------------------------------------------------------

TEST_F(RedisClientTest, BlocksInASession) {
  auto session = client_.Dedicate();
  ASSERT_TRUE(session) << session.error().ToString();
  auto popped = fiber::Async([&] {
    return Said(session->Execute({"BLPOP", "jobs", "0"}));
  });
  EXPECT_EQ(Do({"RPUSH", "jobs", "first"}), "1");
  EXPECT_EQ(fiber::BlockingGet(std::move(popped)), "[\"jobs\", \"first\"]");
}

TEST_F(RedisClientTest, WatchesInASession) {
  auto session = client_.Dedicate();
  ASSERT_TRUE(session) << session.error().ToString();
  const auto increment = [&](bool disturb) {
    EXPECT_EQ(Said(session->Execute({"WATCH", "n"})), "OK");
    if (disturb) Do({"SET", "n", "5"});
    const auto replies =
        session->ExecuteAll({{"MULTI"}, {"SET", "n", "1"}, {"EXEC"}});
    return replies ? replies->back().ToString() : replies.error().ToString();
  };
  EXPECT_EQ(increment(/*disturb=*/true), "nil");
  EXPECT_EQ(Do({"GET", "n"}), "\"5\"");
  EXPECT_EQ(increment(/*disturb=*/false), "[OK]");
  // State of its own.
  EXPECT_EQ(Said(session->Execute({"SELECT", "3"})), "OK");
  EXPECT_EQ(Said(session->Execute({"GET", "n"})), "nil");
  EXPECT_EQ(Do({"GET", "n"}), "\"1\"");
}

TEST_F(RedisClientTest, ReceivesMessages) {
  for (const bool resp3 : {false, true}) {
    auto options = PatientRedisOptions();
    options.resp3 = resp3;
    options.max_unread_messages = 4;  // So reading pauses.
    auto session = Open(redis_.uri(), options).Dedicate();
    ASSERT_TRUE(session) << session.error().ToString();
    ASSERT_TRUE(session->Subscribe({"SUBSCRIBE", "a", "b"}).ok());
    const std::string begin = resp3 ? "push [" : "[";
    EXPECT_EQ(Said(session->Receive()), begin + "\"subscribe\", \"a\", 1]");
    EXPECT_EQ(Said(session->Receive()), begin + "\"subscribe\", \"b\", 2]");
    std::vector<RedisCommand> news;
    for (int i = 0; i != 100; ++i) {
      news.push_back(RedisCommand{"PUBLISH", "b"}.Add(i));
    }
    EXPECT_EQ(client_.ExecuteAll(news)->size(), 100u);
    for (int i = 0; i != 100; ++i) {
      EXPECT_EQ(Said(session->Receive()),
                begin + "\"message\", \"b\", \"" + std::to_string(i) + "\"]");
    }
    // Nothing comes any more.
    const auto nothing = session->Receive({.timeout = 1ms});
    ASSERT_FALSE(nothing);
    EXPECT_EQ(nothing.error().code(), RedisClient::REDIS_TIMEOUT);
    const auto refused = session->Execute({"PING"});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), RedisClient::REDIS_INVALID_COMMAND);
    ASSERT_TRUE(session->Subscribe({"UNSUBSCRIBE", "a"}).ok());
    EXPECT_EQ(Said(session->Receive()), begin + "\"unsubscribe\", \"a\", 1]");
  }
}

TEST_F(RedisClientTest, ReceivesWhileItWaits) {
  auto session = client_.Dedicate();
  ASSERT_TRUE(session) << session.error().ToString();
  ASSERT_TRUE(session->Subscribe({"PSUBSCRIBE", "n*"}).ok());
  EXPECT_EQ((*session->Receive())[0].text(), "psubscribe");
  auto message = fiber::Async([&] { return Said(session->Receive()); });
  Do({"PUBLISH", "news", "it rains"});
  EXPECT_EQ(fiber::BlockingGet(std::move(message)),
            "[\"pmessage\", \"n*\", \"news\", \"it rains\"]");
  // Errors come as messages.
  ASSERT_TRUE(session->Subscribe({"SUBSCRIBE"}).ok());
  EXPECT_TRUE((*session->Receive()).is_error());
  redis_.Kill();
  const auto lost = session->Receive();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code(), RedisClient::REDIS_CONNECTION_LOST);
  EXPECT_TRUE(lost.error().message().starts_with(redis_.uri() + ":6379/0: "));
}

TEST_F(RedisClientTest, EndsASessionWithItsConnection) {
  auto session = client_.Dedicate();
  ASSERT_TRUE(session) << session.error().ToString();
  // The one that looked whether the server accepts may be there still.
  EXPECT_GE(client_.Execute({"CLIENT", "KILL", "TYPE", "normal"})->integer(),
            1);
  RedisClient::Result failed = RedisReply();
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    failed = session->Execute({"PING"});
    return !failed;
  }));
  EXPECT_FALSE(session->Execute({"PING"}));
  // A moved one goes on.
  auto other = client_.Dedicate();
  RedisSession moved = *std::move(other);
  *session = std::move(moved);
  EXPECT_EQ(Said(session->Execute({"PING"})), "PONG");
}

// --- connections -------------------------------------------------------------

TEST_F(RedisClientTest, ConnectsToUnixSocketsAndDatabases) {
  RedisClient other = Open(redis_.unix_uri() + "?db=2");
  EXPECT_EQ(Said(other.Execute({"SET", "key", "two"})), "OK");
  EXPECT_EQ(Do({"GET", "key"}), "nil");
  EXPECT_EQ(Said(Open(redis_.uri() + ":6379/2").Execute({"GET", "key"})),
            "\"two\"");
  const auto refused = Open(redis_.uri() + "/99").Execute({"GET", "key"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), RedisClient::REDIS_REFUSED);
  EXPECT_EQ(refused.error().message(),
            redis_.uri() + ":6379/99: SELECT: ERR DB index is out of range");
}

TEST_F(RedisClientTest, ConnectsWithTls) {
  auto options = PatientRedisOptions();
  options.tls.insecure_skip_verify = true;
  EXPECT_EQ(Said(Open(redis_.tls_uri(), options).Execute({"PING"})), "PONG");
  const auto failed = Open(redis_.tls_uri()).Execute({"PING"});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), RedisClient::REDIS_FAIL_TO_CONNECT);
  EXPECT_FALSE(RedisClient::MayHaveRun(failed.error()));
}

TEST_F(RedisClientTest, ShowsItsPassword) {
  Do({"ACL", "SETUSER", "alice", "on", ">p@ss/word", "+@all", "~*"});
  Do({"CONFIG", "SET", "requirepass", "secret"});
  const std::string at = "@" + redis_.uri().substr(8);
  for (const std::string& uri :
       {"redis://:secret" + at, "redis://alice:p%40ss%2Fword" + at}) {
    for (const bool resp3 : {false, true}) {
      auto options = PatientRedisOptions();
      options.resp3 = resp3;
      EXPECT_EQ(Said(Open(uri, options).Execute({"PING"})), "PONG") << uri;
    }
  }
  auto options = PatientRedisOptions();
  options.user = "alice";
  options.password = "wrong word";
  for (const bool resp3 : {false, true}) {
    options.resp3 = resp3;
    RedisClient client = Open(redis_.uri(), options);
    const auto refused = client.Execute({"PING"});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), RedisClient::REDIS_REFUSED);
    EXPECT_EQ(refused.error().message().find("wrong word"), std::string::npos);
    EXPECT_NE(refused.error().message().find("WRONGPASS"), std::string::npos)
        << refused.error().message();
    EXPECT_FALSE(client.Dedicate());
  }
  // Without one the server's refusal is a reply.
  EXPECT_EQ(Said(Open(redis_.uri()).Execute({"PING"})),
            "error: NOAUTH Authentication required.");
}

TEST_F(RedisClientTest, StaysInOrderAfterATimeout) {
  EXPECT_EQ(Do({"SET", "n", "0"}), "OK");
  redis_.Pause();
  const auto late = client_.Execute({"INCR", "n"}, {.timeout = 20ms});
  redis_.Resume();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), RedisClient::REDIS_TIMEOUT)
      << late.error().ToString();
  EXPECT_TRUE(RedisClient::MayHaveRun(late.error()));
  EXPECT_EQ(Do({"ECHO", "mine"}), "\"mine\"");
  EXPECT_EQ(Do({"GET", "n"}), "\"1\"");
}

TEST_F(RedisClientTest, FollowsAServerThatRestarts) {
  EXPECT_EQ(Do({"PING"}), "PONG");
  redis_.Kill();
  RedisClient::Result failed = RedisReply();
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    failed = client_.Execute({"PING"});
    return !failed && !RedisClient::MayHaveRun(failed.error());
  }));
  EXPECT_EQ(failed.error().code(), RedisClient::REDIS_FAIL_TO_CONNECT);
  ASSERT_NO_FATAL_FAILURE(redis_.Start());
  EXPECT_EQ(Do({"PING"}), "PONG");
}

TEST_F(RedisClientTest, TakesLargeRepliesUpToItsLimit) {
  const std::string large(3 << 20, 'x');
  EXPECT_EQ(Do({"SET", "large", large}), "OK");
  EXPECT_EQ(client_.Execute({"GET", "large"})->text(), large);
  auto options = PatientRedisOptions();
  options.max_reply_size = large.size() - 1;
  RedisClient limited = Open(redis_.uri(), options);
  const auto refused = limited.Execute({"GET", "large"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), RedisClient::REDIS_MALFORMED_REPLY);
  EXPECT_TRUE(RedisClient::MayHaveRun(refused.error()));
  EXPECT_EQ(Said(limited.Execute({"PING"})), "PONG");  // Over a new one.
}

TEST_F(RedisClientTest, EndsWithTheCallThatItIsPartOf) {
  Do({"PING"});
  redis_.Pause();
  const auto context = fiber::ExecutionContext::Create(NowNs() + 20'000'000);
  context->Execute([&] {
    const auto late = client_.Execute({"PING"});
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code(), RedisClient::REDIS_TIMEOUT);
  });
  const auto left = fiber::ExecutionContext::Create();
  left->Execute([&] {
    auto cancelled = fiber::Async([&] { return client_.Execute({"PING"}); });
    left->RequestStop(fiber::StopCause::kCallerGone);
    const auto result = fiber::BlockingGet(std::move(cancelled));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), RedisClient::REDIS_CANCELLED);
  });
  redis_.Resume();
}

TEST_F(RedisClientTest, CountsRequests) {
  const std::string server = redis_.uri() + ":6379/0";
  Do({"PING"});
  Do({"NOSUCH"});
  static_cast<void>(client_.ExecuteAll({{"PING"}, {"NOSUCH"}}));
  Do({"MULTI"});
  auto all = RedisCounters::Read();
  ASSERT_TRUE(all.contains(server));
  EXPECT_EQ(all.at(server).counts[RedisCounters::kOk], 1u);
  EXPECT_EQ(all.at(server).counts[RedisCounters::kErrorReply], 2u);
  EXPECT_EQ(RedisClient::ErrorCodeToString(REDIS_TIMEOUT), "REDIS_TIMEOUT"s);
  EXPECT_EQ(RedisClient::ErrorCodeToString(1000), "REDIS_UNKNOWN"s);
}

// Commands race with their time, and with the ends of their connections. Each
// has its own reply, or an error.
TEST_F(RedisClientTest, SurvivesRaces) {
  std::atomic<std::uint64_t> seed{0};
  std::atomic<int> running{8};
  std::atomic<int> own{0};
  std::vector<Future<>> fibers;
  for (int fiber = 0; fiber != 8; ++fiber) {
    fibers.push_back(fiber::Async([&, fiber] {
      for (int i = 0; i != 100; ++i) {
        const std::string text =
            std::to_string(fiber) + '/' + std::to_string(i);
        RedisCallOptions options;
        if (MixBits(++seed) % 4 == 0) options.timeout = 100us;
        const auto replies = client_.ExecuteAll(
            {{"ECHO", text}, {"PING"}, {"ECHO", text}}, options);
        if (!replies) continue;
        EXPECT_EQ((*replies)[0].text(), text);
        EXPECT_EQ((*replies)[1].text(), "PONG");
        EXPECT_EQ((*replies)[2].text(), text);
        ++own;
      }
      --running;
    }));
  }
  RedisClient killer = Open(redis_.unix_uri());
  for (int i = 0; i != 30 && running != 0; ++i) {
    EXPECT_TRUE(killer.Execute({"CLIENT", "KILL", "TYPE", "normal"}));
  }
  for (auto& fiber : fibers) fiber::BlockingGet(std::move(fiber));
  EXPECT_GT(own, 0);
  EXPECT_EQ(Do({"PING"}), "PONG");
}

}  // namespace
}  // namespace flare::rpc

// Servers of Redis, with raw bytes and with RedisClients.
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/string.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/redis_server/redis_command_counters.h"
#include "flare/rpc/redis_service.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/raw_client.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using fiber::testing::Eventually;
using ::testing::HasSubstr;
using testing::RawClient;
using ::testing::StartsWith;
using Kind = RedisReply::Kind;

std::string Encoded(const RedisCommand& command) {
  return FlattenSlow(command.Encode());
}

class RedisServerTest : public testing::ServerTest {
 protected:
  void TearDown() override {
    ShutdownClientSide();
    ServerTest::TearDown();
  }

  // Before it starts.
  RedisService& redis() { return redis_; }

  void StartRedis(const std::vector<std::string>& protocols = {"flare"}) {
    // Many tests use these.
    redis_
        .Handle("ADD", -1,
                [](const RedisRequest& request) {
                  std::string all;
                  for (const auto word : request.words().subspan(1)) {
                    all += word;
                  }
                  return RedisReply::OfString(std::move(all));
                })
        .Handle("WAIT", 1,
                [this](const RedisRequest&) {
                  waits_.fetch_add(1);
                  go_.Wait();
                  return RedisReply::OfStatus("WAITED");
                })
        .Handle("COUNT", 1, [this](const RedisRequest&) {
          return RedisReply::OfInteger(count_.fetch_add(1) + 1);
        });
    ASSERT_TRUE(server().AddRedisService(std::move(redis_)));
    StartServer(protocols);
  }

  RedisClient Open(const std::string& scheme = "redis",
                   RedisClientOptions options = {}) {
    options.timeout = options.connect_timeout = 20s;
    RedisClient client;
    const flare::Status opened =
        client.Open(scheme + "://" + endpoint().ToString(), options);
    EXPECT_TRUE(opened.ok()) << opened.ToString();
    return client;
  }

  static std::string Do(const RedisClient& client,
                        const RedisCommand& command) {
    const RedisClient::Result result = client.Execute(command);
    return result ? result->ToString() : result.error().ToString();
  }

  // The answer to these bytes, up to the end of the connection.
  std::string Answer(std::string_view bytes) {
    RawClient client(endpoint());
    client.Send(bytes);
    client.Shutdown();
    return client.ReadAll();
  }

  bool Waits(int n) {
    return Eventually([this, n] { return waits_.load() == n; });
  }

  RedisService redis_;
  fiber::Event go_;
  std::atomic<int> waits_{0};
  std::atomic<int> count_{0};
};

TEST_F(RedisServerTest, AnswersClients) {
  StartRedis();
  for (const bool resp3 : {false, true}) {
    RedisClientOptions options;
    options.resp3 = resp3;
    const RedisClient client = Open("redis", options);
    EXPECT_EQ(Do(client, {"PING"}), "PONG");
    EXPECT_EQ(Do(client, {"ECHO", "a\r\nb"}), "\"a\\x0d\\x0ab\"");
    EXPECT_EQ(Do(client, {"add", "a", "", "b"}), "\"ab\"");
    EXPECT_EQ(Do(client, {"Add"}), "\"\"");
    EXPECT_EQ(Do(client, {"COUNT", "1"}),
              "error: ERR wrong number of arguments for 'count' command");
    EXPECT_EQ(Do(client, {"nothing", "a b", "c\nd"}),
              "error: ERR unknown command 'nothing', with args beginning with: "
              "'a b' 'c\\x0ad' ");
    EXPECT_EQ(client.Execute({"COMMAND", "INFO", "add"})->kind(), Kind::kArray);
  }
}

TEST_F(RedisServerTest, SharesThePort) {
  server().AddHttpHandler("/hello",
                          NewHttpGetHandler([](auto&, auto* response, auto*) {
                            response->set_body("hello");
                          }));
  StartRedis({"flare", "http+pb", "grpc", "baidu-std", "trpc", "bolt"});
  EXPECT_EQ(Answer("PING\r\n"), "+PONG\r\n");
  EXPECT_EQ(Answer("*1\r\n$4\r\nPING\r\n"), "+PONG\r\n");
  EXPECT_THAT(Answer("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"),
              StartsWith("HTTP/1.1 200"));
  RawClient caller(endpoint());
  caller.Call(1, testing::kCall, testing::MakeRequest("flare"));
  EXPECT_EQ(caller.ReadReply()->As<testing::TestResponse>().body(), "flare");
}

TEST_F(RedisServerTest, LeavesOtherProtocolsAlone) {
  server_options().no_builtin_pages = true;
  StartRedis();
  for (const std::string_view bytes :
       {"GET / HTTP/1.1\r\n\r\n"sv, "\x16\x03\x01\x02"sv, "*x"sv, "\r\n"sv,
        "PI\0NG\r\n"sv, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"sv, ":1\r\n"sv}) {
    EXPECT_EQ(Answer(bytes), "") << bytes;
  }
  EXPECT_EQ(Answer(std::string(600, 'a')), "");
}

TEST_F(RedisServerTest, TakesInputInAnyPieces) {
  StartRedis();
  const std::string bytes =
      Encoded({"ADD", "a", "b"}) + "ADD 'c d'\r\n" + Encoded({"PING"});
  RawClient client(endpoint());
  for (const char c : bytes) client.Send({&c, 1});
  const std::string replies = "$2\r\nab\r\n$3\r\nc d\r\n+PONG\r\n";
  EXPECT_EQ(client.ReadExactly(replies.size()), replies);
}

TEST_F(RedisServerTest, AnswersLongPipelinesInOrder) {
  StartRedis();
  constexpr int kCommands = 10'000;
  RawClient client(endpoint());
  std::string commands;
  std::string replies;
  for (int i = 0; i != kCommands; ++i) {
    commands += Encoded({"COUNT"});
    replies += ":" + std::to_string(i + 1) + "\r\n";
  }
  std::thread sender([&] { client.Send(commands); });
  EXPECT_EQ(client.ReadExactly(replies.size()), replies);
  sender.join();
}

TEST_F(RedisServerTest, RunsCommandsOfAConnectionOneAfterTheOther) {
  StartRedis();
  RawClient client(endpoint());
  client.Send(Encoded({"COUNT"}) + Encoded({"WAIT"}) + Encoded({"COUNT"}));
  // The first reply doesn't wait for the second one.
  EXPECT_EQ(client.ReadExactly(4), ":1\r\n");
  ASSERT_TRUE(Waits(1));
  client.Send(Encoded({"COUNT"}));
  RawClient other(endpoint());
  other.Send(Encoded({"ECHO", "hi"}));
  EXPECT_EQ(other.ReadExactly(8), "$2\r\nhi\r\n");
  EXPECT_EQ(count_.load(), 1);
  go_.Set();
  EXPECT_EQ(client.ReadExactly(17), "+WAITED\r\n:2\r\n:3\r\n");
}

TEST_F(RedisServerTest, ClosesBehindMalformedInput) {
  server_options().maximum_packet_size = 1000;
  StartRedis();
  const struct {
    std::string bytes;
    std::string_view reply;
  } cases[] = {
      {"*1\r\n:4\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"},
      {"*1\r\n$4\r\nPINGS\r\nPING\r\n",
       "-ERR Protocol error: a string is longer than its length says\r\n"},
      {"*2\r\n$4\r\nECHO\r\n$1000\r\n",
       "-ERR Protocol error: the command is too large"
       "\r\n"},
  };
  for (const auto& c : cases) {
    RawClient client(endpoint());
    client.Send(Encoded({"PING"}) + c.bytes);
    EXPECT_EQ(client.ReadAll(), "+PONG\r\n" + std::string(c.reply));
    RawClient first(endpoint());
    first.Send(c.bytes);
    EXPECT_EQ(first.ReadAll(), c.reply);
  }
}

TEST_F(RedisServerTest, QuitsBehindItsReply) {
  StartRedis();
  RawClient client(endpoint());
  client.Send(Encoded({"PING"}) + Encoded({"QUIT"}) + Encoded({"COUNT"}));
  EXPECT_EQ(client.ReadAll(), "+PONG\r\n+OK\r\n");
  EXPECT_EQ(count_.load(), 0);
}

TEST_F(RedisServerTest, AnswersForHandlersThatThrow) {
  redis().Handle("THROW", 1, [](const RedisRequest&) -> RedisReply {
    throw std::runtime_error("broken");
  });
  StartRedis();
  testing::LoggedLines errors(google::ERROR);
  std::uint64_t calls = 0;
  do {  // Again, if another test had the line of this second.
    EXPECT_EQ(Answer(Encoded({"THROW"}) + Encoded({"PING"})),
              "-ERR The handler has failed.\r\n+PONG\r\n");
    EXPECT_EQ(server().statistics().calls_failed, ++calls);
  } while (!errors.Have("the Redis handler of THROW"));
}

TEST_F(RedisServerTest, AsksForAPassword) {
  redis().RequireAuth([](std::string_view user, std::string_view password) {
    return (user == "default" && password == "secret") ||
           (user == "ann" && password == "pw");
  });
  redis().Handle("WHOAMI", 1, [](const RedisRequest& request) {
    return RedisReply::OfString(request.peer().user());
  });
  StartRedis();
  constexpr char kNoAuth[] = "-NOAUTH Authentication required.\r\n";
  constexpr char kWrong[] =
      "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
  EXPECT_EQ(
      Answer(Encoded({"PING"}) + Encoded({"WHOAMI"}) + Encoded({"NOTHING"}) +
             Encoded({"AUTH", "no"}) + Encoded({"WHOAMI"}) +
             Encoded({"AUTH", "secret"}) + Encoded({"WHOAMI"}) +
             Encoded({"AUTH", "ann", "no"}) + Encoded({"AUTH", "ann", "pw"}) +
             Encoded({"WHOAMI"}) + Encoded({"RESET"}) + Encoded({"WHOAMI"})),
      kNoAuth + ""s + kNoAuth + kNoAuth + kWrong + kNoAuth + "+OK\r\n" +
          "$7\r\ndefault\r\n" + kWrong + "+OK\r\n$3\r\nann\r\n+RESET\r\n" +
          kNoAuth);
  EXPECT_THAT(Answer(Encoded({"HELLO", "3"})), StartsWith("-NOAUTH HELLO"));
  EXPECT_EQ(Answer(Encoded({"HELLO", "3", "AUTH", "ann", "no"})), kWrong);
  // A command that isn't in order has no effect.
  EXPECT_EQ(Answer("HELLO 3 AUTH ann pw NO\nWHOAMI\n"),
            "-ERR Syntax error in HELLO option 'NO'\r\n" + ""s + kNoAuth);
  RedisClientOptions options;
  options.resp3 = true;
  options.user = "ann";
  options.password = "pw";
  EXPECT_EQ(Do(Open("redis", options), {"WHOAMI"}), "\"ann\"");
}

TEST_F(RedisServerTest, KeepsTheStateOfAConnection) {
  redis().SetDatabases(2).Handle("STATE", 1, [](const RedisRequest& request) {
    RedisPeer& peer = request.peer();
    if (peer.data() == nullptr) peer.data() = std::make_shared<int>(0);
    const int calls = ++*static_cast<int*>(peer.data().get());
    return RedisReply::OfString(
        peer.name() + " " + std::to_string(peer.database()) + " " +
        (peer.resp3() ? "3 " : "2 ") + std::to_string(calls) +
        (peer.endpoint().empty() ? " nowhere" : ""));
  });
  StartRedis();
  EXPECT_EQ(
      Answer(Encoded({"STATE"}) + Encoded({"CLIENT", "SETNAME", "me"}) +
             Encoded({"SELECT", "1"}) + Encoded({"SELECT", "2"}) +
             Encoded({"SELECT", "x"}) + Encoded({"STATE"}) +
             Encoded({"CLIENT", "GETNAME"}) +
             Encoded({"CLIENT", "SETINFO", "LIB-NAME", "x"}) +
             Encoded({"CLIENT", "KILL"})),
      "$6\r\n 0 2 1\r\n+OK\r\n+OK\r\n-ERR DB index is out of range\r\n"
      "-ERR value is not an integer or out of range\r\n$8\r\nme 1 2 2\r\n"
      "$2\r\nme\r\n+OK\r\n"
      "-ERR unknown subcommand or wrong number of arguments for 'KILL'\r\n");
  EXPECT_THAT(
      Answer(Encoded({"HELLO", "3", "SETNAME", "x"}) + Encoded({"STATE"})),
      HasSubstr("$7\r\nx 0 3 1\r\n"));
  EXPECT_EQ(Answer(Encoded({"HELLO", "4"})),
            "-NOPROTO unsupported protocol version\r\n");
  EXPECT_NE(Answer(Encoded({"CLIENT", "ID"})),
            Answer(Encoded({"CLIENT", "ID"})));
}

// As Redis with a default user without a password: libraries that have one by
// their configuration show it.
TEST_F(RedisServerTest, TakesAnyPasswordIfItAsksForNone) {
  StartRedis();
  constexpr char kWrong[] =
      "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
  EXPECT_EQ(Answer("AUTH a\nAUTH default a\nAUTH ann a\nHELLO 3 AUTH ann a\n"),
            "-ERR AUTH called, but this server asks for no password\r\n"
            "+OK\r\n" +
                ""s + kWrong + kWrong);
  RedisClientOptions options;
  options.resp3 = true;
  options.password = "any";
  EXPECT_EQ(Do(Open("redis", options), {"PING"}), "PONG");
}

TEST_F(RedisServerTest, DescribesItsCommands) {
  redis().Handle("PING", 1, [](const RedisRequest&) {
    return RedisReply::OfStatus("mine");
  });
  StartRedis();
  const RedisClient client = Open();
  EXPECT_EQ(Do(client, {"PING"}), "mine");
  const auto names = client.Execute({"COMMAND", "LIST"});
  EXPECT_EQ(names->ToString(),
            "[\"add\", \"auth\", \"client\", \"command\", \"count\", \"echo\", "
            "\"hello\", \"info\", \"ping\", \"quit\", \"reset\", \"select\", "
            "\"wait\"]");
  EXPECT_EQ(Do(client, {"COMMAND", "COUNT"}), "13");
  EXPECT_EQ(client.Execute({"COMMAND"})->size(), 13u);
  EXPECT_EQ(Do(client, {"COMMAND", "INFO", "count", "none"}),
            "[[\"count\", 1, [], 0, 0, 0, [], [], [], []], nil]");
}

// ioredis sends nothing else before that has an answer.
TEST_F(RedisServerTest, DescribesItself) {
  StartRedis();
  const auto info = Open().Execute({"INFO", "replication"});
  ASSERT_EQ(info->kind(), Kind::kString);
  EXPECT_THAT(info->text(), HasSubstr("\r\nredis_version:7.2.0\r\n"));
  EXPECT_THAT(info->text(), HasSubstr("\r\nrole:master\r\n"));
}

// Answers to short words stay short.
TEST_F(RedisServerTest, LimitsWhatItRepeatsAndDescribes) {
  StartRedis();
  RedisCommand unknown{"NONE"};
  RedisCommand info{"COMMAND", "INFO"};
  for (int i = 0; i != 1025; ++i) {
    unknown.Add("");
    info.Add("get");
  }
  EXPECT_LT(Answer(Encoded(unknown)).size(), 300u);
  EXPECT_EQ(Answer(Encoded(info)), "-ERR too many names\r\n");
}

TEST_F(RedisServerTest, RunsTransactionsWithinTheirGuard) {
  std::atomic<int> guarded{0};
  bool run_them = true;
  redis()
      .AllowTransactions([&](const std::function<void()>& run) {
        guarded.fetch_add(1);
        if (run_them) run();
      })
      .Handle("INSIDE", 1, [](const RedisRequest& request) {
        return RedisReply::OfBoolean(request.in_transaction());
      });
  StartRedis();
  const RedisClient client = Open();
  EXPECT_EQ(Do(client, {"INSIDE"}), "0");
  EXPECT_EQ(client.Transact({{"COUNT"}, {"INSIDE"}, {"ECHO", "a"}})->ToString(),
            "[1, 1, \"a\"]");
  EXPECT_EQ(guarded.load(), 1);
  EXPECT_EQ(Answer("EXEC\nDISCARD\nMULTI\nMULTI\nCOUNT\nDISCARD\nMULTI\nNO\n"
                   "COUNT\nEXEC\nEXEC\nMULTI\nEXEC\n"),
            "-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n+OK\r\n"
            "-ERR MULTI calls can not be nested\r\n+QUEUED\r\n+OK\r\n+OK\r\n"
            "-ERR unknown command 'NO', with args beginning with: \r\n"
            "+QUEUED\r\n-EXECABORT Transaction discarded because of previous "
            "errors.\r\n-ERR EXEC without MULTI\r\n+OK\r\n*0\r\n");
  EXPECT_EQ(count_.load(), 1);
  run_them = false;
  EXPECT_EQ(Answer("MULTI\nCOUNT\nEXEC\n"), "+OK\r\n+QUEUED\r\n*-1\r\n");
}

TEST_F(RedisServerTest, LimitsTransactions) {
  server_options().maximum_packet_size = 1000;
  redis().AllowTransactions([](auto& run) { run(); });
  StartRedis();
  std::string commands = "MULTI\n";
  for (int i = 0; i != 30; ++i) commands += "ECHO a\n";
  EXPECT_THAT(Answer(commands + "EXEC\n"),
              AllOf(HasSubstr("-ERR the transaction is too large\r\n"),
                    HasSubstr("-EXECABORT")));
}

TEST_F(RedisServerTest, LimitsRepliesOfTransactions) {
  redis()
      .AllowTransactions([](auto& run) { run(); })
      .Handle("LARGE", 1, [this](const RedisRequest&) {
        count_.fetch_add(1);
        return RedisReply::OfString(std::string(20 << 20, 'a'));
      });
  StartRedis();
  const auto replies = Open().Transact({{"LARGE"}, {"LARGE"}, {"COUNT"}});
  ASSERT_EQ(replies->size(), 3u);
  EXPECT_EQ((*replies)[0].text().size(), std::size_t{20} << 20);
  EXPECT_EQ((*replies)[1].text(),
            "ERR the command ran, but the replies are too large");
  EXPECT_EQ((*replies)[2].integer(), 3);
}

// ... and a connection whose replies are too much for the server is closed.
TEST_F(RedisServerTest, CountsRepliesOfTransactions) {
  server_options().max_buffered_bytes = 4'000'000;
  redis()
      .AllowTransactions([](auto& run) { run(); })
      .Handle("LARGE", 2, [](const RedisRequest& request) {
        const auto size = TryParse<std::size_t>(request[1]).value_or(0);
        return RedisReply::OfString(std::string(size, 'a'));
      });
  StartRedis();
  const auto held = [this] { return server().statistics().buffered_bytes; };
  RawClient client(endpoint());
  client.Send("MULTI\nLARGE 300000\nWAIT\nEXEC\n");
  ASSERT_TRUE(Waits(1));
  EXPECT_GE(held(), 262'144u);  // In steps of 64 KiB.
  RawClient greedy(endpoint());
  greedy.Send("MULTI\nLARGE 5000000\nWAIT\nEXEC\n");
  ASSERT_TRUE(Waits(2));
  EXPECT_TRUE(Eventually(
      [this] { return server().statistics().connections_open == 1; }));
  go_.Set();
  const std::string replies = "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$300000\r\n" +
                              std::string(300'000, 'a') + "\r\n+WAITED\r\n";
  EXPECT_EQ(client.ReadExactly(replies.size()), replies);
  EXPECT_TRUE(Eventually([&] { return held() < 65'536; })) << held();
}

// Memory that a client makes its connection keep counts as the server's.
TEST_F(RedisServerTest, CountsTransactions) {
  server_options().max_buffered_bytes = 1 << 20;
  redis().AllowTransactions([](auto& run) { run(); });
  StartRedis();
  const auto held = [this] { return server().statistics().buffered_bytes; };
  RawClient client(endpoint());
  client.Send("MULTI\n" + Encoded({"ECHO", std::string(100'000, 'a')}));
  EXPECT_EQ(client.ReadExactly(14), "+OK\r\n+QUEUED\r\n");
  EXPECT_TRUE(Eventually([&] { return held() >= 65'536; })) << held();
  client.Send("DISCARD\n");
  EXPECT_EQ(client.ReadExactly(5), "+OK\r\n");
  EXPECT_TRUE(Eventually([&] { return held() < 65'536; })) << held();
}

TEST_F(RedisServerTest, CountsItsHandlers) {
  redis()
      .Handle("TRY", 2,
              [](const RedisRequest& request) {
                if (request[1] == "throw") throw std::runtime_error("broken");
                return request[1] == "fail" ? RedisReply::OfError("ERR no")
                                            : RedisReply();
              })
      .HandleOthers([](const RedisRequest&) { return RedisReply(); });
  StartRedis();
  // Other tests of the process have counted, too.
  const auto before = RedisCommandCounters::Read();
  Answer("TRY a\nTRY throw\nTRY b\nTRY fail\nTRY\nTRIED\nECHO a\nTRY c\n");
  auto after = RedisCommandCounters::Read();
  const auto added = [&](const std::string& command, int outcome) {
    return after[command].counts[outcome] -
           CallCells::Values(before.at(command)).counts[outcome];
  };
  EXPECT_EQ(added("TRY", RedisCommandCounters::kOk), 3u);
  EXPECT_EQ(added("TRY", RedisCommandCounters::kError), 2u);
  EXPECT_EQ(added("(other)", RedisCommandCounters::kOk), 1u);
  EXPECT_EQ(after.count("ECHO"), 0u);
  EXPECT_THAT(
      Answer("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
      HasSubstr(
          "flare_server_redis_commands_total{command=\"TRY\","
          "outcome=\"error\"} " +
          std::to_string(after["TRY"].counts[RedisCommandCounters::kError])));
}

// A connection's data goes before the server's end.
TEST_F(RedisServerTest, DropsTheDataOfAConnectionBeforeJoinReturns) {
  std::atomic<int> dropped{0};
  redis().Handle("KEEP", 1, [&](const RedisRequest& request) {
    request.peer().data() = std::shared_ptr<void>(&dropped, [](void* count) {
      ++*static_cast<std::atomic<int>*>(count);
    });
    return RedisReply::OfStatus("OK");
  });
  StartRedis();
  RawClient client(endpoint());
  client.Send("KEEP\n");
  EXPECT_EQ(client.ReadExactly(5), "+OK\r\n");
  EXPECT_EQ(dropped.load(), 0);
  client.Close();
  StopServer();
  EXPECT_EQ(dropped.load(), 1);
}

TEST_F(RedisServerTest, WithoutAGuardThereAreNoTransactions) {
  StartRedis();
  EXPECT_THAT(Answer("MULTI\n"), StartsWith("-ERR unknown command 'MULTI'"));
}

TEST_F(RedisServerTest, HandlesOthers) {
  redis().HandleOthers([](const RedisRequest& request) {
    return RedisReply::OfString(std::string(request.name()) + "?");
  });
  StartRedis();
  EXPECT_EQ(Answer("Any thing\nMULTI\nPING\n"),
            "$4\r\nAny?\r\n$6\r\nMULTI?\r\n+PONG\r\n");
}

TEST_F(RedisServerTest, RefusesCommandsWhileOverloaded) {
  server_options().max_concurrent_requests = 1;
  StartRedis();
  RawClient client(endpoint());
  client.Send(Encoded({"WAIT"}));
  ASSERT_TRUE(Waits(1));
  RawClient other(endpoint());
  other.Send(Encoded({"COUNT"}) + Encoded({"COUNT"}));
  const std::string refused = "-ERR Server overloaded.\r\n";
  EXPECT_EQ(other.ReadExactly(2 * refused.size()), refused + refused);
  go_.Set();
  EXPECT_EQ(client.ReadExactly(9), "+WAITED\r\n");
  // The place is free before the reply is sent.
  other.Send(Encoded({"COUNT"}));
  EXPECT_EQ(other.ReadExactly(4), ":1\r\n");
}

// Commands behind such a one count on it.
TEST_F(RedisServerTest, ClosesBehindRefusedChangesOfTheConnection) {
  server_options().max_concurrent_requests = 1;
  redis().AllowTransactions([](auto& run) { run(); });
  StartRedis();
  RawClient client(endpoint());
  client.Send("WAIT\n");
  ASSERT_TRUE(Waits(1));
  RawClient others[] = {RawClient(endpoint()), RawClient(endpoint()),
                        RawClient(endpoint())};
  const std::string_view commands[] = {"multi\nCOUNT\n", "COUNT\nSELECT 1\n",
                                       "COUNT\nhello 3\n"};
  const std::string refused = "-ERR Server overloaded.\r\n";
  for (int i = 0; i != 3; ++i) {
    others[i].Send(commands[i]);
    EXPECT_EQ(others[i].ReadExactly(2 * refused.size()), refused + refused);
  }
  go_.Set();
  EXPECT_EQ(client.ReadExactly(9), "+WAITED\r\n");
  for (RawClient& other : others) {
    other.Send("COUNT\nEXEC\n");
    EXPECT_EQ(other.ReadAll(), "");
  }
  EXPECT_EQ(count_.load(), 0);
}

TEST_F(RedisServerTest, ARefusedTransactionIsNotRunInPart) {
  server_options().max_concurrent_requests = 1;
  redis().AllowTransactions([](auto& run) { run(); });
  StartRedis();
  RawClient other(endpoint());
  other.Send("MULTI\nCOUNT\n");
  EXPECT_EQ(other.ReadExactly(14), "+OK\r\n+QUEUED\r\n");
  RawClient client(endpoint());
  client.Send(Encoded({"WAIT"}));
  ASSERT_TRUE(Waits(1));
  other.Send("COUNT\n");
  EXPECT_EQ(other.ReadAll(), "-ERR Server overloaded.\r\n");
  go_.Set();
  EXPECT_EQ(client.ReadExactly(9), "+WAITED\r\n");
}

// The handlers wait for room, not for ever.
TEST_F(RedisServerTest, GivesUpPeersThatTakeNoReplies) {
  server_options().max_output_per_connection = 64 << 10;
  server_options().output_timeout = 50ms;
  redis().Handle("LARGE", 1, [this](const RedisRequest&) {
    count_.fetch_add(1);
    return RedisReply::OfString(std::string(1 << 20, 'a'));
  });
  StartRedis();
  RawClient client(endpoint());
  std::string commands;
  for (int i = 0; i != 200; ++i) commands += "LARGE\n";
  client.Send(commands);
  EXPECT_TRUE(Eventually(
      [this] { return server().statistics().connections_open == 0; }));
  EXPECT_LT(count_.load(), 100);
}

TEST_F(RedisServerTest, WaitsForSlowReaders) {
  server_options().max_output_per_connection = 64 << 10;
  redis().Handle("LARGE", 1, [](const RedisRequest&) {
    return RedisReply::OfString(std::string(1 << 20, 'a'));
  });
  StartRedis();
  RawClient client(endpoint());
  std::string commands;
  for (int i = 0; i != 20; ++i) commands += "LARGE\n";
  client.Send(commands);
  const std::string reply = "$1048576\r\n" + std::string(1 << 20, 'a') + "\r\n";
  for (int i = 0; i != 20; ++i) {
    ASSERT_EQ(client.ReadExactly(reply.size()), reply) << i;
  }
}

TEST_F(RedisServerTest, AnswersReceivedCommandsAtAStop) {
  StartRedis();
  RawClient idle(endpoint());
  idle.Send("PING\n");
  EXPECT_EQ(idle.ReadExactly(7), "+PONG\r\n");
  RawClient client(endpoint());
  client.Send(Encoded({"WAIT"}));
  ASSERT_TRUE(Waits(1));
  // One has arrived while the first one runs.
  client.Send(Encoded({"COUNT"}));
  server().Stop();
  EXPECT_TRUE(idle.AtEnd());
  go_.Set();
  EXPECT_EQ(client.ReadAll(), "+WAITED\r\n:1\r\n");
  idle.Close();
  client.Close();
  EXPECT_EQ(server().Join(), 0u);
}

TEST_F(RedisServerTest, StopsHandlersThatWait) {
  server_options().drain_timeout = 50ms;
  std::atomic<fiber::StopCause> cause{};
  redis().Handle("STAY", 1, [&](const RedisRequest&) {
    fiber::ExecutionContext* const context = fiber::ExecutionContext::Current();
    const std::stop_token stop = context->stop_token();
    waits_.fetch_add(1);
    static_cast<void>(go_.Wait(stop));
    cause = context->stop_cause();
    return RedisReply();
  });
  StartRedis();
  {
    RawClient client(endpoint());
    client.Send("STAY\n");
    ASSERT_TRUE(Waits(1));
  }
  EXPECT_TRUE(
      Eventually([&] { return cause == fiber::StopCause::kCallerGone; }));
  RawClient client(endpoint());
  client.Send("STAY\n");
  ASSERT_TRUE(Waits(2));
  server().Stop();
  server().Join();
  EXPECT_TRUE(
      Eventually([&] { return cause == fiber::StopCause::kShuttingDown; }));
}

TEST_F(RedisServerTest, HandlersMayOutliveTheirClients) {
  StartRedis();
  {
    RawClient client(endpoint());
    client.Send(Encoded({"WAIT"}) + Encoded({"COUNT"}) + "*1\r\n$4\r\nPI");
    ASSERT_TRUE(Waits(1));
  }
  go_.Set();
  EXPECT_TRUE(Eventually(
      [this] { return server().statistics().connections_open == 0; }));
}

TEST_F(RedisServerTest, SpeaksTls) {
  std::string folder = "/tmp/flare_redis_server_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  io::testing::MakeTlsCertificate(folder);
  server_options().tls = TlsServerOptions{
      .certificates = {{folder + "/certificate", folder + "/key"}}};
  StartRedis();
  RedisClientOptions options;
  options.tls.insecure_skip_verify = true;
  EXPECT_EQ(Do(Open("rediss", options), {"ADD", "a"}), "\"a\"");
  std::filesystem::remove_all(folder);
}

TEST_F(RedisServerTest, SaysWhatIsWrongWithAService) {
  const auto handler = [](const RedisRequest&) { return RedisReply(); };
  const struct {
    RedisService service;
    std::string_view error;
  } cases[] = {
      {std::move(
           RedisService().Handle("a", 1, handler).Handle("A", 1, handler)),
       "the Redis command \"A\" has a handler already"},
      {std::move(RedisService().Handle("exec", 1, handler)),
       "is answered by the library itself"},
      {std::move(RedisService().Handle("", 1, handler)),
       "needs a name of 1 to 32"},
      {std::move(RedisService().Handle("a b", 1, handler)),
       "needs a name of 1 to 32"},
      {std::move(RedisService().Handle("a", 1, nullptr)), "an empty handler"},
      {std::move(RedisService().SetDatabases(0)), "at least one database"},
      {std::move(RedisService().RequireAuth(nullptr)), "an empty function"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(c.service.error().message(), HasSubstr(c.error));
  }
  EXPECT_FALSE(
      server().AddRedisService(std::move(RedisService().SetDatabases(0))));
  EXPECT_FALSE(server().Start());
}

TEST_F(RedisServerTest, AServerHasOneService) {
  EXPECT_TRUE(server().AddRedisService(RedisService()));
  EXPECT_FALSE(server().AddRedisService(RedisService()));
}

TEST(RedisServiceTest, HandlersAreTestedWithoutAServer) {
  RedisPeer peer;
  const std::vector<std::string_view> words = {"GET", "key"};
  const RedisRequest request(words, &peer);
  EXPECT_EQ(request.name(), "GET");
  EXPECT_EQ(request[1], "key");
  EXPECT_TRUE(request.peer().endpoint().empty());
  EXPECT_EQ(request.peer().identity(), nullptr);
}

}  // namespace
}  // namespace flare::rpc

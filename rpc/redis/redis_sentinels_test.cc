#include "flare/rpc/redis/redis_sentinels.h"

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/redis_fixture.h"
#include "flare/rpc/testing/scripted_redis_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using testing::ErrorOf;
using testing::PatientRedisOptions;
using testing::RawPeer;
using testing::RawServer;
using testing::RedisProcess;
using testing::Said;

constexpr std::string_view kQuestion =
    "*3\r\n$8\r\nSENTINEL\r\n$23\r\nGET-MASTER-ADDR-BY-NAME\r\n$2\r\nmy\r\n";
constexpr std::string_view kRole = "*1\r\n$4\r\nROLE\r\n";
constexpr std::string_view kIsMaster = "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
constexpr std::string_view kIsReplica =
    "*5\r\n$5\r\nslave\r\n$1\r\nx\r\n:1\r\n+x\r\n:0\r\n";
constexpr std::string_view kSet = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n";

// --- scripted servers --------------------------------------------------------

class RedisSentinelsTest : public testing::ScriptedRedisTest {
 protected:
  // The name of the master is "my".
  void Open(const std::string& sentinels,
            const RedisClientOptions& options = PatientRedisOptions()) {
    ScriptedRedisTest::Open("redis-sentinel://" + sentinels + "#my", options);
  }

  Future<RedisClient::Result> Set() { return Do({"SET", "k", "v"}); }

  static std::string AddressOf(const RawServer& server) {
    return server.endpoint().ToString();
  }
  // A sentinel's reply that names this master.
  static std::string Naming(const RawServer& master) {
    const std::string address = AddressOf(master);
    const std::string port = address.substr(address.rfind(':') + 1);
    return "*2\r\n$9\r\n127.0.0.1\r\n$" + std::to_string(port.size()) + "\r\n" +
           port + "\r\n";
  }
  // The sentinel is asked, and left.
  using ScriptedRedisTest::Answer;
  static void Answer(RawServer* sentinel, std::string_view reply) {
    const auto asked = sentinel->Accept();
    Answer(asked.get(), kQuestion, reply);
    EXPECT_TRUE(asked->AtEnd());
  }
  // The command gets through to the master.
  static std::unique_ptr<RawPeer> ExpectSetAt(RawServer* master,
                                              Future<RedisClient::Result> set) {
    auto peer = master->Accept();
    Answer(peer.get(), kRole, kIsMaster);
    Answer(peer.get(), kSet, "+OK\r\n");
    EXPECT_EQ(Said(std::move(set)), "OK");
    return peer;
  }
  // A client of a_, by the sentinel.
  std::unique_ptr<RawPeer> Connect() {
    Open(AddressOf(sentinel_));
    auto set = Set();
    Answer(&sentinel_, Naming(a_));
    return ExpectSetAt(&a_, std::move(set));
  }
  // The connection breaks, and the client has noticed.
  void Lose(RawPeer* peer) {
    auto lost = Set();
    peer->ReadExactly(kSet.size());
    peer->Close();
    EXPECT_EQ(ErrorOf(std::move(lost)).code(), REDIS_CONNECTION_LOST);
  }
  // The sentinel is asked again, and names b_ now.
  void ExpectNextSetAtB() {
    auto set = Set();
    Answer(&sentinel_, Naming(b_));
    ExpectSetAt(&b_, std::move(set));
  }

  RawServer sentinel_;
  RawServer a_;
  RawServer b_;
};

TEST_F(RedisSentinelsTest, AreAskedAgainWhenTheMasterIsLost) {
  auto a = Connect();
  Lose(a.get());
  ExpectNextSetAtB();
}

TEST_F(RedisSentinelsTest, AreAskedAgainWhenTheMasterIsNoneAnyMore) {
  auto a = Connect();
  auto refused = Set();
  Answer(a.get(), kSet, "-READONLY You can't write against a read only\r\n");
  EXPECT_TRUE(Said(std::move(refused)).starts_with("error: READONLY "));
  EXPECT_TRUE(a->AtEnd());
  ExpectNextSetAtB();
}

TEST_F(RedisSentinelsTest, AreDoubtedWhenTheMasterIsNone) {
  RawServer other;
  Open(AddressOf(sentinel_) + ',' + AddressOf(other));
  auto set = Set();
  Answer(&sentinel_, Naming(a_));
  auto a = a_.Accept();
  Answer(a.get(), kRole, kIsReplica);
  const auto error = ErrorOf(std::move(set));
  EXPECT_EQ(error.code(), REDIS_FAIL_TO_CONNECT) << error.ToString();
  EXPECT_TRUE(error.message().ends_with(
      "#my: the master, " + AddressOf(a_) +
      ": it isn't a master, though a sentinel says so"))
      << error.ToString();
  EXPECT_TRUE(a->AtEnd());

  set = Set();
  Answer(&other, Naming(b_));
  ExpectSetAt(&b_, std::move(set));
  EXPECT_FALSE(sentinel_.HasVisitor());
}

TEST_F(RedisSentinelsTest, LetSessionsKeepTheirServer) {
  auto a = Connect();
  auto made = fiber::Async([&] { return client_.Dedicate(); });
  Answer(&sentinel_, Naming(a_));
  auto own = a_.Accept();
  Answer(own.get(), kRole, "-NOPERM this user has no permissions\r\n");
  auto session = fiber::BlockingGet(std::move(made));
  ASSERT_TRUE(session) << session.error().ToString();
  for (int i = 0; i != 2; ++i) {
    auto set = fiber::Async([&] {
      return session->Execute({"SET", "k", "v"});
    });
    Answer(own.get(), kSet, "-READONLY no\r\n");
    EXPECT_EQ(Said(std::move(set)), "error: READONLY no");
  }
  EXPECT_FALSE(a->HasInput());
}

TEST_F(RedisSentinelsTest, AreAskedOneAfterTheOther) {
  testing::DeadAddress dead;
  RawServer ignorant;
  Open(dead.endpoint().ToString() + ',' + AddressOf(ignorant) + ',' +
       AddressOf(sentinel_));
  auto set = Set();
  Answer(&ignorant, "*-1\r\n");
  Answer(&sentinel_, Naming(a_));
  auto a = ExpectSetAt(&a_, std::move(set));
  // The one that has answered is asked first.
  Lose(a.get());
  ExpectNextSetAtB();
  EXPECT_FALSE(ignorant.HasVisitor());
}

TEST_F(RedisSentinelsTest, HaveAPasswordOfTheirOwn) {
  auto options = PatientRedisOptions();
  options.sentinel_password = "low";
  Open(":high@" + AddressOf(sentinel_) + "/3", options);
  auto set = Set();
  auto asked = sentinel_.Accept();
  Answer(asked.get(), "*2\r\n$4\r\nAUTH\r\n$3\r\nlow\r\n", "+OK\r\n");
  Answer(asked.get(), kQuestion, Naming(a_));
  auto a = a_.Accept();
  Answer(a.get(),
         "*2\r\n$4\r\nAUTH\r\n$4\r\nhigh\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n" +
             std::string(kRole),
         "+OK\r\n+OK\r\n" + std::string(kIsMaster));
  Answer(a.get(), kSet, "+OK\r\n");
  EXPECT_EQ(Said(std::move(set)), "OK");
}

TEST_F(RedisSentinelsTest, MayKnowNothing) {
  RawServer other;
  Open(AddressOf(sentinel_) + ',' + AddressOf(other));
  auto set = Set();
  Answer(&sentinel_, "*-1\r\n");
  Answer(&other, "-NOAUTH\r\n");
  auto error = ErrorOf(std::move(set));
  EXPECT_EQ(error.code(), REDIS_FAIL_TO_CONNECT);
  EXPECT_TRUE(error.message().ends_with(
      "#my: no sentinel names the master: redis://" + AddressOf(sentinel_) +
      "/0: it knows no master 'my'; redis://" + AddressOf(other) +
      "/0: NOAUTH"))
      << error.ToString();
  EXPECT_FALSE(RedisClient::MayHaveRun(error));
  set = Set();
  Answer(&sentinel_, "-NOAUTH\r\n");
  Answer(&other, "-NOAUTH\r\n");
  error = ErrorOf(std::move(set));
  EXPECT_EQ(error.code(), REDIS_REFUSED) << error.ToString();
}

// As a server with too many clients does.
TEST_F(RedisSentinelsTest, MayNameAMasterThatRefuses) {
  Open(AddressOf(sentinel_));
  auto set = Set();
  Answer(&sentinel_, Naming(a_));
  auto a = a_.Accept();
  Answer(a.get(), kRole, "-ERR max number of clients reached\r\n");
  const auto error = ErrorOf(std::move(set));
  EXPECT_EQ(error.code(), REDIS_REFUSED) << error.ToString();
}

// Their answers come when the time of the search is over.
TEST_F(RedisSentinelsTest, MayBeSilent) {
  testing::SilentAddress silent;
  auto options = PatientRedisOptions();
  options.connect_timeout = 10ms;
  Open(silent.endpoint().ToString() + ',' + AddressOf(sentinel_), options);
  const auto error = ErrorOf(Set());
  EXPECT_EQ(error.code(), REDIS_FAIL_TO_CONNECT) << error.ToString();
  EXPECT_FALSE(RedisClient::MayHaveRun(error));
}

// --- real servers ------------------------------------------------------------

// A master, a replica of it, and a sentinel that knows both.
class RealSentinelTest : public testing::RedisTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RedisTest::SetUp());
    if (IsSkipped()) return;
    ASSERT_NO_FATAL_FAILURE(redis_.Start({"--repl-diskless-sync-delay", "0"}));
    ASSERT_NO_FATAL_FAILURE(
        replica_.Start({"--replicaof", redis_.host(), "6379",
                        // It connects from 127.0.0.1.
                        "--replica-announce-ip", replica_.host()}));
    Await(RedisTest::Open(replica_.uri()), {"ROLE"}, "\"connected\"");
    ASSERT_NO_FATAL_FAILURE(sentinel_.Start(
        {"--sentinel"}, "sentinel monitor my " + redis_.host() +
                            " 6379 1\n"
                            "sentinel down-after-milliseconds my 1000\n"
                            "sentinel failover-timeout my 2000\n"));
    asked_ = RedisTest::Open(sentinel_.uri());
    Await(asked_, {"SENTINEL", "REPLICAS", "my"},
          "\"master-link-status\", \"ok\"");
  }

  RedisProcess replica_;
  RedisProcess sentinel_;
  RedisClient asked_;
};

TEST_F(RealSentinelTest, MakesAReplicaTheMaster) {
  RedisClient client =
      RedisTest::Open("redis-sentinel://" + sentinel_.host() + ":6379#my");
  EXPECT_EQ(Said(client.Execute({"SET", "k", "1"})), "OK");
  Await(asked_, {"SENTINEL", "FAILOVER", "my"}, "OK");
  // The old master closes its connections once it is a replica.
  Await(client, {"CLIENT", "LIST"}, "laddr=" + replica_.host());
  Await(client, {"SET", "k", "2"}, "OK");
  EXPECT_EQ(Said(RedisTest::Open(replica_.uri()).Execute({"GET", "k"})),
            "\"2\"");
}

TEST_F(RealSentinelTest, ReplacesADeadMaster) {
  RedisProcess dead;
  RedisProcess silent;
  ASSERT_NO_FATAL_FAILURE(silent.Start());
  silent.Pause();
  auto options = PatientRedisOptions();
  options.connect_timeout = 6s;  // Half of it is for the silent one.
  RedisClient client = RedisTest::Open("redis-sentinel://" + dead.host() +
                                           ":6379," + silent.host() + ":6379," +
                                           sentinel_.host() + ":6379#my",
                                       options);
  Await(client, {"SET", "k", "1"}, "OK");
  auto session = client.Dedicate();
  ASSERT_TRUE(session) << session.error().ToString();
  redis_.Kill();
  Await(client, {"SET", "k", "2"}, "OK");
  EXPECT_EQ(Said(RedisTest::Open(replica_.uri()).Execute({"GET", "k"})),
            "\"2\"");
  const auto ended = session->Execute({"PING"});
  ASSERT_FALSE(ended);
  session = client.Dedicate();
  ASSERT_TRUE(session) << session.error().ToString();
  EXPECT_TRUE(Said(session->Execute({"ROLE"})).starts_with("[\"master\""));
}

class GuardedSentinelTest : public testing::RedisTest {};

TEST_F(GuardedSentinelTest, SpeaksTlsAndTakesAPassword) {
  RedisProcess sentinel;
  const std::string host = redis_.host();
  ASSERT_NO_FATAL_FAILURE(redis_.Start({"--requirepass", "high"}));
  ASSERT_NO_FATAL_FAILURE(
      sentinel.Start({"--sentinel", "--requirepass", "low"},
                     "sentinel monitor my " + host + " 6380 1\n"));
  auto options = PatientRedisOptions();
  options.tls.insecure_skip_verify = true;
  options.sentinel_password = "low";
  options.resp3 = true;
  const std::string sentinel_host = sentinel.host();
  const std::string uri =
      "rediss-sentinel://:high@" + sentinel_host + ":6380/1#my";
  EXPECT_EQ(Said(Open(uri, options).Execute({"SET", "k", "v"})), "OK");
  options.sentinel_password = "wrong";
  const auto refused = Open(uri, options).Execute({"SET", "k", "v"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), REDIS_REFUSED) << Said(refused);
}

}  // namespace
}  // namespace flare::rpc

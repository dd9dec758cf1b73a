// Clusters whose servers do what a test says.
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
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/redis/redis_cluster.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/scripted_redis_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using testing::ErrorOf;
using testing::kPing;
using testing::RawPeer;
using testing::RawServer;
using testing::Said;

constexpr std::string_view kSlots = "*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";
constexpr std::string_view kGetFoo = "*2\r\n$3\r\nGET\r\n$3\r\nfoo\r\n";
constexpr std::string_view kGetBar = "*2\r\n$3\r\nGET\r\n$3\r\nbar\r\n";
constexpr std::string_view kReadOnly = "*1\r\n$8\r\nREADONLY\r\n";
constexpr std::string_view kAsking = "*1\r\n$6\r\nASKING\r\n";
constexpr int kSlotOfFoo = 12182;
constexpr int kSlotOfBar = 5061;

// Slots from `first` to `last` of a master, and of replicas.
struct Range {
  int first;
  int last;
  std::vector<Endpoint> servers;
};

std::string MapOf(const std::vector<Range>& ranges) {
  std::string text = "*" + std::to_string(ranges.size()) + "\r\n";
  for (const Range& range : ranges) {
    text += "*" + std::to_string(2 + range.servers.size()) +
            "\r\n:" + std::to_string(range.first) +
            "\r\n:" + std::to_string(range.last) + "\r\n";
    for (const Endpoint& server : range.servers) {
      const std::string name = server.ToString();
      const std::size_t colon = name.rfind(':');
      text += "*2\r\n$" + std::to_string(colon) + "\r\n" +
              name.substr(0, colon) + "\r\n:" + name.substr(colon + 1) + "\r\n";
    }
  }
  return text;
}

class RedisRedirectTest : public testing::ScriptedRedisTest {
 protected:
  static RedisClientOptions Options() {
    RedisClientOptions options = testing::PatientRedisOptions();
    options.min_refresh_interval = 1h;
    return options;
  }

  void Open(const RedisClientOptions& options, const std::string& seeds) {
    ScriptedRedisTest::Open("redis-cluster://" + seeds, options);
  }

  Future<RedisClient::Result> Get(const char* key) { return Do({"GET", key}); }
  static std::string AddressOf(const RawServer& server) {
    return server.endpoint().ToString();
  }

  static std::string To(const char* what, int slot, const RawServer& server) {
    return '-' + std::string(what) + ' ' + std::to_string(slot) + ' ' +
           server.endpoint().ToString() + "\r\n";
  }

  // The connection to a_, over which the map has been asked for, and "foo".
  std::unique_ptr<RawPeer> Connect(const std::vector<Range>& map,
                                   const RedisClientOptions& options) {
    Open(options, a_.endpoint().ToString());
    auto foo = Get("foo");
    auto peer = a_.Accept();
    EXPECT_EQ(peer->ReadExactly(kSlots.size()), kSlots);
    peer->Send(MapOf(map));
    Answer(peer.get(), kGetFoo, "+first\r\n");
    EXPECT_EQ(Said(std::move(foo)), "first");
    return peer;
  }
  std::unique_ptr<RawPeer> Connect(
      const RedisClientOptions& options = Options()) {
    return Connect({{0, 16383, {a_.endpoint()}}}, options);
  }

  // One of the two gets the command, and answers. Returns that one.
  static RawPeer* AnswerEither(RawPeer* one, RawPeer* other,
                               std::string_view command,
                               std::string_view reply) {
    EXPECT_TRUE(fiber::testing::Eventually(
        [&] { return one->HasInput() || other->HasInput(); }));
    RawPeer* const asked = one->HasInput() ? one : other;
    Answer(asked, command, reply);
    return asked;
  }

  RawServer a_;
  RawServer b_;
};

TEST_F(RedisRedirectTest, FollowsASlotThatHasMoved) {
  auto a = Connect();
  auto foo = Get("foo");
  Answer(a.get(), kGetFoo, To("MOVED", kSlotOfFoo, b_));
  auto b = b_.Accept();
  Answer(b.get(), kGetFoo, "+b\r\n");
  EXPECT_EQ(Said(std::move(foo)), "b");
  // The next command goes there at once, and other slots stay.
  foo = Get("foo");
  Answer(b.get(), kGetFoo, "+b\r\n");
  EXPECT_EQ(Said(std::move(foo)), "b");
  auto bar = Get("bar");
  Answer(a.get(), kGetBar, "+a\r\n");
  EXPECT_EQ(Said(std::move(bar)), "a");
  EXPECT_FALSE(a->HasInput());  // The map isn't asked for so soon.
}

TEST_F(RedisRedirectTest, CountsNoMasterWithoutSlots) {
  auto a = Connect({{kSlotOfFoo, kSlotOfFoo, {a_.endpoint()}},
                    {0, kSlotOfFoo - 1, {b_.endpoint()}}},
                   Options());
  EXPECT_EQ(client_.Masters()->size(), 2);
  auto bar = Get("bar");
  auto b = b_.Accept();
  Answer(b.get(), kGetBar, "+b\r\n");
  EXPECT_EQ(Said(std::move(bar)), "b");
  RawServer c_server;
  auto foo = Get("foo");
  Answer(a.get(), kGetFoo, To("MOVED", kSlotOfFoo, c_server));
  auto c = c_server.Accept();
  Answer(c.get(), kGetFoo, "+c\r\n");
  EXPECT_EQ(Said(std::move(foo)), "c");
  EXPECT_EQ(client_.Masters()->size(), 2);
  // Commands for any master don't go to the first one any more.
  for (int i = 0; i != 3; ++i) {
    auto ping = Do({"PING"});
    AnswerEither(b.get(), c.get(), kPing, "+PONG\r\n");
    EXPECT_EQ(Said(std::move(ping)), "PONG");
  }
  EXPECT_FALSE(a->HasInput());
}

TEST_F(RedisRedirectTest, AsksAnotherServerForOneCommand) {
  auto a = Connect();
  auto foo = Get("foo");
  Answer(a.get(), kGetFoo, To("ASK", kSlotOfFoo, b_));
  auto b = b_.Accept();
  const std::string asked = std::string(kAsking) + std::string(kGetFoo);
  Answer(b.get(), asked, "+OK\r\n+b\r\n");
  EXPECT_EQ(Said(std::move(foo)), "b");
  foo = Get("foo");
  Answer(a.get(), kGetFoo, "+a\r\n");
  EXPECT_EQ(Said(std::move(foo)), "a");
  EXPECT_FALSE(b->HasInput());
}

TEST_F(RedisRedirectTest, FollowsWithSeveralCommands) {
  auto a = Connect();
  auto all = client_.AsyncExecuteAll(
      {{"GET", "foo"}, {"GET", "bar"}, {"GET", "foo"}, {"PING"}});
  const std::string get_foo(kGetFoo);
  Answer(a.get(), get_foo + std::string(kGetBar) + get_foo,
         To("ASK", kSlotOfFoo, b_) + "+bar\r\n" + To("ASK", kSlotOfFoo, b_));
  Answer(a.get(), kPing, "+PONG\r\n");
  auto b = b_.Accept();
  const std::string asked = std::string(kAsking) + get_foo;
  Answer(b.get(), asked + asked, "+OK\r\n+1\r\n+OK\r\n-ERR 2\r\n");
  const auto replies = fiber::BlockingGet(std::move(all));
  ASSERT_TRUE(replies) << replies.error().ToString();
  EXPECT_EQ((*replies)[0].text(), "1");
  EXPECT_EQ((*replies)[1].text(), "bar");
  EXPECT_EQ((*replies)[2].ToString(), "error: ERR 2");
  EXPECT_EQ((*replies)[3].text(), "PONG");
}

TEST_F(RedisRedirectTest, FollowsWithTransactions) {
  constexpr std::string_view kTransaction =
      "*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nGET\r\n$3\r\nfoo\r\n*1\r\n$4\r\nEXEC"
      "\r\n";
  auto a = Connect();
  const auto transact = [&] {
    return fiber::Async([this] { return client_.Transact({{"GET", "foo"}}); });
  };
  auto result = transact();
  Answer(a.get(), kTransaction,
         "+OK\r\n" + To("ASK", kSlotOfFoo, b_) + "-EXECABORT\r\n");
  auto b = b_.Accept();
  Answer(b.get(), std::string(kAsking) + std::string(kTransaction),
         "+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+b\r\n");
  EXPECT_EQ(Said(std::move(result)), "[b]");
  // EXEC itself may be sent away; an error within a transaction isn't.
  result = transact();
  Answer(a.get(), kTransaction,
         "+OK\r\n+QUEUED\r\n" + To("MOVED", kSlotOfFoo, b_));
  Answer(b.get(), kTransaction,
         "+OK\r\n+QUEUED\r\n*1\r\n" + To("MOVED", kSlotOfFoo, a_));
  EXPECT_TRUE(Said(std::move(result)).starts_with("[error: MOVED "));
  // One that was torn isn't repeated.
  result = transact();
  Answer(b.get(), kTransaction, "-NOPERM\r\n+b\r\n-ERR\r\n");
  const flare::Status torn = ErrorOf(std::move(result));
  EXPECT_EQ(torn.code(), REDIS_NO_TRANSACTION);
  EXPECT_TRUE(torn.message().starts_with("redis://" + AddressOf(b_)))
      << torn.message();
  // A refusal to which no attempt is left.
  auto options = Options();
  options.max_attempts = 1;
  a = Connect(options);
  result = transact();
  Answer(a.get(), kTransaction, "+OK\r\n-CLUSTERDOWN no\r\n-EXECABORT\r\n");
  EXPECT_EQ(Said(std::move(result)), "error: EXECABORT");
}

TEST_F(RedisRedirectTest, GivesUpGoingRound) {
  auto options = Options();
  options.max_attempts = 5;
  auto a = Connect(options);
  auto foo = Get("foo");
  std::unique_ptr<RawPeer> b;
  for (int i = 0; i != 5; ++i) {
    if (i % 2 == 0) {
      Answer(a.get(), kGetFoo, To("MOVED", kSlotOfFoo, b_));
    } else {
      if (b == nullptr) b = b_.Accept();
      Answer(b.get(), kGetFoo, To("MOVED", kSlotOfFoo, a_));
    }
  }
  EXPECT_TRUE(Said(std::move(foo)).starts_with("error: MOVED "));
}

TEST_F(RedisRedirectTest, WaitsForAClusterThatIsDown) {
  auto options = Options();
  options.max_attempts = 4;
  auto a = Connect(options);
  auto foo = Get("foo");
  for (const char* refusal : {"-CLUSTERDOWN no\r\n", "-LOADING\r\n",
                              "-TRYAGAIN later\r\n", "+value\r\n"}) {
    Answer(a.get(), kGetFoo, refusal);
  }
  EXPECT_EQ(Said(std::move(foo)), "value");
  foo = Get("foo");
  for (int i = 0; i != 4; ++i) {
    Answer(a.get(), kGetFoo, "-CLUSTERDOWN no\r\n");
  }
  EXPECT_EQ(Said(std::move(foo)), "error: CLUSTERDOWN no");
}

TEST_F(RedisRedirectTest, RepeatsNothingThatMayHaveRun) {
  auto a = Connect();
  auto foo = Get("foo");
  a->ReadExactly(kGetFoo.size());
  a->Close();
  const auto lost = ErrorOf(std::move(foo));
  EXPECT_EQ(lost.code(), REDIS_CONNECTION_LOST) << lost.ToString();
  EXPECT_FALSE(a_.HasVisitor());
}

TEST_F(RedisRedirectTest, AsksForAMapWhenAServerIsGone) {
  testing::DeadAddress dead;
  auto options = Options();
  options.min_refresh_interval = 0ns;
  options.max_attempts = 1000;
  auto a = Connect(
      {{0, 9999, {dead.endpoint()}}, {10000, 16383, {a_.endpoint()}}}, options);
  auto bar = Get("bar");
  // Perhaps again, if the server is gone again before the map has come.
  std::string begin = a->ReadExactly(kSlots.size());
  do {
    EXPECT_EQ(begin, kSlots);
    a->Send(MapOf({{0, 16383, {a_.endpoint()}}}));
    begin = a->ReadExactly(kGetBar.size());
    if (begin == kGetBar) break;
    begin += a->ReadExactly(kSlots.size() - kGetBar.size());
  } while (begin == kSlots);
  a->Send("+a\r\n");
  EXPECT_EQ(Said(std::move(bar)), "a");
}

TEST_F(RedisRedirectTest, AsksForAMapOnceAtATime) {
  auto options = Options();
  options.min_refresh_interval = 0ns;
  options.max_attempts = 1;
  auto a = Connect(options);
  auto all =
      client_.AsyncExecuteAll({{"GET", "foo"}, {"GET", "foo"}, {"GET", "foo"}});
  const std::string foo(kGetFoo);
  const std::string refusal = "-CLUSTERDOWN no\r\n";
  Answer(a.get(), foo + foo + foo, refusal + refusal + refusal);
  const auto replies = fiber::BlockingGet(std::move(all));
  ASSERT_TRUE(replies) << replies.error().ToString();
  EXPECT_EQ((*replies)[2].ToString(), "error: CLUSTERDOWN no");
  EXPECT_EQ(a->ReadExactly(kSlots.size()), kSlots);
  EXPECT_FALSE(a->HasInput());
}

TEST_F(RedisRedirectTest, ClosesConnectionsOfServersThatAreGone) {
  auto options = Options();
  options.min_refresh_interval = 0ns;
  options.max_attempts = 1;
  auto a = Connect(
      {{0, 9999, {b_.endpoint()}}, {10000, 16383, {a_.endpoint()}}}, options);
  auto bar = Get("bar");
  auto b = b_.Accept();
  Answer(b.get(), kGetBar, To("MOVED", kSlotOfBar, a_));
  EXPECT_TRUE(Said(std::move(bar)).starts_with("error: MOVED "));
  // Either of the two is asked for the map.
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return a->HasInput() || b->HasInput(); }));
  Answer((a->HasInput() ? a : b).get(), kSlots,
         MapOf({{0, 16383, {a_.endpoint()}}}));
  EXPECT_TRUE(b->AtEnd());
  bar = Get("bar");
  Answer(a.get(), kGetBar, "+a\r\n");
  EXPECT_EQ(Said(std::move(bar)), "a");
}

TEST_F(RedisRedirectTest, SaysThatSomeServersHaveRunCommands) {
  testing::DeadAddress dead;
  auto options = Options();
  options.max_attempts = 2;
  auto a = Connect(
      {{0, 9999, {dead.endpoint()}}, {10000, 16383, {a_.endpoint()}}}, options);
  auto all = client_.AsyncExecuteAll({{"GET", "foo"}, {"GET", "bar"}});
  Answer(a.get(), kGetFoo, "+a\r\n");
  const auto partly = fiber::BlockingGet(std::move(all));
  ASSERT_FALSE(partly);
  EXPECT_EQ(partly.error().code(), REDIS_PARTLY_RUN)
      << partly.error().ToString();
  EXPECT_TRUE(RedisClient::MayHaveRun(partly.error()));
  // Alone it hasn't.
  const auto unsent = ErrorOf(Get("bar"));
  EXPECT_EQ(unsent.code(), REDIS_FAIL_TO_CONNECT) << unsent.ToString();
}

TEST_F(RedisRedirectTest, AsksOtherSeeds) {
  testing::DeadAddress dead;
  Open(Options(), dead.endpoint().ToString() + ',' + a_.endpoint().ToString());
  auto foo = Get("foo");
  auto a = a_.Accept();
  Answer(a.get(), kSlots, "*0\r\n");  // It knows nothing.
  Answer(a.get(), kSlots, MapOf({{0, 16383, {a_.endpoint()}}}));
  Answer(a.get(), kGetFoo, "+a\r\n");
  EXPECT_EQ(Said(std::move(foo)), "a");
  Open(Options(), dead.endpoint().ToString());
  EXPECT_EQ(ErrorOf(Get("foo")).code(), REDIS_FAIL_TO_CONNECT);
}

// For each map over another connection: the name may have another address.
TEST_F(RedisRedirectTest, AsksSeedsAgain) {
  testing::DeadAddress dead;
  auto options = Options();
  options.min_refresh_interval = 0ns;
  options.max_attempts = 1;
  Open(options, AddressOf(a_));
  auto foo = Get("foo");
  auto seed = a_.Accept();
  Answer(seed.get(), kSlots, MapOf({{0, 16383, {dead.endpoint()}}}));
  EXPECT_EQ(ErrorOf(std::move(foo)).code(), REDIS_FAIL_TO_CONNECT);
  EXPECT_TRUE(seed->AtEnd());  // The map lacks it.
  // Commands fail, and each asks for a map.
  const auto get_until = [&](const auto& condition) {
    return fiber::testing::Eventually([&] {
      EXPECT_EQ(ErrorOf(Get("foo")).code(), REDIS_FAIL_TO_CONNECT);
      return condition();
    });
  };
  for (int maps = 0; maps != 2; ++maps) {
    ASSERT_TRUE(get_until([&] { return a_.HasVisitor(); }));
    seed = a_.Accept();
    Answer(seed.get(), kSlots, "*0\r\n");
    Answer(seed.get(), kSlots, "*0\r\n");  // It is asked again.
    EXPECT_TRUE(seed->AtEnd());
  }
}

TEST_F(RedisRedirectTest, PassesOverMastersThatAreGone) {
  testing::DeadAddress dead;
  auto options = Options();
  options.max_attempts = 2;
  auto a = Connect(
      {{0, 9999, {dead.endpoint()}}, {10000, 16383, {a_.endpoint()}}}, options);
  for (int i = 0; i != 4; ++i) {
    auto ping = Do({"PING"});
    Answer(a.get(), kPing, "+PONG\r\n");
    EXPECT_EQ(Said(std::move(ping)), "PONG");
    const auto session = client_.Dedicate();
    EXPECT_TRUE(session) << session.error().ToString();
  }
  EXPECT_FALSE(client_.DedicateFor("bar"));
}

// As one without power.
TEST_F(RedisRedirectTest, PassesOverMastersThatAreSilent) {
  testing::SilentAddress silent;
  auto options = Options();
  options.max_attempts = 1;
  const std::vector<Range> map = {{0, 9999, {silent.endpoint()}},
                                  {10000, 16383, {a_.endpoint()}}};
  const auto ping_a = [&](RawPeer* a) {
    for (int i = 0; i != 4; ++i) {
      auto ping = Do({"PING"});
      Answer(a, kPing, "+PONG\r\n");
      EXPECT_EQ(Said(std::move(ping)), "PONG");
    }
  };
  // A command has tried it.
  auto a = Connect(map, options);
  EXPECT_EQ(ErrorOf(Do({"GET", "bar"}, {.timeout = 1ms})).code(),
            REDIS_TIMEOUT_UNSENT);
  ping_a(a.get());
  // A session has: each of the two is the first for one of two.
  a = Connect(map, options);
  const auto dedicate_twice = [&](std::chrono::milliseconds timeout) {
    return client_.Dedicate({.timeout = timeout}) &&
           client_.Dedicate({.timeout = timeout});
  };
  auto timeout = 1ms;
  while (!dedicate_twice(timeout) && timeout < 20s) timeout *= 2;
  EXPECT_LT(timeout, 20s);
  ping_a(a.get());
}

TEST_F(RedisRedirectTest, LeavesTimeForAnotherServer) {
  testing::SilentAddress silent;
  bool pinged = false;
  for (auto timeout = 50ms; !pinged && timeout < 20s; timeout *= 2) {
    auto a = Connect(
        {{0, 9999, {silent.endpoint()}}, {10000, 16383, {a_.endpoint()}}},
        Options());
    pinged = true;
    for (int i = 0; i != 2; ++i) {  // One begins with each.
      auto ping = Do({"PING"}, {.timeout = timeout});
      EXPECT_TRUE(fiber::testing::Eventually(
          [&] { return a->HasInput() || ping.IsReady(); }));
      if (a->HasInput()) Answer(a.get(), kPing, "+PONG\r\n");
      pinged &= ErrorOf(std::move(ping)).ok();
    }
  }
  EXPECT_TRUE(pinged);
}

TEST_F(RedisRedirectTest, LeavesNoTimeBehindTheLastAttempt) {
  auto options = Options();
  options.read_from_replicas = true;
  options.max_attempts = 1;
  bool answered = false;
  for (auto timeout = 100ms; !answered && timeout < 20s; timeout *= 2) {
    Open(options, AddressOf(a_));
    auto ping = Do({"PING"});
    auto a = a_.Accept();
    Answer(a.get(), kReadOnly, "+OK\r\n");
    Answer(a.get(), kSlots,
           MapOf({{0, 16383, {a_.endpoint(), b_.endpoint()}}}));
    Answer(a.get(), kPing, "+PONG\r\n");
    EXPECT_EQ(Said(std::move(ping)), "PONG");
    auto foo = Do({"GET", "foo"}, {.timeout = timeout});
    auto b = b_.Accept();
    EXPECT_EQ(b->ReadExactly(kReadOnly.size()), kReadOnly);
    this_fiber::SleepFor(timeout * 6 / 10);
    b->Send("+OK\r\n");
    EXPECT_TRUE(fiber::testing::Eventually(
        [&] { return b->HasInput() || foo.IsReady(); }));
    if (b->HasInput()) Answer(b.get(), kGetFoo, "+b\r\n");
    answered = ErrorOf(std::move(foo)).ok();
  }
  EXPECT_TRUE(answered);
}

TEST_F(RedisRedirectTest, TriesAnotherReplicaFirst) {
  testing::DeadAddress dead;
  auto options = Options();
  options.read_from_replicas = true;
  options.max_attempts = 2;
  Open(options, AddressOf(a_));
  auto foo = Get("foo");
  auto a = a_.Accept();
  Answer(a.get(), kReadOnly, "+OK\r\n");
  Answer(a.get(), kSlots,
         MapOf({{0, 16383, {a_.endpoint(), b_.endpoint(), dead.endpoint()}}}));
  auto b = b_.Accept();
  Answer(b.get(), kReadOnly, "+OK\r\n");
  for (int i = 0; i != 2; ++i) {  // One begins with each.
    if (i != 0) foo = Get("foo");
    Answer(b.get(), kGetFoo, "+b\r\n");
    EXPECT_EQ(Said(std::move(foo)), "b");
  }
  EXPECT_FALSE(a->HasInput());
}

TEST_F(RedisRedirectTest, PassesOverReplicasThatAreGone) {
  testing::DeadAddress dead;
  auto options = Options();
  options.read_from_replicas = true;
  options.max_attempts = 1;
  Open(options, AddressOf(a_));
  auto foo = Get("foo");
  auto a = a_.Accept();
  Answer(a.get(), kReadOnly, "+OK\r\n");
  Answer(a.get(), kSlots,
         MapOf({{0, 16383, {a_.endpoint(), b_.endpoint(), dead.endpoint()}}}));
  std::unique_ptr<RawPeer> b;
  for (int i = 0; i != 2; ++i) {  // In turn.
    ASSERT_TRUE(fiber::testing::Eventually(
        [&] { return b_.HasVisitor() || foo.IsReady(); }));
    if (b_.HasVisitor()) {
      b = b_.Accept();
      Answer(b.get(), kReadOnly, "+OK\r\n");
      Answer(b.get(), kGetFoo, "+b\r\n");
      EXPECT_EQ(Said(std::exchange(foo, Get("foo"))), "b");
    } else {
      EXPECT_EQ(ErrorOf(std::exchange(foo, Get("foo"))).code(),
                REDIS_FAIL_TO_CONNECT);
    }
  }
  ASSERT_NE(b, nullptr);
  const auto expect_b = [&] {
    Answer(b.get(), kGetFoo, "+b\r\n");
    EXPECT_EQ(Said(std::exchange(foo, Get("foo"))), "b");
  };
  for (int i = 0; i != 4; ++i) expect_b();
  // It comes back.
  RawServer c_server(&dead);
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    expect_b();
    return c_server.HasVisitor();
  }));
  auto c = c_server.Accept();
  Answer(c.get(), kReadOnly, "+OK\r\n");
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    RawPeer* const asked = AnswerEither(b.get(), c.get(), kGetFoo, "+v\r\n");
    EXPECT_EQ(Said(std::exchange(foo, Get("foo"))), "v");
    return asked == c.get();
  }));
}

TEST_F(RedisRedirectTest, ReadsFromAMasterWhoseReplicasAreGone) {
  testing::DeadAddress dead;
  auto options = Options();
  options.read_from_replicas = true;
  options.max_attempts = 1;
  Open(options, AddressOf(a_));
  auto foo = Get("foo");
  auto a = a_.Accept();
  Answer(a.get(), kReadOnly, "+OK\r\n");
  Answer(a.get(), kSlots,
         MapOf({{0, 16383, {a_.endpoint(), dead.endpoint()}}}));
  EXPECT_EQ(ErrorOf(std::move(foo)).code(), REDIS_FAIL_TO_CONNECT);
  for (int i = 0; i != 2; ++i) {
    foo = Get("foo");
    Answer(a.get(), kGetFoo, "+a\r\n");
    EXPECT_EQ(Said(std::move(foo)), "a");
  }
}

TEST_F(RedisRedirectTest, ReadsFromReplicas) {
  constexpr std::string_view kSetFoo =
      "*3\r\n$3\r\nSET\r\n$3\r\nfoo\r\n$1\r\n1\r\n";
  auto options = Options();
  options.read_from_replicas = true;
  Open(options, a_.endpoint().ToString());
  auto foo = Get("foo");
  auto a = a_.Accept();
  Answer(a.get(), kReadOnly, "+OK\r\n");
  Answer(a.get(), kSlots, MapOf({{0, 16383, {a_.endpoint(), b_.endpoint()}}}));
  auto b = b_.Accept();
  Answer(b.get(), kReadOnly, "+OK\r\n");
  Answer(b.get(), kGetFoo, "+b\r\n");
  EXPECT_EQ(Said(std::move(foo)), "b");
  auto set = client_.AsyncExecute({"SET", "foo", "1"});
  Answer(a.get(), kSetFoo, "+OK\r\n");
  EXPECT_EQ(Said(std::move(set)), "OK");
  // The master takes over for a replica that can't answer.
  foo = Get("foo");
  Answer(b.get(), kGetFoo, "-LOADING\r\n");
  Answer(a.get(), kGetFoo, "+a\r\n");
  EXPECT_EQ(Said(std::move(foo)), "a");
}

TEST_F(RedisRedirectTest, MakesSessionsWithTheServerOfAKey) {
  auto a = Connect(
      {{0, 9999, {b_.endpoint()}}, {10000, 16383, {a_.endpoint()}}}, Options());
  auto made = fiber::Async([&] { return client_.DedicateFor("bar"); });
  auto b = b_.Accept();
  auto session = fiber::BlockingGet(std::move(made));
  ASSERT_TRUE(session) << session.error().ToString();
  auto reply = fiber::Async([&] { return session->Execute({"GET", "bar"}); });
  Answer(b.get(), kGetBar, To("MOVED", kSlotOfBar, a_));
  EXPECT_TRUE(Said(std::move(reply)).starts_with("error: MOVED "));
}

TEST_F(RedisRedirectTest, EndsWithTheClientSide) {
  auto a = Connect();
  auto foo = Get("foo");
  a->ReadExactly(kGetFoo.size());
  ShutdownClientSide();
  EXPECT_TRUE(RedisClient::MayHaveRun(ErrorOf(std::move(foo))));
  EXPECT_EQ(ErrorOf(Get("foo")).code(), REDIS_SHUTDOWN);
}

}  // namespace
}  // namespace flare::rpc

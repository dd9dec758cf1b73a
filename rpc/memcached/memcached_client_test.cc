// A MemcachedClient, with servers that do what a test says, and with real ones.
#include "flare/rpc/memcached_client.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/rpc/memcached/memcached_connector.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/server_process.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using testing::RawPeer;

// Tests aren't to end by time, however busy the machine is.
MemcachedClientOptions PatientMemcached() {
  MemcachedClientOptions options;
  options.timeout = 20s;
  options.connect_timeout = 20s;
  options.max_silence = 60s;
  options.min_reconnect_delay = 0ns;
  options.max_reconnect_delay = 0ns;
  return options;
}

// The reply, or the error's code and text.
std::string SaidOf(const MemcachedClient::Result& result) {
  if (result) return result->ToString();
  return MemcachedClient::ErrorCodeToString(result.error().code()) + ": "s +
         result.error().message();
}

std::string SaidOf(Future<MemcachedClient::Result> future) {
  return SaidOf(fiber::BlockingGet(std::move(future)));
}

// --- servers that a test is
// ---------------------------------------------------

class MemcachedConnectionTest : public testing::ClientTest {
 protected:
  void Open(const MemcachedClientOptions& options = PatientMemcached()) {
    const auto opened = client_.Open(server_.endpoint().ToString(), options);
    ASSERT_TRUE(opened.ok()) << opened.ToString();
  }

  std::unique_ptr<RawPeer> Accept() {
    auto peer = AcceptWith("MN\r\n");
    AnswerStore("NF\r\n", peer.get());
    return peer;
  }
  std::unique_ptr<RawPeer> AcceptWith(std::string_view to_mn) {
    auto peer = server_.Accept();
    EXPECT_EQ(peer->ReadExactly(4), "mn\r\n");
    peer->Send(to_mn);
    return peer;
  }
  void AnswerStore(std::string_view answer, RawPeer* peer) {
    EXPECT_EQ(peer->ReadUntil("mn\r\n"),
              "ms flare 2 C18446744073709551615 MS\r\nmn\r\n");
    peer->Send(answer);
  }

  auto Get(std::string_view key, const MemcachedCallOptions& options = {}) {
    return client_.AsyncExecute(MemcachedCommand::Get(key), options);
  }

  // A command through, so that there is a connection.
  std::unique_ptr<RawPeer> Connect(
      const MemcachedClientOptions& options = PatientMemcached()) {
    Open(options);
    auto reply = Get("first");
    auto peer = Accept();
    EXPECT_EQ(peer->ReadUntil("\n"), "mg first v f c\r\n");
    peer->Send("EN\r\n");
    EXPECT_EQ(SaidOf(std::move(reply)), "not found");
    return peer;
  }

  std::string Named(std::string_view text) const {
    return "memcached " + server_.endpoint().ToString() + ": " +
           std::string(text);
  }

  testing::RawServer server_;
  MemcachedClient client_;
};

TEST_F(MemcachedConnectionTest, MatchesRepliesInOrder) {
  auto peer = Connect();
  auto all = client_.AsyncExecuteAll(
      {MemcachedCommand::Get("a"), MemcachedCommand::Set("b", "mn\r\n"),
       MemcachedCommand::Get("no key"), MemcachedCommand::Increment("c")});
  constexpr std::string_view kSent =
      "mg a v f c\r\nms b 4 c MS\r\nmn\r\n\r\nma c v c MI D1\r\n";
  EXPECT_EQ(peer->ReadExactly(kSent.size()), kSent);
  for (char c : "VA 3 f9 c8\r\nEN\r\r\nHD c10\r\nSERVER_ERROR oo"s) {
    peer->Send({&c, 1});
  }
  // The next command doesn't wait for the last reply.
  auto next = Get("d");
  EXPECT_EQ(peer->ReadUntil("\n"), "mg d v f c\r\n");
  peer->Send("ps\r\nEN\r\n");
  const auto results = fiber::BlockingGet(std::move(all));
  ASSERT_EQ(results.size(), 4u);
  ASSERT_TRUE(results[0] && results[1]);
  EXPECT_EQ(*results[0],
            (MemcachedReply{.value = "EN\r", .flags = 9, .cas = 8}));
  EXPECT_EQ(*results[1], (MemcachedReply{.cas = 10}));
  EXPECT_EQ(SaidOf(results[2]),
            "MEMCACHED_INVALID_COMMAND: the key has a space or a control "
            "character");
  EXPECT_EQ(SaidOf(results[3]),
            "MEMCACHED_SERVER_ERROR: " + Named("SERVER_ERROR oops"));
  EXPECT_TRUE(MemcachedClient::MayHaveRun(results[3].error()));
  EXPECT_EQ(SaidOf(std::move(next)), "not found");
}

TEST_F(MemcachedConnectionTest, DropsLateReplies) {
  auto peer = Connect();
  const auto late = fiber::BlockingGet(Get("late", {.timeout = 1ms}));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), MEMCACHED_TIMEOUT) << SaidOf(late);
  EXPECT_TRUE(MemcachedClient::MayHaveRun(late.error()));
  auto next = Get("next");
  EXPECT_EQ(peer->ReadUntil("next v f c\r\n"),
            "mg late v f c\r\nmg next v f c\r\n");
  peer->Send("VA 4\r\nlate\r\nVA 4\r\nnext\r\n");
  EXPECT_EQ(SaidOf(std::move(next)), "\"next\"");
  EXPECT_FALSE(server_.HasVisitor());
}

TEST_F(MemcachedConnectionTest, RepeatsNothingThatMayHaveRun) {
  auto peer = Connect();
  auto lost = Get("a");
  EXPECT_EQ(peer->ReadUntil("\n"), "mg a v f c\r\n");
  peer->Close();
  const auto result = fiber::BlockingGet(std::move(lost));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), MEMCACHED_CONNECTION_LOST);
  EXPECT_TRUE(result.error().message().ends_with("it may have run"));
  EXPECT_FALSE(server_.HasVisitor());
  // The next command connects again.
  auto next = Get("b");
  peer = Accept();
  EXPECT_EQ(peer->ReadUntil("\n"), "mg b v f c\r\n");
  peer->Send("EN\r\n");
  EXPECT_EQ(SaidOf(std::move(next)), "not found");
}

TEST_F(MemcachedConnectionTest, ClosesOnMalformedReplies) {
  auto options = PatientMemcached();
  options.max_value_size = 100;
  struct Case {
    std::string_view reply;
    std::string_view why;
  };
  for (const Case& each :
       {Case{"HTTP/1.1 400\r\n", "a reply of no known kind: \"HTTP/1.1 400\""},
        Case{"VA 101\r\n", "a value of 101 bytes, more than 100"},
        Case{"HD\r\n", "it answers another command"},
        Case{"ERROR\r\n", "the command is unknown to it: ERROR"}}) {
    auto peer = Connect(options);
    auto first = Get("a");
    EXPECT_EQ(peer->ReadUntil("\n"), "mg a v f c\r\n");
    auto behind = Get("b");
    EXPECT_EQ(peer->ReadUntil("\n"), "mg b v f c\r\n");
    peer->Send(each.reply);
    const auto malformed = fiber::BlockingGet(std::move(first));
    ASSERT_FALSE(malformed);
    EXPECT_EQ(malformed.error().code(), MEMCACHED_MALFORMED_REPLY);
    EXPECT_NE(malformed.error().message().find(each.why), std::string::npos)
        << SaidOf(malformed);
    const auto lost = fiber::BlockingGet(std::move(behind));
    ASSERT_FALSE(lost);
    EXPECT_EQ(lost.error().code(), MEMCACHED_CONNECTION_LOST);
    EXPECT_NE(lost.error().message().find(each.why), std::string::npos);
    EXPECT_TRUE(peer->AtEnd());
  }
}

TEST_F(MemcachedConnectionTest, ClosesOnRepliesThatNobodyAskedFor) {
  auto peer = Connect();
  peer->Send("ERROR Too many open connections\r\n");
  EXPECT_TRUE(peer->AtEnd());
}

// Values would be commands for a server without meta commands.
TEST_F(MemcachedConnectionTest, SendsNothingToServersWithoutMetaCommands) {
  struct Case {
    std::string_view answer;
    std::string_view error;
  };
  for (const Case& each :
       {Case{"ERROR", "REFUSED: $; it takes memcached 1.6.10 or later"},
        Case{"CLIENT_ERROR unauthenticated",
             "REFUSED: $; it takes a username and a password"},
        Case{"ERROR Too many open connections", "FAIL_TO_CONNECT: $"}}) {
    Open();
    auto refused =
        client_.AsyncExecute(MemcachedCommand::Set("a", "flush_all\r\n"));
    auto peer = AcceptWith(std::string(each.answer) + "\r\n");
    std::string error(each.error);
    error.replace(
        error.find('$'), 1,
        Named("it answers \"mn\" with \"" + std::string(each.answer) + "\""));
    EXPECT_EQ(SaidOf(std::move(refused)), "MEMCACHED_" + error);
    EXPECT_TRUE(peer->AtEnd());
  }
}

// These versions know other flags of "ms".
TEST_F(MemcachedConnectionTest, SendsNothingToFirstVersionsOfMetaCommands) {
  for (const std::string_view answer :
       {"CLIENT_ERROR invalid flag", "CLIENT_ERROR bad data chunk", "ERROR"}) {
    Open();
    auto refused =
        client_.AsyncExecute(MemcachedCommand::Set("a", "flush_all\r\n"));
    auto peer = AcceptWith("MN\r\n");
    AnswerStore(std::string(answer) + "\r\nMN\r\n", peer.get());
    EXPECT_EQ(SaidOf(std::move(refused)),
              "MEMCACHED_REFUSED: " +
                  Named("it answers \"ms flare 2 C18446744073709551615 MS\" "
                        "with \"" +
                        std::string(answer) +
                        "\"; it takes memcached 1.6.10 or later"));
    EXPECT_TRUE(peer->AtEnd());
  }
}

// Another one would store the password as a value.
TEST_F(MemcachedConnectionTest, TellsPasswordsToServersThatAskForThem) {
  auto options = PatientMemcached();
  options.username = "alice";
  options.password = "secret";
  Connect(options);
}

TEST_F(MemcachedConnectionTest, ChecksPasswords) {
  for (const auto& [username, password] :
       {std::pair("alice", ""), std::pair("", "secret"),
        std::pair("alice", "secret\r\nflush_all"), std::pair("a b", "c")}) {
    auto options = PatientMemcached();
    options.username = username;
    options.password = password;
    EXPECT_EQ(client_.Open("a", options).code(), MEMCACHED_INVALID_SERVERS);
  }
}

TEST_F(MemcachedConnectionTest, WaitsForTheFirstAttemptAfterAPause) {
  auto options = PatientMemcached();
  options.connect_timeout = 1s;
  Open(options);
  auto first = Get("a");
  server_.Accept()->Close();
  EXPECT_FALSE(fiber::BlockingGet(std::move(first)));
  this_fiber::SleepFor(1100ms);  // Longer than failures say anything.
  auto next = Get("b");
  auto peer = Accept();
  EXPECT_EQ(peer->ReadUntil("\n"), "mg b v f c\r\n");
  peer->Send("EN\r\n");
  EXPECT_EQ(SaidOf(std::move(next)), "not found");
}

TEST_F(MemcachedConnectionTest, FailsAtOnceSoonAfterAFailure) {
  auto options = PatientMemcached();
  options.min_reconnect_delay = options.max_reconnect_delay = 1h;
  Open(options);
  auto first = Get("a");
  server_.Accept()->Close();
  const auto failed = fiber::BlockingGet(std::move(first));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), MEMCACHED_FAIL_TO_CONNECT);
  EXPECT_TRUE(SaidOf(Get("a")).starts_with("MEMCACHED_FAIL_TO_CONNECT: " +
                                           Named("no attempt so soon after")));
  EXPECT_FALSE(server_.HasVisitor());
}

// A host without power answers no attempt: commands mustn't wait for each.
TEST_F(MemcachedConnectionTest, FailsAtOnceWhileItConnectsAgain) {
  Open();
  auto first = Get("a");
  server_.Accept()->Close();
  EXPECT_TRUE(
      SaidOf(std::move(first)).starts_with("MEMCACHED_FAIL_TO_CONNECT"));
  // Nobody answers yet.
  EXPECT_TRUE(SaidOf(Get("a")).starts_with(
      "MEMCACHED_FAIL_TO_CONNECT: " + Named("connecting again after this")));
  auto peer = Accept();
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    const auto sent = fiber::BlockingGet(Get("b", {.timeout = 1ms}));
    return !sent && sent.error().code() == MEMCACHED_TIMEOUT;
  }));
  EXPECT_EQ(peer->ReadUntil("\n"), "mg b v f c\r\n");
}

TEST_F(MemcachedConnectionTest, ChecksItsServers) {
  for (std::string_view list : {"", ",", "a,", "a,,b", "a:0", "a:x", "a b",
                                "unix:", "a,a", "a,A:11211", "memcached://a"}) {
    const auto opened = client_.Open(list);
    EXPECT_EQ(opened.code(), MEMCACHED_INVALID_SERVERS) << list;
  }
  EXPECT_EQ(SaidOf(client_.Get("a")),
            "MEMCACHED_INVALID_COMMAND: the client isn't open "
            "(MemcachedClient::Open)");
  EXPECT_EQ(client_.MultiGet({"a", "b"}).size(), 2u);
  EXPECT_TRUE(client_.Open("a,[::1]:1,unix:/b,10.0.0.1:11212").ok());
}

// --- real ones
// ----------------------------------------------------------------

constexpr char kMemcached[] = "/usr/bin/memcached";

class MemcachedProcess : public testing::ServerProcess {
 public:
  std::string address() const { return host() + ":11211"; }
  std::string unix_address() const { return "unix:" + folder() + "/socket"; }

  void Start() { Run({"-l", host()}, *EndpointFromString(address())); }
  // It evicts nothing.
  void StartWithMemoryThatEnds() {
    Run({"-l", host(), "-M"}, *EndpointFromString(address()));
  }
  void StartWithoutCas() {
    Run({"-l", host(), "-C"}, *EndpointFromString(address()));
  }
  void StartWithPasswords() {
    std::ofstream(folder() + "/passwords") << "alice:secret\n";
    Run({"-l", host(), "-Y", folder() + "/passwords"},
        *EndpointFromString(address()));
  }
  void StartWithTls() {
    io::testing::MakeTlsCertificate(folder());
    Run({"-l", host(), "-Z", "-o",
         "ssl_chain_cert=" + folder() + "/certificate,ssl_key=" + folder() +
             "/key"},
        *EndpointFromString(address()));
  }
  void StartOnUnixSocket() {
    Run({"-s", folder() + "/socket"}, EndpointFromUnix(folder() + "/socket"));
  }

 private:
  void Run(const std::vector<std::string>& more, const Endpoint& at) {
    // As root it wants a user to be.
    std::vector<std::string> arguments = {kMemcached, "-u", "root", "-t",
                                          "1",        "-m", "16"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_NO_FATAL_FAILURE(Spawn(std::move(arguments)));
    AwaitListening(at);
  }
};

class MemcachedClientTest : public testing::ClientTest {
 protected:
  void SetUp() override {
    if (access(kMemcached, X_OK) != 0) {
      GTEST_SKIP() << "there is no " << kMemcached << " (package memcached)";
    }
    ASSERT_NO_FATAL_FAILURE(ClientTest::SetUp());
  }
  void TearDown() override {
    if (access(kMemcached, X_OK) == 0) ClientTest::TearDown();
  }

  void Open(const std::string& servers,
            const MemcachedClientOptions& options = PatientMemcached()) {
    const auto opened = client_.Open(servers, options);
    ASSERT_TRUE(opened.ok()) << opened.ToString();
  }
  void StartAndOpen() {
    ASSERT_NO_FATAL_FAILURE(server_.Start());
    Open(server_.address());
  }

  MemcachedProcess server_;
  MemcachedClient client_;
};

TEST_F(MemcachedClientTest, StoresAndFinds) {
  StartAndOpen();
  EXPECT_EQ(SaidOf(client_.Get("k")), "not found");
  EXPECT_EQ(SaidOf(client_.Replace("k", "v")), "not stored");
  EXPECT_EQ(SaidOf(client_.Append("k", "v")), "not stored");
  EXPECT_EQ(SaidOf(client_.Touch("k", 1h)), "not found");
  EXPECT_EQ(SaidOf(client_.Delete("k")), "not found");
  EXPECT_EQ(SaidOf(client_.Add("k", "v\r\n", {.flags = 7})), "\"\"");
  EXPECT_EQ(SaidOf(client_.Add("k", "w")), "not stored");
  EXPECT_EQ(SaidOf(client_.Append("k", ">")), "\"\"");
  EXPECT_EQ(SaidOf(client_.Prepend("k", "<")), "\"\"");
  const auto found = client_.Get("k");
  ASSERT_TRUE(found) << SaidOf(found);
  EXPECT_EQ(found->value, "<v\r\n>");
  EXPECT_EQ(found->flags, 7u);
  EXPECT_NE(found->cas, 0u);
  EXPECT_EQ(SaidOf(client_.Replace("k", "")), "\"\"");
  EXPECT_EQ(SaidOf(client_.Touch("k", 40 * 24h)), "\"\"");
  EXPECT_EQ(SaidOf(client_.GetAndTouch("k", 1h)), "\"\"");
  EXPECT_EQ(SaidOf(client_.Delete("k")), "\"\"");
  EXPECT_EQ(SaidOf(client_.Get("k")), "not found");
}

TEST_F(MemcachedClientTest, ComparesBeforeItStores) {
  StartAndOpen();
  EXPECT_EQ(SaidOf(client_.Set("k", "x", {.cas = 1})), "not found");
  const auto first = client_.Set("k", "a");
  ASSERT_TRUE(first && first->ok());
  EXPECT_EQ(client_.Get("k")->cas, first->cas);
  const auto second = client_.Set("k", "b", {.cas = first->cas});
  EXPECT_TRUE(second && second->ok());
  EXPECT_EQ(SaidOf(client_.Set("k", "c", {.cas = first->cas})), "exists");
  EXPECT_EQ(SaidOf(client_.Delete("k", first->cas)), "exists");
  EXPECT_EQ(SaidOf(client_.Get("k")), "\"b\"");
  EXPECT_EQ(SaidOf(client_.Delete("k", second->cas)), "\"\"");
}

// "0" would mean to a server that it is to compare nothing.
TEST_F(MemcachedClientTest, ComparesNothingWithoutNumbers) {
  ASSERT_NO_FATAL_FAILURE(server_.StartWithoutCas());
  Open(server_.address());
  ASSERT_TRUE(client_.Set("k", "a"));
  const auto found = client_.Get("k");
  ASSERT_TRUE(found) << SaidOf(found);
  EXPECT_EQ(found->cas, 0u);
  const std::string error =
      "MEMCACHED_INVALID_COMMAND: its cas is 0: the server keeps no such "
      "numbers (its option -C)";
  EXPECT_EQ(SaidOf(client_.Set("k", "b", {.cas = found->cas})), error);
  EXPECT_EQ(SaidOf(client_.Delete("k", found->cas)), error);
}

TEST_F(MemcachedClientTest, ReadsFromAServerWithoutMemory) {
  ASSERT_NO_FATAL_FAILURE(server_.StartWithMemoryThatEnds());
  Open(server_.address());
  EXPECT_EQ(SaidOf(client_.Set("k", "a")), "\"\"");
  // All sizes, as each has pages of its own.
  for (std::size_t size : {900 << 10, 9 << 10, 900, 90, 2}) {
    const std::string value(size, 'x');
    int i = 0;
    while (client_.Set("k" + std::to_string(size) + '-' + std::to_string(i++),
                       value)) {
    }
  }
  client_ = MemcachedClient();
  Open(server_.address());
  EXPECT_EQ(SaidOf(client_.Get("k")), "\"a\"");
  EXPECT_EQ(SaidOf(client_.Set("kx", "a")),
            "MEMCACHED_SERVER_ERROR: memcached " + server_.address() +
                ": SERVER_ERROR out of memory storing object");
}

TEST_F(MemcachedClientTest, AuthenticatesItself) {
  ASSERT_NO_FATAL_FAILURE(server_.StartWithPasswords());
  auto options = PatientMemcached();
  options.username = "alice";
  options.password = "secret";
  Open(server_.address(), options);
  EXPECT_EQ(SaidOf(client_.Set("k", "a")), "\"\"");
  EXPECT_EQ(SaidOf(client_.Get("k")), "\"a\"");
  EXPECT_EQ(SaidOf(client_.Get("auth")), "not found");
  options.password = "other";
  Open(server_.address(), options);
  EXPECT_EQ(SaidOf(client_.Get("k")),
            "MEMCACHED_REFUSED: memcached " + server_.address() +
                ": it refuses the username or the password: \"CLIENT_ERROR "
                "authentication failure\"");
}

TEST_F(MemcachedClientTest, Counts) {
  StartAndOpen();
  EXPECT_EQ(SaidOf(client_.Increment("n")), "not found");
  EXPECT_EQ(client_.Increment("n", 5, {.initial = 9, .ttl = 1h})->number(), 9u);
  EXPECT_EQ(client_.Increment("n", 5)->number(), 14u);
  EXPECT_EQ(client_.Decrement("n", 5)->number(), 9u);
  EXPECT_EQ(client_.Get("n")->number(), 9u);
  EXPECT_EQ(client_.Decrement("n", 10)->number(), 0u);
  EXPECT_TRUE(client_.Set("n", "word")->ok());
  EXPECT_EQ(SaidOf(client_.Increment("n")),
            "MEMCACHED_ERROR_REPLY: memcached " + server_.address() +
                ": CLIENT_ERROR cannot increment or decrement non-numeric "
                "value");
}

TEST_F(MemcachedClientTest, KeepsInStepBehindValuesThatAreTooLarge) {
  StartAndOpen();
  const std::string large(2 << 20, 'x');
  const std::string fits(900 << 10, 'y');
  const auto results = client_.ExecuteAll(
      {MemcachedCommand::Set("k", large), MemcachedCommand::Set("f", fits),
       MemcachedCommand::Get("f"), MemcachedCommand::Get("k")});
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(SaidOf(results[0]),
            "MEMCACHED_SERVER_ERROR: memcached " + server_.address() +
                ": SERVER_ERROR object too large for cache");
  ASSERT_TRUE(results[2]) << SaidOf(results[2]);
  EXPECT_EQ(results[2]->value, fits);
  EXPECT_EQ(SaidOf(results[3]), "not found");
  auto options = PatientMemcached();
  options.max_value_size = 3;
  Open(server_.address(), options);
  EXPECT_EQ(SaidOf(client_.Set("k", "four")),
            "MEMCACHED_INVALID_COMMAND: the value is larger than "
            "max_value_size");
}

TEST_F(MemcachedClientTest, SpreadsKeysOverServers) {
  std::array<MemcachedProcess, 3> servers;
  std::vector<std::string> keys;
  for (int i = 0; i != 300; ++i) keys.push_back("key:" + std::to_string(i));
  std::string list;
  for (MemcachedProcess& server : servers) {
    ASSERT_NO_FATAL_FAILURE(server.Start());
    list += (list.empty() ? "" : ",") + server.address();
  }
  Open(list);
  for (const std::string& key : keys) {
    EXPECT_TRUE(client_.Set(key, "of " + key)->ok());
  }
  const auto all = client_.MultiGet(keys);
  ASSERT_EQ(all.size(), keys.size());
  for (std::size_t i = 0; i != keys.size(); ++i) {
    EXPECT_EQ(SaidOf(all[i]), "\"of " + keys[i] + '"');
  }
  // The keys of one that is gone have no other place.
  servers[1].Kill();
  std::size_t lost = 0;
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    lost = 0;
    for (const auto& result : client_.MultiGet(keys)) lost += !result;
    return lost != 0;
  }));
  EXPECT_LT(lost, keys.size() / 2);
  for (const auto& result : client_.MultiGet(keys)) {
    if (result) continue;
    EXPECT_NE(result.error().message().find(servers[1].address()),
              std::string::npos);
  }
  // It comes back, empty.
  ASSERT_NO_FATAL_FAILURE(servers[1].Start());
  std::size_t missed = 0;
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    missed = 0;
    for (const auto& result : client_.MultiGet(keys)) {
      missed += result && !result->ok();
    }
    return missed != 0;
  }));
  EXPECT_EQ(missed, lost);
}

TEST_F(MemcachedClientTest, SpeaksTls) {
  ASSERT_NO_FATAL_FAILURE(server_.StartWithTls());
  auto options = PatientMemcached();
  options.tls.emplace();
  Open(server_.address(), options);
  EXPECT_TRUE(
      SaidOf(client_.Get("k")).starts_with("MEMCACHED_FAIL_TO_CONNECT: "));
  options.tls->insecure_skip_verify = true;
  Open(server_.address(), options);
  EXPECT_EQ(SaidOf(client_.Set("k", std::string(100'000, 'x'))), "\"\"");
  EXPECT_EQ(client_.Get("k")->value.size(), 100'000u);
}

TEST_F(MemcachedClientTest, SpeaksOverAUnixSocket) {
  ASSERT_NO_FATAL_FAILURE(server_.StartOnUnixSocket());
  Open(server_.unix_address());
  EXPECT_EQ(SaidOf(client_.Set("k", "v")), "\"\"");
  EXPECT_EQ(SaidOf(client_.Get("k")), "\"v\"");
}

TEST_F(MemcachedClientTest, CountsRequests) {
  StartAndOpen();
  EXPECT_TRUE(client_.Set("k", "word"));
  EXPECT_TRUE(client_.Get("k"));
  EXPECT_FALSE(client_.Increment("k"));
  const auto all = MemcachedConnector::ReadCounters();
  const auto own = all.find("memcached " + server_.address());
  ASSERT_NE(own, all.end());
  EXPECT_EQ(own->second.counts.at(PIPELINE_OK), 2u);
  EXPECT_EQ(own->second.counts.at(PIPELINE_ERROR_REPLY), 1u);
  EXPECT_EQ(MemcachedClient::ErrorCodeToString(MEMCACHED_TIMEOUT),
            "MEMCACHED_TIMEOUT"s);
  EXPECT_EQ(MemcachedClient::ErrorCodeToString(1000), "MEMCACHED_UNKNOWN"s);
}

// Commands race with their time, and with the ends of their server. Each has
// its own reply, or an error.
TEST_F(MemcachedClientTest, SurvivesRaces) {
  StartAndOpen();
  std::atomic<int> running{8};
  std::atomic<int> own{0};
  std::vector<Future<>> fibers;
  for (int fiber = 0; fiber != 8; ++fiber) {
    fibers.push_back(fiber::Async([&, fiber] {
      for (int i = 0; i != 100; ++i) {
        const std::string key = std::to_string(fiber) + '/' + std::to_string(i);
        MemcachedCallOptions options;
        if (i % 4 == 0) options.timeout = 100us;
        const auto results = client_.ExecuteAll(
            {MemcachedCommand::Set(key, key), MemcachedCommand::Get(key)},
            options);
        if (!results[1] || !results[1]->ok()) continue;
        EXPECT_EQ(results[1]->value, key);
        ++own;
      }
      --running;
    }));
  }
  for (int i = 0; i != 3 && running != 0; ++i) {
    const int before = own;
    EXPECT_TRUE(fiber::testing::Eventually(
        [&] { return own > before + 20 || running == 0; }));
    server_.Kill();
    server_.Start();
  }
  for (auto& fiber : fibers) fiber::BlockingGet(std::move(fiber));
  EXPECT_GT(own, 0);
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    const auto stored = client_.Set("k", "v");
    return stored && stored->ok();
  }));
}

}  // namespace
}  // namespace flare::rpc

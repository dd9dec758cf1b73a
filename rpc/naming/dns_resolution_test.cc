#include "flare/rpc/naming/dns_resolution.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/string.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/fd.h"
#include "flare/io/resolver.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/naming/dns_query.h"
#include "flare/rpc/testing/raw_server.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kA = 1;
constexpr int kCname = 5;
constexpr int kAaaa = 28;
constexpr int kSrv = 33;

void Put16(std::string* to, int value) {
  to->push_back(static_cast<char>(value >> 8));
  to->push_back(static_cast<char>(value));
}

struct Record {
  int type;
  int ttl;
  std::string data;
};

Record A(const std::string& address, int ttl = 60) {
  in_addr bytes;
  EXPECT_EQ(inet_pton(AF_INET, address.c_str(), &bytes), 1);
  return {kA, ttl, std::string(reinterpret_cast<const char*>(&bytes), 4)};
}

Record Aaaa(const std::string& address, int ttl = 60) {
  in6_addr bytes;
  EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), &bytes), 1);
  return {kAaaa, ttl, std::string(reinterpret_cast<const char*>(&bytes), 16)};
}

std::string Encoded(const std::string& name) {
  std::string data;
  for (std::string_view label : Split(name, '.')) {
    data.push_back(static_cast<char>(label.size()));
    data.append(label);
  }
  data.push_back('\0');
  return data;
}

Record Srv(int priority, int weight, int port, const std::string& target) {
  std::string data;
  Put16(&data, priority);
  Put16(&data, weight);
  Put16(&data, port);
  return {kSrv, 60, data + Encoded(target)};
}

// Answers on 127.0.0.1 as the test says.
class DnsServer {
 public:
  DnsServer() : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_.get(), generic, length), 0);
    EXPECT_EQ(::getsockname(socket_.get(), generic, &length), 0);
    endpoint_ = Endpoint::FromSockaddr(generic, length);
    thread_ = std::thread([this] { Serve(); });
  }
  ~DnsServer() {
    // An empty datagram ends it.
    sockaddr_storage address;
    const socklen_t length = endpoint_.ToSockaddr(&address);
    EXPECT_EQ(::sendto(socket_.get(), "", 0, 0,
                       reinterpret_cast<const sockaddr*>(&address), length),
              0);
    thread_.join();
  }

  // "127.0.0.1:12345/" and a name.
  std::string operator()(const std::string& name) const {
    return endpoint_.ToString() + "/" + name;
  }

  void Set(const std::string& name, std::vector<Record> records) {
    ScopedLock guard(mutex_);
    names_[name] = std::move(records);
  }
  void Remove(const std::string& name) {
    ScopedLock guard(mutex_);
    names_.erase(name);
  }
  // It says that it has a failure; for one name and type: FailAt().
  void Fail(bool fail) {
    ScopedLock guard(mutex_);
    fail_ = fail;
  }
  void FailAt(const std::string& name, int type) {
    ScopedLock guard(mutex_);
    failing_ = {name, type};
  }

 private:
  static constexpr std::size_t kHeader = 12;

  void Serve() {
    std::array<char, 512> bytes;
    for (;;) {
      sockaddr_storage from;
      socklen_t length = sizeof(from);
      auto* const address = reinterpret_cast<sockaddr*>(&from);
      const ssize_t read = ::recvfrom(socket_.get(), bytes.data(), bytes.size(),
                                      0, address, &length);
      if (read <= static_cast<ssize_t>(kHeader)) return;
      const std::string reply =
          Reply({bytes.data(), static_cast<std::size_t>(read)});
      (void)::sendto(socket_.get(), reply.data(), reply.size(), 0, address,
                     length);
    }
  }

  std::string Reply(std::string_view query) {
    std::string name;
    std::size_t at = kHeader;
    while (query[at] != 0) {
      const auto label = static_cast<std::size_t>(query[at]);
      if (!name.empty()) name.push_back('.');
      name.append(query.substr(at + 1, label));
      at += label + 1;
    }
    const int type = query[at + 2];  // Below 256, in network order.
    const std::string_view question = query.substr(kHeader, at + 5 - kHeader);

    ScopedLock guard(mutex_);
    std::string answers;
    int count = 0;
    const auto known = names_.find(name);
    const bool fails = fail_ || failing_ == std::pair(name, type);
    if (known != names_.end() && !fails) {
      for (const Record& record : known->second) {
        if (record.type != type && record.type != kCname) continue;
        ++count;
        Put16(&answers, 0xc000 + kHeader);  // The name in the question.
        Put16(&answers, record.type);
        Put16(&answers, 1);
        Put16(&answers, 0);
        Put16(&answers, record.ttl);
        Put16(&answers, static_cast<int>(record.data.size()));
        answers += record.data;
      }
    }
    std::string reply(query.substr(0, 2));
    constexpr int kFailure = 2;
    constexpr int kNoSuchName = 3;
    Put16(&reply, 0x8580 + (fails                   ? kFailure
                            : known == names_.end() ? kNoSuchName
                                                    : 0));
    Put16(&reply, 1);
    Put16(&reply, count);
    Put16(&reply, 0);
    Put16(&reply, 0);
    return reply.append(question).append(answers);
  }

  const io::UniqueFd socket_;
  Endpoint endpoint_;
  ThreadMutex mutex_;
  std::map<std::string, std::vector<Record>> names_ FLARE_GUARDED_BY(mutex_);
  bool fail_ FLARE_GUARDED_BY(mutex_) = false;
  std::pair<std::string, int> failing_ FLARE_GUARDED_BY(mutex_);
  std::thread thread_;
};

// "address*weight" of each server.
std::vector<std::string> ServersOf(const std::vector<Peer>& peers) {
  std::vector<std::string> servers;
  for (const Peer& peer : peers) {
    servers.push_back(peer.endpoint.ToString() + "*" +
                      std::to_string(peer.weight));
  }
  std::sort(servers.begin(), servers.end());
  return servers;
}

using Servers = std::vector<std::string>;

class DnsResolutionTest : public RawServerTest {
 protected:
  void SetUp() override {
    RawServerTest::SetUp();
    OpenClientSide();  // Without channels, refreshes begin only after this.
  }
  void TearDown() override { RawServerTest::TearDown(); }

  std::shared_ptr<NameResolution> Open(const std::string& name,
                                       UpdateInterval interval = 1ms) {
    auto resolution = ResolveName("dns", dns_(name), nullptr, interval);
    EXPECT_TRUE(resolution) << resolution.error().message();
    return *resolution;
  }

  // Asks for the version, as calls do, until `done`.
  template <class F>
  static bool Eventually(NameResolution* resolution, F done) {
    return fiber::testing::Eventually([&] {
      (void)resolution->Version();
      return done();
    });
  }
  static bool EventuallyHas(NameResolution* resolution,
                            const Servers& servers) {
    return Eventually(
        resolution, [&] { return ServersOf(resolution->Peers()) == servers; });
  }
  static bool EventuallyFails(NameResolution* resolution,
                              std::string_view text) {
    return Eventually(resolution, [&] {
      return resolution->Failure().message().find(text) != std::string::npos;
    });
  }

  Expected<DnsAnswer, flare::Status> Ask(const std::string& name) {
    return AskDns(*ReadDnsQuestion(dns_(name)));
  }

  DnsServer dns_;
};

TEST_F(DnsResolutionTest, NoServerIsLostByAnAnswerThatIsAPart) {
  dns_.Set("echo.test", {A("10.0.0.1"), Aaaa("::1")});
  dns_.FailAt("echo.test", kA);
  EXPECT_EQ(Ask("echo.test:1").error().code(), EAGAIN);
  // Not all name servers know of IPv6.
  dns_.FailAt("echo.test", kAaaa);
  const auto part = Ask("echo.test:1");
  ASSERT_TRUE(part) << part.error();
  EXPECT_EQ(ServersOf(part->peers), Servers{"10.0.0.1:1*1"});
  EXPECT_EQ(part->time_to_live, 0s);
  dns_.Set("_echo._tcp.test",
           {Srv(0, 1, 1, "echo.test"), Srv(0, 1, 1, "other.test")});
  dns_.Set("other.test", {A("10.0.0.2")});
  dns_.FailAt("other.test", kA);
  EXPECT_EQ(Ask("_echo._tcp.test").error().code(), EAGAIN);
}

TEST_F(DnsResolutionTest, AllAddressesAreServers) {
  dns_.Set("echo.test",
           {A("10.0.0.1"), A("10.0.0.2"), A("10.0.0.1"), Aaaa("::1")});
  const auto resolution = Open("echo.test:5567");
  Servers expected;
  for (const Endpoint& endpoint :
       io::WithRoute({MustParseEndpoint("10.0.0.1:5567"),
                      MustParseEndpoint("10.0.0.2:5567"),
                      MustParseEndpoint("[::1]:5567")})) {
    expected.push_back(endpoint.ToString() + "*1");
  }
  EXPECT_EQ(ServersOf(resolution->Peers()), expected);
  EXPECT_EQ(resolution->Peers()[0].host, "echo.test:5567");
  EXPECT_FALSE(resolution->IsStatic());
  EXPECT_TRUE(resolution->Failure().ok());
}

TEST_F(DnsResolutionTest, ServiceRecordsHavePortsWeightsAndPriorities) {
  dns_.Set("_echo._tcp.test",
           {Srv(2, 1, 1, "later.test"), Srv(1, 30, 7, "a.test"),
            Srv(1, 0, 8, "b.test"), Srv(1, 5, 9, "gone.test")});
  dns_.Set("a.test", {A("127.0.0.1"), A("127.0.0.2")});
  dns_.Set("b.test", {A("127.0.0.3")});
  dns_.Set("later.test", {A("127.0.0.4")});
  const auto resolution = Open("_echo._tcp.test");
  EXPECT_EQ(ServersOf(resolution->Peers()),
            (Servers{"127.0.0.1:7*30", "127.0.0.2:7*30", "127.0.0.3:8*1"}));
  EXPECT_EQ(resolution->Peers()[0].host, "a.test:7");

  dns_.Set("_none._tcp.test", {Srv(0, 0, 0, "")});
  EXPECT_NE(Ask("_none._tcp.test").error().message().find("no service"),
            std::string::npos);
}

// An answer has room for thousands.
TEST_F(DnsResolutionTest, UsesTheFirst64TargetsOfAService) {
  std::vector<Record> services;
  for (int port = 1; port <= 100; ++port) {
    services.push_back(Srv(0, 0, port, "a.test"));
  }
  dns_.Set("_many._tcp.test", services);
  dns_.Set("a.test", {A("127.0.0.1")});
  const auto answer = Ask("_many._tcp.test");
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_EQ(answer->peers.size(), 64u);
  EXPECT_EQ(answer->peers[63].endpoint.port(), 64);
}

TEST_F(DnsResolutionTest, NoQueryBeginsAfterTheLimit) {
  dns_.Set("a.test", {A("127.0.0.1")});
  const DnsQuestion question = *ReadDnsQuestion(dns_("a.test:1"));
  EXPECT_TRUE(AskDns(question, std::chrono::nanoseconds::max()));
  const auto answer = AskDns(question, 0ns);
  ASSERT_FALSE(answer);
  EXPECT_NE(answer.error().message().find("DNS was too slow"),
            std::string::npos)
      << answer.error().message();
}

TEST_F(DnsResolutionTest, LivesAsLongAsTheShortestRecord) {
  dns_.Set("a.test", {A("127.0.0.1", 300), A("127.0.0.2", 20)});
  EXPECT_EQ(Ask("a.test:1")->time_to_live, 20s);
  dns_.Set("b.test", {{kCname, 7, Encoded("b.test")}, A("127.0.0.1", 300)});
  EXPECT_EQ(Ask("b.test:1")->time_to_live, 7s);
}

TEST_F(DnsResolutionTest, AnswersThatCannotBeReadAreFailures) {
  dns_.Set("a.test", {{kA, 60, "123"}});
  const auto answer = Ask("a.test:1");
  ASSERT_FALSE(answer);
  EXPECT_NE(answer.error().message().find("\"a.test\" can't be read"),
            std::string::npos)
      << answer.error().message();
  dns_.Set("_a.test", {{kSrv, 60, "12"}});
  EXPECT_NE(Ask("_a.test").error().message().find("can't be read"),
            std::string::npos);
}

TEST_F(DnsResolutionTest, KeepsServersWhileNamesFailAndFollowsChanges) {
  dns_.Set("a.test", {A("127.0.0.1")});
  const auto resolution = Open("a.test:1");
  NameResolution* const r = resolution.get();
  const Servers before = {"127.0.0.1:1*1"};
  EXPECT_EQ(ServersOf(r->Peers()), before);
  const std::uint64_t version = r->Version();
  dns_.Remove("a.test");
  ASSERT_TRUE(EventuallyFails(r, "\"a.test\": there is no such name"));
  dns_.Set("a.test", {});
  ASSERT_TRUE(EventuallyFails(r, "no record of that type"));
  dns_.Fail(true);
  ASSERT_TRUE(EventuallyFails(r,
                              "name servers fail or don't answer; see "
                              "127.0.0.1"));
  EXPECT_EQ(ServersOf(r->Peers()), before);
  EXPECT_EQ(r->Version(), version);
  dns_.Set("a.test", {A("127.0.0.3"), A("127.0.0.2")});
  dns_.Fail(false);
  ASSERT_TRUE(EventuallyHas(r, {"127.0.0.2:1*1", "127.0.0.3:1*1"}));
  EXPECT_GT(r->Version(), version);
  EXPECT_TRUE(Eventually(r, [&] { return r->Failure().ok(); }));
}

TEST_F(DnsResolutionTest, AsksAgainByTimeToLive) {
  dns_.Set("a.test", {A("127.0.0.1", 0)});  // As good as 1 second.
  const auto resolution = Open("a.test:1", /*interval=*/{});
  dns_.Set("a.test", {A("127.0.0.2", 300)});
  EXPECT_TRUE(EventuallyHas(resolution.get(), {"127.0.0.2:1*1"}));
}

TEST_F(DnsResolutionTest, ChannelOpensBeforeTheNameIsKnown) {
  RawServer server;
  RpcChannel::Options options;
  options.override_nslb = "dns+rr";
  options.name_update_interval = 1ms;
  RpcChannel channel;
  ASSERT_TRUE(channel.Open("flare://" + dns_("_echo._tcp.test"), options))
      << channel.status().message();
  std::string text;
  EXPECT_EQ(CallOnce(&channel, &text), STATUS_NO_PEER);
  EXPECT_NE(text.find("there is no such name"), std::string::npos) << text;
  dns_.Set("a.test", {A("127.0.0.1")});
  dns_.Set("_echo._tcp.test", {Srv(0, 0, server.endpoint().port(), "a.test")});
  std::unique_ptr<TestedCall> call;
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    if (call == nullptr || call->HasEnded()) {
      if (call != nullptr) call->Await();  // Before it is destroyed.
      call = std::make_unique<TestedCall>();
      call->Start(&channel);
    }
    return server.HasVisitor();
  }));
  auto peer = server.Accept();
  peer->Reply(peer->ReadRequest()->id, "pong");
  EXPECT_EQ(call->Await(), STATUS_SUCCESS) << call->controller.ErrorText();
}

TEST_F(DnsResolutionTest, ErrorsSayWhatIsWrong) {
  const std::pair<const char*, const char*> kBad[] = {
      {"echo.test", "host:port"},
      {"echo.test:0", "1..65535"},
      {"echo.test:x", "1..65535"},
      {"127.0.0.1:80", "resolver \"list\""},
      {":80", "no host name"},
      {"a test:80", "no host name"},
      {"a.test:1,b.test:2", "no host name"},
      {"dns.test/a.test:80", "\"dns.test\" is no IPv4 address"},
      {"[::1]:53/a.test:80", "is no IPv4 address"},
      {"10.0.0.1:0/a.test:80", "is no IPv4 address"},
  };
  for (const auto& [address, text] : kBad) {
    const auto resolution = ResolveName("dns", address);
    ASSERT_FALSE(resolution) << address;
    EXPECT_EQ(resolution.error().code(), STATUS_INVALID_CHANNEL);
    EXPECT_NE(resolution.error().message().find(text), std::string::npos)
        << resolution.error().message();
  }
  const auto question = ReadDnsQuestion("10.0.0.53/_a._tcp.test");
  ASSERT_TRUE(question) << question.error().message();
  EXPECT_EQ(question->name_server, MustParseEndpoint("10.0.0.53:53"));
  EXPECT_EQ(question->name, "_a._tcp.test");
  EXPECT_FALSE(question->port);
}

}  // namespace
}  // namespace flare::rpc::testing

#include "flare/base/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <unordered_set>

#include "gtest/gtest.h"

namespace flare {
namespace {

Endpoint RoundTrip(const Endpoint& endpoint) {
  sockaddr_storage storage;
  const socklen_t length = endpoint.ToSockaddr(&storage);
  return Endpoint::FromSockaddr(reinterpret_cast<const sockaddr*>(&storage),
                                length);
}

TEST(Endpoint, DefaultIsEmpty) {
  const Endpoint endpoint;
  EXPECT_TRUE(endpoint.empty());
  EXPECT_EQ(endpoint.family(), AF_UNSPEC);
  EXPECT_EQ(endpoint.ToString(), "");
  EXPECT_EQ(endpoint.port(), 0);
  EXPECT_EQ(endpoint.host(), "");
  sockaddr_storage storage;
  EXPECT_EQ(endpoint.ToSockaddr(&storage), 0u);
}

TEST(Endpoint, Ipv4) {
  Endpoint endpoint = EndpointFromIpv4("192.0.2.7", 5567);
  EXPECT_FALSE(endpoint.empty());
  EXPECT_EQ(endpoint.family(), AF_INET);
  EXPECT_EQ(endpoint.host(), "192.0.2.7");
  EXPECT_EQ(endpoint.port(), 5567);
  EXPECT_EQ(endpoint.path(), "");
  EXPECT_EQ(endpoint.ToString(), "192.0.2.7:5567");
  endpoint.set_port(1);
  EXPECT_EQ(endpoint.ToString(), "192.0.2.7:1");

  sockaddr_storage storage;
  ASSERT_EQ(endpoint.ToSockaddr(&storage), sizeof(sockaddr_in));
  sockaddr_in in;
  std::memcpy(&in, &storage, sizeof(in));
  EXPECT_EQ(in.sin_family, AF_INET);
  EXPECT_EQ(ntohs(in.sin_port), 1);
  EXPECT_EQ(ntohl(in.sin_addr.s_addr), 0xc0000207u);
  EXPECT_EQ(RoundTrip(endpoint), endpoint);
}

TEST(Endpoint, Ipv6) {
  Endpoint endpoint = EndpointFromIpv6("2001:db8::1", 80);
  EXPECT_EQ(endpoint.family(), AF_INET6);
  EXPECT_EQ(endpoint.ToString(), "[2001:db8::1]:80");
  EXPECT_EQ(RoundTrip(endpoint), endpoint);
  endpoint.set_port(81);
  EXPECT_EQ(endpoint.port(), 81);

  const Endpoint scoped = EndpointFromIpv6("fe80::1%7", 80);
  EXPECT_EQ(scoped.ToString(), "[fe80::1%7]:80");
  EXPECT_EQ(RoundTrip(scoped), scoped);
  EXPECT_NE(scoped, EndpointFromIpv6("fe80::1", 80));
  // By name: the loopback interface is always the first.
  EXPECT_EQ(EndpointFromIpv6("fe80::1%lo", 80).host(), "fe80::1%1");
}

TEST(Endpoint, UnixPath) {
  const Endpoint endpoint = EndpointFromUnix("/run/flare.sock");
  EXPECT_EQ(endpoint.family(), AF_UNIX);
  EXPECT_EQ(endpoint.path(), "/run/flare.sock");
  EXPECT_EQ(endpoint.host(), "/run/flare.sock");
  EXPECT_EQ(endpoint.ToString(), "unix:/run/flare.sock");
  EXPECT_EQ(endpoint.port(), 0);
  sockaddr_storage storage;
  EXPECT_EQ(endpoint.ToSockaddr(&storage),
            offsetof(sockaddr_un, sun_path) + endpoint.path().size() + 1);
  EXPECT_EQ(RoundTrip(endpoint), endpoint);
}

TEST(Endpoint, UnixAbstractName) {
  const Endpoint endpoint = EndpointFromUnix("@flare");
  EXPECT_EQ(endpoint.path(), std::string_view("\0flare", 6));
  EXPECT_EQ(endpoint.ToString(), "unix:@flare");
  EXPECT_EQ(endpoint, EndpointFromUnix(std::string_view("\0flare", 6)));
  EXPECT_EQ(RoundTrip(endpoint), endpoint);
  // Zero bytes count in abstract names.
  const Endpoint odd = EndpointFromUnix(std::string_view("@a\0b", 4));
  EXPECT_FALSE(odd.empty());
  EXPECT_EQ(RoundTrip(odd), odd);
}

TEST(Endpoint, UnixPathLengthIsLimited) {
  const std::string longest = "/" + std::string(106, 'x');
  const Endpoint endpoint = EndpointFromUnix(longest);
  EXPECT_EQ(RoundTrip(endpoint).path(), longest);
  EXPECT_TRUE(EndpointFromUnix(longest + "x").empty());
  EXPECT_TRUE(EndpointFromUnix("").empty());
  EXPECT_TRUE(EndpointFromUnix(std::string_view("/a\0b", 4)).empty());
}

// The kernel does without a zero byte at the end.
TEST(Endpoint, UnixAddressesMayFillTheirRoom) {
  for (const char first : {'/', '\0'}) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memset(address.sun_path, 'x', sizeof(address.sun_path));
    address.sun_path[0] = first;
    const Endpoint endpoint = Endpoint::FromSockaddr(
        reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    EXPECT_EQ(endpoint.path().size(), sizeof(address.sun_path));
    sockaddr_storage storage;
    ASSERT_EQ(endpoint.ToSockaddr(&storage), sizeof(address));
    EXPECT_EQ(std::memcmp(&storage, &address, sizeof(address)), 0);
    EXPECT_EQ(RoundTrip(endpoint), endpoint);
  }
  const std::string longest = "@" + std::string(107, 'x');
  const Endpoint abstract = EndpointFromUnix(longest);
  EXPECT_EQ(abstract.ToString(), "unix:" + longest);
  EXPECT_EQ(RoundTrip(abstract), abstract);
  EXPECT_TRUE(EndpointFromUnix(longest + "x").empty());
}

TEST(Endpoint, MalformedAddressesGiveEmptyOnes) {
  for (const char* ip : {"", "1.2.3", "1.2.3.4.5", "256.1.1.1", "::1", "host",
                         " 1.2.3.4", "1.2.3.4 "}) {
    EXPECT_TRUE(EndpointFromIpv4(ip, 1).empty()) << ip;
  }
  for (const char* ip : {"", "1.2.3.4", "[::1]", ":::", "::1%", "::1%nosuchif0",
                         "1:2:3:4:5:6:7:8:9"}) {
    EXPECT_TRUE(EndpointFromIpv6(ip, 1).empty()) << ip;
  }
  EXPECT_TRUE(EndpointFromIpv4(std::string_view("1.2.3.4\0", 8), 1).empty());
  EXPECT_TRUE(EndpointFromIpv6(std::string_view("::1\0", 4), 1).empty());
  EXPECT_TRUE(EndpointFromIpv6(std::string_view("::1%lo\0x", 8), 1).empty());
}

TEST(EndpointFromString, ReadsWhatToStringWrites) {
  for (const char* text :
       {"0.0.0.0:0", "1.2.3.4:65535", "[::]:80", "[::1]:5567", "[fe80::1%2]:1",
        "[::ffff:1.2.3.4]:9", "unix:/a b:c", "unix:@x", "unix:relative"}) {
    const auto endpoint = EndpointFromString(text);
    ASSERT_TRUE(endpoint) << endpoint.error();
    EXPECT_EQ(endpoint->ToString(), text);
    EXPECT_EQ(RoundTrip(*endpoint), *endpoint) << text;
  }
}

TEST(EndpointFromString, SaysWhatIsWrong) {
  const auto expect_error = [](std::string_view text, const char* why) {
    const auto endpoint = EndpointFromString(text);
    ASSERT_FALSE(endpoint) << text;
    EXPECT_EQ(endpoint.error().code(), EINVAL);
    EXPECT_NE(endpoint.error().message().find("\"" + std::string(text) + "\""),
              std::string::npos);
    EXPECT_NE(endpoint.error().message().find(why), std::string::npos)
        << endpoint.error();
  };
  expect_error("", "no \":port\"");
  expect_error("1.2.3.4", "no \":port\"");
  expect_error("[::1]", "no \":port\"");
  expect_error("[", "no \":port\"");
  expect_error("1.2.3.4:", "port must be a number");
  expect_error("1.2.3.4:x", "port must be a number");
  expect_error("1.2.3.4:-1", "port must be a number");
  expect_error("1.2.3.4:65536", "port must be a number");
  expect_error("example.com:80", "names are not resolved");
  expect_error("::1:80", "names are not resolved");
  expect_error("[]:80", "no IPv6 address");
  expect_error("[1.2.3.4]:80", "no IPv6 address");
  expect_error("]:80", "names are not resolved");
  expect_error("unix:", "path of 1 to 107 bytes");
  expect_error("unix:" + std::string(108, 'x'), "path of 1 to 107 bytes");
}

TEST(EndpointFromString, SurvivesRandomText) {
  std::mt19937 random(5);
  constexpr std::string_view kAlphabet = "[]:.0129a%/unix@";
  for (int i = 0; i < 100'000; ++i) {
    std::string text(random() % 12, ' ');
    for (char& c : text) c = kAlphabet[random() % kAlphabet.size()];
    const auto endpoint = EndpointFromString(text);
    if (!endpoint) continue;
    // The text may differ (zeros, upper case), the address may not.
    const auto again = EndpointFromString(endpoint->ToString());
    ASSERT_TRUE(again) << text;
    ASSERT_EQ(*again, *endpoint) << text;
  }
}

TEST(MustParseEndpoint, Parses) {
  EXPECT_EQ(MustParseEndpoint("127.0.0.1:1"), EndpointFromIpv4("127.0.0.1", 1));
  EXPECT_DEATH(static_cast<void>(MustParseEndpoint("nonsense")),
               "malformed address \"nonsense\"");
}

TEST(Endpoint, IsLoopback) {
  EXPECT_TRUE(MustParseEndpoint("127.0.0.1:1").IsLoopback());
  EXPECT_TRUE(MustParseEndpoint("127.255.0.9:1").IsLoopback());
  EXPECT_FALSE(MustParseEndpoint("128.0.0.1:1").IsLoopback());
  EXPECT_TRUE(MustParseEndpoint("[::1]:1").IsLoopback());
  EXPECT_FALSE(MustParseEndpoint("[::2]:1").IsLoopback());
  EXPECT_TRUE(MustParseEndpoint("unix:/x").IsLoopback());
  EXPECT_FALSE(Endpoint().IsLoopback());
}

TEST(Endpoint, Network) {
  const auto network = [](const char* address, unsigned ipv4, unsigned ipv6) {
    return MustParseEndpoint(address).Network(ipv4, ipv6).ToString();
  };
  EXPECT_EQ(network("1.2.3.255:80", 32, 64), "1.2.3.255:0");
  EXPECT_EQ(network("1.2.3.255:80", 25, 64), "1.2.3.128:0");
  EXPECT_EQ(network("1.2.3.255:80", 8, 64), "1.0.0.0:0");
  EXPECT_EQ(network("1.2.3.255:80", 0, 64), "0.0.0.0:0");
  EXPECT_EQ(network("[2001:db8:1:2:3:4:5:6]:80", 32, 64), "[2001:db8:1:2::]:0");
  EXPECT_EQ(network("[2001:db8:1:2ff:3:4:5:6]:80", 32, 57),
            "[2001:db8:1:280::]:0");
  EXPECT_EQ(network("[2001:db8::6]:80", 32, 128), "[2001:db8::6]:0");
  EXPECT_EQ(network("[2001:db8::6]:80", 32, 0), "[::]:0");
  EXPECT_EQ(network("[fe80::1%2]:80", 32, 64), "[fe80::%2]:0");
  // A listener of both families shows callers over IPv4 like this.
  EXPECT_EQ(network("[::ffff:1.2.3.4]:80", 32, 64), "1.2.3.4:0");
  EXPECT_EQ(network("[::ffff:1.2.3.4]:80", 24, 64), "1.2.3.0:0");
  EXPECT_EQ(network("unix:/run/x", 0, 0), "unix:/run/x");
  EXPECT_TRUE(Endpoint().Network(0, 0).empty());
}

TEST(Endpoint, EqualityAndHash) {
  std::unordered_set<Endpoint> set;
  for (const char* text : {"1.2.3.4:5", "1.2.3.4:6", "1.2.3.5:5", "[::1]:5",
                           "[::1]:6", "unix:/a", "unix:/b", "unix:@a"}) {
    EXPECT_TRUE(set.insert(MustParseEndpoint(text)).second) << text;
    EXPECT_FALSE(set.insert(MustParseEndpoint(text)).second) << text;
  }
  EXPECT_TRUE(set.insert(Endpoint()).second);
  EXPECT_EQ(set.size(), 9u);
  // Mapped IPv4 is another address than the plain one.
  EXPECT_NE(MustParseEndpoint("[::ffff:1.2.3.4]:5"),
            MustParseEndpoint("1.2.3.4:5"));
}

TEST(Endpoint, Prints) {
  std::ostringstream out;
  out << MustParseEndpoint("[::1]:5");
  EXPECT_EQ(out.str(), "[::1]:5");
}

TEST(Endpoint, FromTruncatedOrForeignSockaddr) {
  sockaddr_storage storage;
  const Endpoint endpoint = EndpointFromIpv6("::1", 1);
  const socklen_t length = endpoint.ToSockaddr(&storage);
  const auto* address = reinterpret_cast<const sockaddr*>(&storage);
  for (socklen_t shorter = 0; shorter < length; ++shorter) {
    EXPECT_TRUE(Endpoint::FromSockaddr(address, shorter).empty()) << shorter;
  }
  storage.ss_family = AF_PACKET;
  EXPECT_TRUE(Endpoint::FromSockaddr(address, sizeof(storage)).empty());
}

TEST(Endpoint, UnnamedUnixPeer) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  sockaddr_storage storage;
  socklen_t length = sizeof(storage);
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  ASSERT_EQ(getpeername(pair[0], address, &length), 0);
  const Endpoint peer = Endpoint::FromSockaddr(address, length);
  EXPECT_EQ(peer.family(), AF_UNIX);
  EXPECT_EQ(peer.path(), "");
  EXPECT_EQ(peer.ToString(), "unix:");
  close(pair[0]);
  close(pair[1]);
}

TEST(Endpoint, TheKernelUnderstandsThem) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(fd, 0);
  sockaddr_storage storage;
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  socklen_t length = MustParseEndpoint("127.0.0.1:0").ToSockaddr(&storage);
  ASSERT_EQ(bind(fd, address, length), 0) << errno;
  length = sizeof(storage);
  ASSERT_EQ(getsockname(fd, address, &length), 0);
  const Endpoint bound = Endpoint::FromSockaddr(address, length);
  EXPECT_EQ(bound.host(), "127.0.0.1");
  EXPECT_NE(bound.port(), 0);
  close(fd);
}

}  // namespace
}  // namespace flare

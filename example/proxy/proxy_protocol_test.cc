#include "example/proxy/proxy_protocol.h"

#include <cstddef>
#include <random>
#include <string>
#include <string_view>

#include "flare/base/endpoint.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::Endpoint;
using flare::MustParseEndpoint;
using Outcome = ParsedProxyHeader::Outcome;
using namespace std::literals;

constexpr std::string_view kV2 = "\r\n\r\n\0\r\nQUIT\n"sv;

struct Pair {
  Endpoint source;
  Endpoint destination;
};

const Pair kPairs[] = {
    {MustParseEndpoint("192.0.2.1:56324"), MustParseEndpoint("198.51.100.9:1")},
    {MustParseEndpoint("[2001:db8::17]:65535"), MustParseEndpoint("[::1]:443")},
    {MustParseEndpoint("unix:/run/client"), MustParseEndpoint("unix:@x")},
};

TEST(ProxyProtocolTest, VersionOneIsWrittenAsSpecified) {
  EXPECT_EQ(FormatProxyHeaderV1(kPairs[0].source, kPairs[0].destination),
            "PROXY TCP4 192.0.2.1 198.51.100.9 56324 1\r\n");
  EXPECT_EQ(FormatProxyHeaderV1(kPairs[1].source, kPairs[1].destination),
            "PROXY TCP6 2001:db8::17 ::1 65535 443\r\n");
  for (const auto& [source, destination] :
       {Pair{kPairs[2].source, kPairs[2].destination},
        Pair{kPairs[0].source, kPairs[1].destination},
        Pair{Endpoint(), Endpoint()}}) {
    EXPECT_EQ(FormatProxyHeaderV1(source, destination), "PROXY UNKNOWN\r\n");
  }
}

TEST(ProxyProtocolTest, VersionTwoIsWrittenAsSpecified) {
  EXPECT_EQ(FormatProxyHeaderV2(kPairs[0].source, kPairs[0].destination),
            std::string(kV2) +
                "\x21\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x09"
                "\xdc\x04\x00\x01"s);
  const std::string v6 =
      FormatProxyHeaderV2(kPairs[1].source, kPairs[1].destination);
  ASSERT_EQ(v6.size(), 16U + 36);
  EXPECT_EQ(v6.substr(12, 8), "\x21\x21\x00\x24\x20\x01\x0d\xb8"s);
  EXPECT_EQ(FormatProxyHeaderV2(kPairs[2].source, kPairs[2].destination).size(),
            16U + 216);
  EXPECT_EQ(FormatProxyHeaderV2(kPairs[0].source, kPairs[1].destination),
            std::string(kV2) + "\x21\x00\x00\x00"s);
}

// In any version and family, cut anywhere, with or without bytes behind it.
TEST(ProxyProtocolTest, WhatIsWrittenIsReadBack) {
  for (const Pair& pair : kPairs) {
    for (const bool v2 : {false, true}) {
      const std::string header =
          v2 ? FormatProxyHeaderV2(pair.source, pair.destination)
             : FormatProxyHeaderV1(pair.source, pair.destination);
      for (std::size_t n = 0; n < header.size(); ++n) {
        EXPECT_EQ(ParseProxyHeader(header.substr(0, n)).outcome,
                  Outcome::kIncomplete)
            << header << " cut at " << n;
      }
      for (const std::string_view behind : {"", "GET / HTTP/1.1", "\r\n"}) {
        const auto parsed = ParseProxyHeader(header + std::string(behind));
        ASSERT_EQ(parsed.outcome, Outcome::kComplete) << header;
        EXPECT_EQ(parsed.size, header.size());
        const bool unknown = !v2 && pair.source.family() == AF_UNIX;
        EXPECT_EQ(parsed.source, unknown ? Endpoint() : pair.source);
        EXPECT_EQ(parsed.destination, unknown ? Endpoint() : pair.destination);
      }
    }
  }
}

TEST(ProxyProtocolTest, UnknownAndLocalNameNobody) {
  const std::string cases[] = {
      "PROXY UNKNOWN\r\n",
      "PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n",
      std::string(kV2) + "\x20\x00\x00\x00"s,
      // LOCAL: addresses are ignored.
      std::string(kV2) + "\x20\x11\x00\x0c\1\2\3\4\1\2\3\4\1\2\1\2"s,
      // A family of tomorrow.
      std::string(kV2) + "\x21\x41\x00\x02zz"s,
  };
  for (const std::string& header : cases) {
    const auto parsed = ParseProxyHeader(header + "body");
    EXPECT_EQ(parsed.outcome, Outcome::kComplete) << header;
    EXPECT_EQ(parsed.size, header.size());
    EXPECT_TRUE(parsed.source.empty());
    EXPECT_TRUE(parsed.destination.empty());
  }
}

TEST(ProxyProtocolTest, ExtensionsAreSkipped) {
  const std::string header =
      std::string(kV2) +
      "\x21\x11\x00\x13\x7f\x00\x00\x01\x7f\x00\x00\x02\x00\x50\x00\x51"
      "\x01\x00\x04http"s;
  const auto parsed = ParseProxyHeader(header + "!");
  ASSERT_EQ(parsed.outcome, Outcome::kComplete);
  EXPECT_EQ(parsed.size, header.size());
  EXPECT_EQ(parsed.source, MustParseEndpoint("127.0.0.1:80"));
  EXPECT_EQ(parsed.destination, MustParseEndpoint("127.0.0.2:81"));
}

TEST(ProxyProtocolTest, RulesThatAreBroken) {
  const std::string cases[] = {
      "GET / HTTP/1.1\r\n\r\n",
      "PROXYTCP4 ",
      "proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
      "PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n",
      "PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
      "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
      "PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
      "PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n",
      "PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
      "PROXY TCP4 1.2.3.4 1.2.3 1 2\r\n",
      "PROXY TCP4 ::1 ::1 1 2\r\n",
      "PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
      "PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
      "PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n\r\n",
      "PROXY \r\n",
      "PROXY UNKNOWN" + std::string(200, ' ') + "\r\n",
      std::string(kV2) + "\x11\x11\x00\x0c"s + std::string(12, '\1'),  // v1
      std::string(kV2) + "\x22\x11\x00\x0c"s + std::string(12, '\1'),
      std::string(kV2) + "\x21\x11\x00\x0b"s + std::string(11, '\1'),
      std::string(kV2) + "\x21\x21\x00\x23"s + std::string(35, '\1'),
      std::string(kV2) + "\x21\x31\x00\xd7"s + std::string(215, '\1'),
      std::string(kV2) + "\x21\x11\xff\xff"s,  // Longer than we take.
      "\r\n\r\nX",
  };
  for (const std::string& header : cases) {
    EXPECT_EQ(ParseProxyHeader(header).outcome, Outcome::kMalformed) << header;
  }
}

// Nothing is read beyond the end (which the address sanitizer would see), and a
// complete header lies within the input.
TEST(ProxyProtocolTest, NoiseIsHarmless) {
  std::mt19937 random(42);
  for (int i = 0; i < 200'000; ++i) {
    const Pair& pair = kPairs[random() % 3];
    std::string bytes =
        random() % 2 == 0 ? FormatProxyHeaderV1(pair.source, pair.destination)
                          : FormatProxyHeaderV2(pair.source, pair.destination);
    for (auto n = random() % 4; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 1));
    bytes.shrink_to_fit();
    const auto parsed = ParseProxyHeader(bytes);
    if (parsed.outcome == Outcome::kComplete) {
      EXPECT_LE(parsed.size, bytes.size());
    } else {
      EXPECT_TRUE(parsed.source.empty());
    }
  }
}

}  // namespace
}  // namespace example::proxy

#include "example/proxy/client_hello.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using Outcome = ParsedClientHello::Outcome;

std::string Number(std::size_t number, std::size_t size) {
  std::string bytes;
  for (std::size_t i = size; i-- != 0;) {
    bytes += static_cast<char>(number >> (8 * i));
  }
  return bytes;
}

// With its length in front.
std::string Vector(const std::string& bytes, std::size_t length_size) {
  return Number(bytes.size(), length_size) + bytes;
}

std::string Extension(std::size_t type, const std::string& content) {
  return Number(type, 2) + Vector(content, 2);
}

std::string ServerName(const std::string& host, char type = 0) {
  return Extension(0, Vector(type + Vector(host, 2), 2));
}

// Parts of a ClientHello that a test may spoil.
struct Hello {
  std::string version = "\3\3";
  std::string session = std::string(32, 's');
  std::string ciphers = "\x13\x01\x13\x02";
  std::string compressions = std::string(1, '\0');
  std::string extensions = Extension(43, "\x02\x03\x04") +
                           ServerName("WWW.Example.org") +
                           Extension(16, Vector(Vector("h2", 1), 2));
  bool has_extensions = true;

  std::string Body() const {
    std::string body = version + std::string(32, 'r') + Vector(session, 1) +
                       Vector(ciphers, 2) + Vector(compressions, 1);
    if (has_extensions) body += Vector(extensions, 2);
    return body;
  }
};

std::string Message(const std::string& body) { return '\1' + Vector(body, 3); }

std::string Record(const std::string& content, char type = 22) {
  return type + std::string("\3\1") + Vector(content, 2);
}

std::string Bytes(const Hello& hello = {}) {
  return Record(Message(hello.Body()));
}

Outcome OutcomeOf(std::string_view bytes) {
  return ParseClientHello(bytes).outcome;
}

TEST(ClientHello, NamesItsHost) {
  const ParsedClientHello hello = ParseClientHello(Bytes());
  EXPECT_EQ(hello.outcome, Outcome::kComplete);
  EXPECT_EQ(hello.server_name, "www.example.org");
}

TEST(ClientHello, MayNameNone) {
  Hello hello;
  hello.extensions = Extension(43, "\x02\x03\x04");
  EXPECT_EQ(OutcomeOf(Bytes(hello)), Outcome::kComplete);
  EXPECT_EQ(ParseClientHello(Bytes(hello)).server_name, "");
  hello.extensions = "";
  EXPECT_EQ(OutcomeOf(Bytes(hello)), Outcome::kComplete);
  hello.has_extensions = false;
  EXPECT_EQ(OutcomeOf(Bytes(hello)), Outcome::kComplete);
  // One of a type that nobody knows.
  hello = Hello{.extensions = ServerName("x.y", '\1')};
  EXPECT_EQ(OutcomeOf(Bytes(hello)), Outcome::kComplete);
  EXPECT_EQ(ParseClientHello(Bytes(hello)).server_name, "");
}

TEST(ClientHello, EachBeginningIsIncomplete) {
  const std::string bytes = Bytes();
  for (std::size_t size = 0; size != bytes.size(); ++size) {
    EXPECT_EQ(OutcomeOf(std::string_view(bytes).substr(0, size)),
              Outcome::kIncomplete)
        << size;
  }
  EXPECT_EQ(OutcomeOf(bytes), Outcome::kComplete);
  // Early data in a record of its own.
  EXPECT_EQ(OutcomeOf(bytes + Record("early", 23)), Outcome::kComplete);
}

TEST(ClientHello, MayBeInSeveralRecords) {
  const std::string message = Message(Hello().Body());
  for (std::size_t cut = 1; cut != message.size(); ++cut) {
    const std::string bytes =
        Record(message.substr(0, cut)) + Record(message.substr(cut));
    EXPECT_EQ(ParseClientHello(bytes).server_name, "www.example.org") << cut;
    EXPECT_EQ(OutcomeOf(std::string_view(bytes).substr(0, bytes.size() - 1)),
              Outcome::kIncomplete);
  }
}

TEST(ClientHello, OtherProtocolsAreMalformed) {
  for (const char* bytes :
       {"GET / HTTP/1.1\r\n", "PRI * HTTP/2.0", "\x80\x2e",
        "\x15\x03\x01\x00\x02\x02\x28", "\x16\x02\x00", "\x16\x04", "S"}) {
    EXPECT_EQ(OutcomeOf(bytes), Outcome::kMalformed) << bytes;
  }
  EXPECT_EQ(OutcomeOf(Record("\2")), Outcome::kMalformed);
  EXPECT_EQ(OutcomeOf(std::string("\x16\x03\x01\x00\x00", 5)),
            Outcome::kMalformed);  // An empty record.
  EXPECT_EQ(OutcomeOf("\x16\x03\x01\x40\x01"), Outcome::kMalformed);
}

TEST(ClientHello, BrokenPartsAreMalformed) {
  const auto malformed = [](const Hello& hello) {
    return OutcomeOf(Bytes(hello)) == Outcome::kMalformed;
  };
  EXPECT_TRUE(malformed({.version = "\2\3"}));
  EXPECT_TRUE(malformed({.session = std::string(33, 's')}));
  EXPECT_TRUE(malformed({.ciphers = ""}));
  EXPECT_TRUE(malformed({.ciphers = "odd"}));
  EXPECT_TRUE(malformed({.compressions = ""}));
  EXPECT_TRUE(malformed({.extensions = "x"}));
  EXPECT_TRUE(malformed({.extensions = Number(43, 2) + Number(9, 2) + "x"}));
  EXPECT_TRUE(malformed({.extensions = Extension(0, "")}));
  EXPECT_TRUE(malformed({.extensions = Extension(0, Vector("", 2))}));
  EXPECT_TRUE(malformed(
      {.extensions = Extension(0, Vector('\0' + Number(9, 2) + "x", 2))}));
  EXPECT_TRUE(malformed(
      {.extensions = Extension(0, Vector('\0' + Vector("a.b", 2), 2) + "x")}));
  EXPECT_TRUE(malformed({.extensions = ServerName("a.b") + ServerName("c.d")}));
  EXPECT_TRUE(malformed(
      {.extensions = Extension(
           0, Vector('\0' + Vector("a.b", 2) + '\0' + Vector("c.d", 2), 2))}));
}

TEST(ClientHello, BrokenNamesAreMalformed) {
  for (const std::string& host :
       {std::string(), std::string("a b"), std::string("a\0b", 3),
        std::string(256, 'a'), std::string(".a"), std::string("a."),
        std::string("a/b"), std::string("\xc3\xa4.de")}) {
    const Hello hello{.extensions = ServerName(host)};
    EXPECT_EQ(OutcomeOf(Bytes(hello)), Outcome::kMalformed) << host;
  }
}

TEST(ClientHello, LengthsThatContradictEachOtherAreMalformed) {
  const std::string body = Hello().Body();
  // The message is longer than its parts, and shorter.
  EXPECT_EQ(OutcomeOf(Record(Message(body + "x"))), Outcome::kMalformed);
  EXPECT_EQ(OutcomeOf(Record(Message(body.substr(0, body.size() - 1)))),
            Outcome::kMalformed);
  // More in the record than the message.
  EXPECT_EQ(OutcomeOf(Record(Message(body) + "x")), Outcome::kMalformed);
}

TEST(ClientHello, IsBounded) {
  // Its bytes won't come.
  EXPECT_EQ(OutcomeOf(Record('\1' + Number(kMaxClientHello + 1, 3) + "x")),
            Outcome::kMalformed);
  // As long as it may be, in records of one byte.
  std::string message = '\1' + Number(kMaxClientHello, 3);
  message.resize(kMaxClientHello, 'x');
  std::string bytes;
  for (const char c : message) bytes += Record(std::string(1, c));
  EXPECT_EQ(OutcomeOf(std::string_view(bytes).substr(0, kMaxClientHello - 1)),
            Outcome::kIncomplete);
  EXPECT_EQ(OutcomeOf(std::string_view(bytes).substr(0, kMaxClientHello)),
            Outcome::kMalformed);
}

// Whatever a byte is changed into, the parser says one of three things.
TEST(ClientHello, AnyByteMayBeWrong) {
  const std::string bytes = Bytes();
  int complete = 0;
  for (std::size_t i = 0; i != bytes.size(); ++i) {
    for (int value = 0; value != 256; ++value) {
      std::string wrong = bytes;
      wrong[i] = static_cast<char>(value);
      const ParsedClientHello hello = ParseClientHello(wrong);
      if (hello.outcome == Outcome::kComplete) {
        ++complete;
      } else {
        EXPECT_EQ(hello.server_name, "");
      }
    }
  }
  EXPECT_GT(complete, 0);
}

TEST(ClientHello, PatternsMatchHosts) {
  EXPECT_TRUE(MatchesHost("a.example", "a.example"));
  EXPECT_FALSE(MatchesHost("a.example", "b.a.example"));
  EXPECT_TRUE(MatchesHost("*.example", "a.example"));
  EXPECT_FALSE(MatchesHost("*.example", "a.b.example"));
  EXPECT_FALSE(MatchesHost("*.example", "example"));
  EXPECT_FALSE(MatchesHost("*.example", ".example"));
  EXPECT_FALSE(MatchesHost("a.example", ""));
  EXPECT_TRUE(IsHostPattern("a.example"));
  EXPECT_TRUE(IsHostPattern("*.example"));
  for (const char* pattern :
       {"", "*", "*.", "*.*.a", "a.*", "A.example", "a b", "a."}) {
    EXPECT_FALSE(IsHostPattern(pattern)) << pattern;
  }
}

}  // namespace
}  // namespace example::proxy

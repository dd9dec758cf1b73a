// Which connections speak HTTP.
#include "flare/rpc/http/http_recognition.h"

#include <cstddef>
#include <string>
#include <utility>

#include "flare/rpc/http/http_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::HandlerReply;
using testing::HttpServer;
using ::testing::StartsWith;

CutResult Recognise(const std::string& bytes) {
  HttpServer server;
  CutResult result = server.Feed(bytes);
  if (result == CutResult::kNotMine || result == CutResult::kUnsure) {
    EXPECT_EQ(FlattenSlow(server.in()), bytes);
  }
  return result;
}

TEST(HttpRecognition, EveryPrefixOfARequest) {
  std::string bytes = "DELETE / HTTP/1.1\r\nA: b\r\n\r\n";
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    EXPECT_EQ(Recognise(bytes.substr(0, size)), size <= 6 ? CutResult::kUnsure
                                                : size < bytes.size()
                                                    ? CutResult::kNeedMore
                                                    : CutResult::kMessage)
        << size;
  }
}

TEST(HttpRecognition, UnknownMethodsByTheirVersion) {
  EXPECT_EQ(Recognise("BREW /pot HTTP/1.1"), CutResult::kUnsure);
  EXPECT_EQ(Recognise("BREW /pot HTTP/1.1\r"), CutResult::kNeedMore);
  EXPECT_EQ(Recognise("BREW /pot HTTP/1.1\r\n\r\n"), CutResult::kMessage);
  EXPECT_EQ(Recognise("BREW /pot\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("M-SEARCH"), CutResult::kUnsure);
  EXPECT_EQ(Recognise("M-SEARCH * HTTP/1.1\r"), CutResult::kNeedMore);
  EXPECT_EQ(Recognise("M-SEARCH *\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("BREW " + std::string(3000, 'x')), CutResult::kNotMine);
}

// A connection that speaks HTTP goes on with it.
TEST(HttpRecognition, UnknownMethodsBehindRequestsAreAnswered) {
  const std::string get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
  const std::string end = " HTTP/1.1\r\nHost: h\r\n\r\n";
  for (const auto& [target, status] : {std::pair{std::string(3000, 'x'), "501"},
                                       {"/\xc3\xa4", "501"},
                                       {std::string(9000, 'x'), "414"}}) {
    for (std::size_t piece : {std::size_t{7}, std::string::npos}) {
      HttpServer server;
      server.Feed(get + "BREW " + target + end, piece);
      ASSERT_EQ(server.count(), 2u);
      server.AnswerAll();
      EXPECT_THAT(server.sink().Take(),
                  StartsWith(HandlerReply("") + "HTTP/1.1 " + status));
    }
  }
  HttpServer server;
  server.Feed(get);
  EXPECT_EQ(server.Feed("CPRF\x20\0\0\0"s), CutResult::kNotMine);
}

TEST(HttpRecognition, OtherProtocolsAreLeftAlone) {
  EXPECT_EQ(Recognise("CPRF\x20\0\0\0"s), CutResult::kNotMine);
  EXPECT_EQ(Recognise("CPRF\x33\0\0\0"s), CutResult::kNotMine);
  EXPECT_EQ(Recognise("PRPC\0\0\0\x26"s), CutResult::kNotMine);
  EXPECT_EQ(Recognise("\x16\x03\x01"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("get / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise(" GET / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("\rGET / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("\nGET / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise(std::string(30, 'A')), CutResult::kNotMine);
  EXPECT_EQ(Recognise("GET\t/ HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("G(T / HTTP/1.1\r\n"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("garbage!"), CutResult::kNotMine);
  EXPECT_EQ(Recognise("SSH-2.0-OpenSSH_9.2\r\n"), CutResult::kNotMine);
}

}  // namespace
}  // namespace flare::rpc

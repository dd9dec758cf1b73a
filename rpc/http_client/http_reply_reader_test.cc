#include "flare/rpc/http_client/http_reply_reader.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/random.h"
#include "flare/rpc/http_client_options.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Result = HttpReplyReader::Result;

constexpr std::size_t kMaxBody = 1000;

struct Reading {
  Result result = Result::kNeedMore;
  HttpResponse response;
  std::string body;
  std::string rest;
  bool ends_with_connection = false;
  bool keeps_alive = false;
  flare::Status failure;
};

// Reads `bytes`, of which `step` come at a time.
Reading Read(std::string_view bytes, std::size_t step, bool to_head = false) {
  Reading out;
  HttpReplyReader reader;
  reader.Start(to_head, kMaxBody);
  Buffer in;
  Buffer body;
  while (!bytes.empty()) {
    in.Append(bytes.substr(0, step));
    bytes.remove_prefix(std::min(step, bytes.size()));
    out.result = reader.Read(in, &out.response, &body);
    if (out.result != Result::kNeedMore) break;
  }
  out.body = FlattenSlow(body);
  out.rest = FlattenSlow(in) + std::string(bytes);
  out.ends_with_connection = reader.EndsWithConnection();
  out.keeps_alive = reader.keeps_alive();
  out.failure = reader.failure();
  return out;
}

// Whole, and byte by byte: with the same outcome.
Reading ReadBothWays(std::string_view bytes, bool to_head = false) {
  Reading whole = Read(bytes, bytes.size(), to_head);
  const Reading bytewise = Read(bytes, 1, to_head);
  EXPECT_EQ(whole.result, bytewise.result) << bytes;
  EXPECT_EQ(whole.failure.code(), bytewise.failure.code()) << bytes;
  if (whole.result == Result::kDone) {
    EXPECT_EQ(whole.body, bytewise.body);
    EXPECT_EQ(whole.rest, bytewise.rest);
    EXPECT_EQ(whole.response.status(), bytewise.response.status());
    EXPECT_EQ(whole.keeps_alive, bytewise.keeps_alive);
  }
  return whole;
}

TEST(HttpReplyReader, ReadsABodyOfKnownLength) {
  const Reading read = ReadBothWays(
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhelloHTTP");
  ASSERT_EQ(read.result, Result::kDone);
  EXPECT_EQ(read.response.status(), HttpStatus::OK);
  EXPECT_EQ(read.response.version(), HttpVersion::kHttp11);
  EXPECT_EQ(read.response.headers()->TryGet("x"), "y");
  EXPECT_EQ(read.body, "hello");
  EXPECT_EQ(read.rest, "HTTP");
  EXPECT_TRUE(read.keeps_alive);
}

TEST(HttpReplyReader, ReadsChunksAndDropsTrailers) {
  const Reading read = ReadBothWays(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nX: y\r\n\r\n!");
  ASSERT_EQ(read.result, Result::kDone);
  EXPECT_EQ(read.body, "hello world");
  EXPECT_EQ(read.rest, "!");
  EXPECT_FALSE(read.response.headers()->contains("X"));
}

TEST(HttpReplyReader, ReadsUntilTheConnectionEnds) {
  const Reading read = ReadBothWays("HTTP/1.1 200\r\n\r\nsome bytes");
  EXPECT_EQ(read.result, Result::kNeedMore);
  EXPECT_EQ(read.body, "some bytes");
  EXPECT_TRUE(read.ends_with_connection);
  EXPECT_FALSE(read.keeps_alive);
}

TEST(HttpReplyReader, KnowsResponsesWithoutBody) {
  for (std::string_view fields :
       {"Content-Length: 5\r\n", "", "Transfer-Encoding: chunked\r\n"}) {
    for (std::string_view status : {"204", "304"}) {
      const Reading read =
          ReadBothWays("HTTP/1.1 " + std::string(status) + "\r\n" +
                       std::string(fields) + "\r\n5\r\nhello");
      EXPECT_EQ(read.result, Result::kDone);
      EXPECT_EQ(read.rest, "5\r\nhello");
    }
    const Reading head = ReadBothWays(
        "HTTP/1.1 200 OK\r\n" + std::string(fields) + "\r\n", /*to_head=*/true);
    EXPECT_EQ(head.result, Result::kDone);
    EXPECT_EQ(head.body, "");
  }
  // However long that body would be.
  EXPECT_EQ(ReadBothWays("HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
                         /*to_head=*/true)
                .result,
            Result::kDone);
}

TEST(HttpReplyReader, PassesOverInterimResponses) {
  const Reading read = ReadBothWays(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
      "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
  ASSERT_EQ(read.result, Result::kDone);
  EXPECT_EQ(read.response.status(), HttpStatus::NotFound);
  EXPECT_FALSE(read.response.headers()->contains("Link"));
  std::string endless;
  for (int i = 0; i <= HttpReplyReader::kMaxInterim; ++i) {
    endless += "HTTP/1.1 100 Continue\r\n\r\n";
  }
  EXPECT_EQ(ReadBothWays(endless).failure.code(), ERROR_PARSE_RESPONSE);
}

TEST(HttpReplyReader, TellsWhetherTheConnectionGoesOn) {
  const std::string length = "Content-Length: 0\r\n\r\n";
  EXPECT_TRUE(ReadBothWays("HTTP/1.1 200 OK\r\n" + length).keeps_alive);
  EXPECT_FALSE(ReadBothWays("HTTP/1.1 200 OK\r\nConnection: close\r\n" + length)
                   .keeps_alive);
  EXPECT_FALSE(ReadBothWays("HTTP/1.0 200 OK\r\n" + length).keeps_alive);
  EXPECT_TRUE(
      ReadBothWays("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n" + length)
          .keeps_alive);
}

TEST(HttpReplyReader, RefusesResponsesThatTwoReadersCouldTakeDifferently) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  for (const std::string& bytes : {
           ok + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
           ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
           ok + "Content-Length: 5, 6\r\n\r\n",
           ok + "Content-Length: -1\r\n\r\n",
           ok + "Content-Length: 0x5\r\n\r\n",
           ok + "Content-Length: 99999999999999999999999\r\n\r\n",
           ok + "Transfer-Encoding: gzip, chunked\r\n\r\n",
           ok + "Transfer-Encoding: chunked, chunked\r\n\r\n",
           ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"
                "\r\n",
           ok + "Transfer-Encoding: xchunked\r\n\r\n",
           std::string("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
           ok + "Content-Length : 5\r\n\r\n",
           ok + " Content-Length: 5\r\n\r\n",
           ok + "X: y\r\n folded\r\n\r\n",
           ok + "no colon\r\n\r\n",
           ok + "X: y\nContent-Length: 5\r\n\r\n",
           ok + std::string("X: a\0b\r\n\r\n", 10),
           ok + "X: a\rb\r\n\r\n",
           std::string("HTTP/1.1 200 OK\n\n"),
           std::string("HTTP/2.0 200 OK\r\n\r\n"),
           std::string("HTTP/1.1 20 OK\r\n\r\n"),
           std::string("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
           std::string("SSH-2.0-OpenSSH_9.2\r\n"),
           std::string("\x15\x03\x01\x00\x02\x02\x46", 7),
       }) {
    const Reading read = ReadBothWays(bytes);
    EXPECT_EQ(read.result, Result::kFailed) << bytes;
    EXPECT_EQ(read.failure.code(), ERROR_PARSE_RESPONSE) << bytes;
  }
}

TEST(HttpReplyReader, RefusesMalformedChunks) {
  for (std::string_view chunks :
       {"x\r\n", "\r\n", "5\nhello", "5\r\nhelloX", "-1\r\n", "5 5\r\n",
        "10000000000000000\r\n", "0\r\nbad trailer\r\n", "0\r\n\n"}) {
    const Reading read =
        ReadBothWays("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" +
                     std::string(chunks));
    EXPECT_EQ(read.result, Result::kFailed) << chunks;
  }
}

TEST(HttpReplyReader, BoundsEachPart) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::string body(kMaxBody, 'x');
  EXPECT_EQ(ReadBothWays(ok + "Content-Length: 1000\r\n\r\n" + body).body,
            body);
  EXPECT_EQ(ReadBothWays(ok + "Content-Length: 1001\r\n\r\n").failure.code(),
            ERROR_RESPONSE_TOO_LARGE);
  EXPECT_EQ(ReadBothWays(ok + "\r\n" + body + "x").failure.code(),
            ERROR_RESPONSE_TOO_LARGE);
  EXPECT_EQ(ReadBothWays(ok + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n")
                .failure.code(),
            ERROR_RESPONSE_TOO_LARGE);
  EXPECT_EQ(Read(ok + "X: " + std::string(HttpReplyReader::kMaxHead, 'x'), 4096)
                .failure.code(),
            ERROR_PARSE_RESPONSE);
  std::string fields;
  for (std::size_t i = 0; i <= HttpReplyReader::kMaxFields; ++i) {
    fields += "X: y\r\n";
  }
  EXPECT_EQ(ReadBothWays(ok + fields + "\r\n").failure.code(),
            ERROR_PARSE_RESPONSE);
}

TEST(HttpReplyReader, CanBeginAnew) {
  HttpReplyReader reader;
  for (int i = 0; i != 3; ++i) {
    reader.Start(/*to_head=*/false, kMaxBody);
    HttpResponse response;
    Buffer body;
    Buffer in = CreateBufferSlow(
        "HTTP/1.1 100\r\n\r\nHTTP/1.1 200\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    EXPECT_EQ(reader.Read(in, &response, &body), Result::kNeedMore);
    in.Append("2\r\nok\r\n0\r\n\r\n");
    EXPECT_EQ(reader.Read(in, &response, &body), Result::kDone);
    EXPECT_EQ(FlattenSlow(body), "ok");
  }
}

// Whatever comes, in whatever pieces: no crash, a body within its limit, and
// one outcome.
TEST(HttpReplyReader, SurvivesDamagedResponses) {
  constexpr std::string_view kSeeds[] = {
      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\nhello\r\n0\r\nA: b\r\n\r\n",
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nto the end"};
  std::uint64_t seed = 1;
  const auto draw = [&seed](std::size_t below) {
    return static_cast<std::size_t>(MixBits(++seed) % below);
  };
  for (int round = 0; round != 20'000; ++round) {
    std::string bytes(kSeeds[draw(std::size(kSeeds))]);
    for (std::size_t i = draw(4); i != 0; --i) {
      const std::size_t at = draw(bytes.size());
      switch (draw(3)) {
        case 0:
          bytes[at] = static_cast<char>(draw(256));
          break;
        case 1:
          bytes.erase(at, draw(8));
          break;
        default:
          bytes.insert(at, bytes.substr(draw(bytes.size()), draw(16)));
      }
      if (bytes.empty()) bytes = "H";
    }
    const Reading whole = Read(bytes, bytes.size());
    const Reading pieces = Read(bytes, 1 + draw(7));
    ASSERT_EQ(whole.result, pieces.result) << bytes;
    ASSERT_EQ(whole.failure.code(), pieces.failure.code()) << bytes;
    ASSERT_LE(whole.body.size(), kMaxBody);
    if (whole.result == Result::kDone) {
      ASSERT_EQ(whole.body, pieces.body);
    }
  }
}

}  // namespace
}  // namespace flare::rpc

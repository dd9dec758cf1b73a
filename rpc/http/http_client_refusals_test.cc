// Input that a client of calls over HTTP refuses: bytes that are no response
// end its connection; a response that is too large, only its call.
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/wire/client_protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;

class HttpClientRefusals : public testing::ClientProtocolTest<> {
 protected:
  HttpClientRefusals() : ClientProtocolTest(nullptr) {}

  // Input that makes the client close the connection, and its error text.
  struct Refusal {
    std::string bytes;
    std::string error;
  };
  void ExpectErrors(const Limits& limits,
                    const std::vector<Refusal>& refusals) {
    for (const auto& [bytes, error] : refusals) {
      for (std::size_t piece : {1, 7, 1000}) {
        Begin(limits);
        InboundResponse response;
        EXPECT_EQ(Cut(bytes, &response, piece), CutResult::kError);
        EXPECT_EQ(error_, error);
      }
    }
  }

  // A new connection.
  void Begin(const Limits& limits) {
    protocol_ = NewHttpClientProtocol(PayloadFormat::kProtobuf, limits, "");
    in_.Clear();
  }
};

std::string Response(std::string_view id, std::string_view length,
                     std::string_view body) {
  return std::string("HTTP/1.1 200 OK\r\nRpc-SeqNo: ")
      .append(id)
      .append("\r\nContent-Length: ")
      .append(length)
      .append("\r\n\r\n")
      .append(body);
}

TEST_F(HttpClientRefusals, ClosesOnWhatIsNoResponse) {
  Limits limits;
  limits.max_packet_size = 1000;
  limits.max_head_size = 500;
  const std::vector<Refusal> cases = {
      {"CPRF\x08\0\0\0\r\n\r\n"s,
       "http: a control byte, or a line that doesn't end with CRLF"},
      {"CPRF 200 OK\r\n\r\n", "http: malformed HTTP version"},
      {"HTTP/1.1 200 OK\n\n",
       "http: the first line of a response ends without CR"},
      {"HTTP/1.1 200 " + std::string(600, 'x'),
       "http: the head of a response is too large"},
      {"HTTP/1.1 200 OK\r\n\r\n", "http: a response without Content-Length"},
      {"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", "http: malformed header field name"},
      {"HTTP/1.1 200 OK\r\nA\r\n\r\n", "http: a header field without a colon"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n 0\r\n\r\n",
       "http: malformed Content-Length"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
       "http: conflicting Content-Length fields"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx",
       "http: a malformed chunked response"},
  };
  ExpectErrors(limits, cases);
}

// The call that should fail is unknown.
TEST_F(HttpClientRefusals, ClosesOnAResponseOfNobody) {
  const std::vector<Refusal> cases = {
      {"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nxx",
       "http: status 502 (Bad Gateway) without Rpc-SeqNo"},
      {"HTTP/1.1 200 OK\r\nRpc-SeqNo: -1\r\nContent-Length: 0\r\n\r\n",
       "http: status 200 (OK) without Rpc-SeqNo"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
       "http: status 200 (OK) without Rpc-SeqNo"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n",
       "http: status 200 (OK) without Rpc-SeqNo"},
  };
  ExpectErrors(Limits(), cases);
}

// At once, not when the head ends, which it may never.
TEST_F(HttpClientRefusals, ClosesOnWhatCantBecomeAResponse) {
  for (std::string bytes :
       {"S"s, "SSH-2.0-x\r\n"s, "CPRF"s, "\x01\0"s, "\r"s, "HTTP/2"s, "HTTPS"s,
        "220 mail\n"s, std::string(600, 'x')}) {
    Begin(Limits());
    InboundResponse response;
    EXPECT_EQ(Cut(bytes, &response, 1), CutResult::kError) << bytes;
    EXPECT_EQ(error_, "http: the peer's bytes are no HTTP/1.x response");
  }
}

// How much of it is to come isn't known.
TEST_F(HttpClientRefusals, ReadsNothingBehindChunksThatAreTooLarge) {
  Limits limits;
  limits.max_packet_size = 1000;
  Begin(limits);
  InboundResponse response;
  ASSERT_EQ(Cut("HTTP/1.1 200 OK\r\nRpc-SeqNo: 7\r\n"
                "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\nfff\r\n",
                &response),
            CutResult::kMessage);
  EXPECT_EQ(response.correlation_id, 7u);
  EXPECT_TRUE(response.oversized);
  EXPECT_TRUE(response.last_on_connection);
  EXPECT_TRUE(response.body.empty());
  EXPECT_EQ(response.description,
            "a chunked response exceeds the limit of 1000 bytes "
            "(flare_rpc_channel_max_packet_size)");
  response.Clear();
  EXPECT_EQ(Cut(Response("8", "1", "x"), &response), CutResult::kError);
}

// A limit that the head alone exceeds isn't "no limit" for the chunks.
TEST_F(HttpClientRefusals, TinyLimitsHoldForChunksToo) {
  Limits limits;
  limits.max_packet_size = 20;
  Begin(limits);
  InboundResponse response;
  EXPECT_EQ(Cut("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                "fff\r\n",
                &response),
            CutResult::kError);
  EXPECT_EQ(error_,
            "http: a response with a head of 47 bytes exceeds the limit of 20 "
            "(flare_rpc_channel_max_packet_size)");
}

TEST_F(HttpClientRefusals, SkipsTheBodyOfAResponseThatIsTooLarge) {
  Limits limits;
  limits.max_packet_size = 1000;
  const std::string all = Response("7", "2000", std::string(2000, 'x')) +
                          Response("8", "4", "body");
  // As it comes, all at once, and in between.
  for (std::size_t step : {std::size_t{1}, std::size_t{70}, all.size()}) {
    Begin(limits);
    InboundResponse response;
    int read = 0;
    for (std::size_t at = 0; at < all.size(); at += step) {
      in_.Append(all.substr(at, step));
      while (protocol_->Cut(in_, &response, &need_, &error_) ==
             CutResult::kMessage) {
        if (read++ == 0) {
          EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
          EXPECT_EQ(response.correlation_id, 7u);
          EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
          EXPECT_EQ(response.description,
                    "a response of 2055 bytes exceeds the limit of 1000 "
                    "(flare_rpc_channel_max_packet_size)");
          EXPECT_EQ(response.wire_size, 2055u);
        } else {
          EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
          EXPECT_EQ(response.correlation_id, 8u);
          EXPECT_EQ(FlattenSlow(response.body), "body");
        }
        response.Clear();
      }
      // Nothing is gathered but heads and bodies that are small enough.
      EXPECT_LT(in_.size(), 100u);
    }
    EXPECT_EQ(read, 2);
    EXPECT_EQ(error_, "");
  }
}

// Head and body count together.
TEST_F(HttpClientRefusals, TheLimitIsExact) {
  const std::string bytes = Response("7", "945", std::string(945, 'x'));
  ASSERT_EQ(bytes.size(), 999u);
  Limits limits;
  for (std::size_t limit : {998, 999}) {
    limits.max_packet_size = limit;
    Begin(limits);
    InboundResponse response;
    ASSERT_EQ(Cut(bytes, &response), CutResult::kMessage);
    EXPECT_EQ(protocol_->Parse(&response),
              limit == 999 ? ParseResult::kOk : ParseResult::kReject);
    EXPECT_EQ(response.wire_size, 999u);
    EXPECT_TRUE(in_.empty());
  }
}

// Other replies would wait behind it for long, or for ever.
TEST_F(HttpClientRefusals, ReadsNothingBehindLengthsBeyondAllMeasure) {
  for (const char* length : {"67108865", "18446744073709551615"}) {
    Begin(Limits());
    InboundResponse response;
    ASSERT_EQ(Cut(Response("7", length, "x"), &response), CutResult::kMessage);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_TRUE(response.oversized);
    EXPECT_TRUE(response.last_on_connection);
    EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
    EXPECT_TRUE(
        response.description.ends_with("bytes exceeds the limit of 4194304 "
                                       "(flare_rpc_channel_max_packet_size)"))
        << response.description;
    response.Clear();
    EXPECT_EQ(Cut(Response("8", "1", "x"), &response), CutResult::kError);
    EXPECT_TRUE(in_.empty());
  }
  Begin(Limits());
  InboundResponse response;
  ASSERT_EQ(Cut(Response("7", "67108864", "x"), &response),
            CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
  response.Clear();
  EXPECT_EQ(Cut(std::string(1000, 'x'), &response), CutResult::kNeedMore);
  EXPECT_TRUE(in_.empty());
}

}  // namespace
}  // namespace flare::rpc

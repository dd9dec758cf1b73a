#include <memory>
#include <random>
#include <string>
#include <utility>

#include "flare/base/testing/rounds.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_response_reader.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::ServerDriver;
using testing::SlicedBuffer;

class HttpClient : public ::testing::Test {
 protected:
  std::string Write(OutboundRequest&& request) {
    BufferBuilder out;
    status_ = protocol_->Write(std::move(request), &out);
    return FlattenSlow(out.DestructiveGet());
  }

  static OutboundRequest Request(std::uint64_t id, std::string_view body) {
    OutboundRequest request;
    request.correlation_id = id;
    request.method = "a.B.C";
    request.timeout_ms = 2000;
    request.body = CreateBufferSlow(body);
    return request;
  }

  CutResult Cut(std::string_view bytes, InboundResponse* response,
                std::size_t piece = std::string::npos) {
    in_.Append(SlicedBuffer(bytes, piece));
    return protocol_->Cut(in_, response, &need_, &error_);
  }

  // Reads one whole response.
  ParseResult Read(std::string_view bytes, InboundResponse* response,
                   std::size_t piece = std::string::npos) {
    response->Clear();
    EXPECT_EQ(Cut(bytes, response, piece), CutResult::kMessage) << error_;
    return protocol_->Parse(response);
  }

  std::unique_ptr<ClientProtocol> protocol_ =
      NewHttpClientProtocol(PayloadFormat::kProtobuf, Limits(), "1.2.3.4:80");
  Buffer in_;
  std::size_t need_ = 0;
  std::string error_;
  flare::Status status_;
};

TEST_F(HttpClient, WritesTheDocumentedRequestAndAHost) {
  EXPECT_EQ(Write(Request(17, "body")),
            "POST /rpc/a.B.C HTTP/1.1\r\n"
            "Host: 1.2.3.4:80\r\n"
            "Rpc-SeqNo: 17\r\n"
            "Rpc-Timeout: 2000\r\n"
            "Content-Type: application/x-protobuf\r\n"
            "Content-Length: 4\r\n\r\n"
            "body");
  EXPECT_TRUE(status_.ok());
}

// As HTTP wants it, however the server was named.
TEST_F(HttpClient, StatesAHostThatMayBeOne) {
  const std::pair<const char*, const char*> kHosts[] = {
      {"a.test:80", "a.test:80"},
      {"a%b.test:80", "a%b.test:80"},
      {"[::1]:80", "[::1]:80"},
      {"[fe80::1%2]:80", "[fe80::1]:80"},
      {"[fe80::1%eth0]:80", "[fe80::1]:80"},
      {"unix:/run/a b.sock", "localhost"},
      {"unix:@abstract", "localhost"}};
  for (const auto& [named, stated] : kHosts) {
    protocol_ =
        NewHttpClientProtocol(PayloadFormat::kProtobuf, Limits(), named);
    const std::string request = Write(Request(17, ""));
    EXPECT_NE(request.find("\r\nHost: " + std::string(stated) + "\r\n"),
              std::string::npos)
        << request;
  }
}

TEST_F(HttpClient, LeavesOutWhatThereIsnt) {
  protocol_ = NewHttpClientProtocol(PayloadFormat::kProto3Json, Limits(), "");
  auto request = Request(18446744073709551615u, "");
  request.timeout_ms = 0;
  EXPECT_EQ(Write(std::move(request)),
            "POST /rpc/a.B.C HTTP/1.1\r\n"
            "Rpc-SeqNo: 18446744073709551615\r\n"
            "Content-Type: application/x-proto3-json\r\n"
            "Content-Length: 0\r\n\r\n");
}

TEST_F(HttpClient, NamesItsFormat) {
  EXPECT_EQ(protocol_->name(), "http+pb");
  EXPECT_EQ(protocol_->format(), PayloadFormat::kProtobuf);
  EXPECT_FALSE(protocol_->traits().attachments);
  EXPECT_FALSE(protocol_->traits().compression);
  EXPECT_TRUE(protocol_->traits().multiplexed);
  auto text = NewHttpClientProtocol(PayloadFormat::kProtobufText, Limits(), "");
  EXPECT_EQ(text->name(), "http+pb-text");
}

TEST_F(HttpClient, RefusesWhatItCantSend) {
  for (const std::string& method :
       {""s, "a b"s, "a\r\nX: y"s, "a?b"s, "a#b"s, "caf\xc3\xa9"s, "a\0b"s,
        std::string(5000, 'm')}) {
    auto request = Request(1, "x");
    request.method = method;
    EXPECT_EQ(Write(std::move(request)), "");
    EXPECT_EQ(status_.code(), STATUS_INVALID_METHOD_NAME) << method;
  }
  auto with_attachment = Request(1, "x");
  with_attachment.attachment = CreateBufferSlow("a");
  EXPECT_EQ(Write(std::move(with_attachment)), "");
  EXPECT_EQ(status_.code(), STATUS_NOT_SUPPORTED);
  auto compressed = Request(1, "x");
  compressed.compression = CompressionAlgorithm::kZstd;
  EXPECT_EQ(Write(std::move(compressed)), "");
  EXPECT_EQ(status_.code(), STATUS_NOT_SUPPORTED);
}

const std::string kSuccess =
    "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
    "Rpc-SeqNo: 17\r\nContent-Length: 4\r\n\r\nbody";
const std::string kFailure =
    "HTTP/1.1 404 Not Found\r\nContent-Type: application/x-protobuf\r\n"
    "Rpc-SeqNo: 3\r\nRpc-Error-Code: 10\r\n"
    "Rpc-Error-Reason: Method [X] is not implemented.\r\n"
    "Content-Length: 0\r\n\r\n";

TEST_F(HttpClient, ReadsTheDocumentedSuccess) {
  for (std::size_t piece = 1; piece <= kSuccess.size(); ++piece) {
    InboundResponse response;
    ASSERT_EQ(Read(kSuccess, &response, piece), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 17u);
    EXPECT_EQ(response.status, STATUS_SUCCESS);
    EXPECT_EQ(FlattenSlow(response.body), "body");
    EXPECT_EQ(response.wire_size, kSuccess.size());
    EXPECT_FALSE(response.last_on_connection);
  }
}

TEST_F(HttpClient, ReadsTheDocumentedFailure) {
  for (std::size_t piece = 1; piece <= kFailure.size(); ++piece) {
    InboundResponse response;
    ASSERT_EQ(Read(kFailure, &response, piece), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 3u);
    EXPECT_EQ(response.status, STATUS_METHOD_NOT_FOUND);
    EXPECT_EQ(response.description, "Method [X] is not implemented.");
    EXPECT_TRUE(response.body.empty());
  }
}

TEST_F(HttpClient, EveryTruncationNeedsMore) {
  for (const std::string& whole : {kSuccess, kFailure}) {
    for (std::size_t size = 0; size != whole.size(); ++size) {
      in_.Clear();
      auto protocol =
          NewHttpClientProtocol(PayloadFormat::kProtobuf, Limits(), "");
      InboundResponse response;
      Buffer in = SlicedBuffer(whole.substr(0, size), 10);
      EXPECT_EQ(protocol->Cut(in, &response, &need_, &error_),
                CutResult::kNeedMore);
      in.Append(SlicedBuffer(whole.substr(size), 10));
      response.Clear();
      EXPECT_EQ(protocol->Cut(in, &response, &need_, &error_),
                CutResult::kMessage);
      EXPECT_EQ(protocol->Parse(&response), ParseResult::kOk);
    }
  }
}

TEST_F(HttpClient, ReadsChunkedResponses) {
  std::string bytes =
      "HTTP/1.1 200 OK\r\nRpc-SeqNo: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
      "2\r\nab\r\n3;x=y\r\ncde\r\n0\r\nDigest: none\r\n\r\n";
  for (std::size_t piece = 1; piece <= bytes.size(); piece += 2) {
    InboundResponse response;
    ASSERT_EQ(Read(bytes + kSuccess, &response, piece), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 5u);
    EXPECT_EQ(FlattenSlow(response.body), "abcde");
    ASSERT_EQ(Read("", &response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 17u);
  }
}

// Whether it succeeded or not, and each chunk a message of its own.
TEST_F(HttpClient, RefusesStreamsOfMessages) {
  for (const auto& [trailer, end] :
       {std::pair{"Rpc-Error-Code", "success"},
        {"Rpc-Error-Code", "MethodNotFound\r\nRpc-Error-Reason: no"},
        {"Rpc-Error-Reason , rpc-error-code", "success"},
        {"Digest\r\nTrailer: Rpc-Error-Code,Rpc-Error-Reason", "success"}}) {
    InboundResponse response;
    ASSERT_EQ(Read("HTTP/1.1 200 OK\r\nRpc-SeqNo: 5\r\n"
                   "Transfer-Encoding: chunked\r\nTrailer: " +
                       std::string(trailer) +
                       "\r\n\r\n2\r\nab\r\n0\r\nRpc-Error-Code: " +
                       std::string(end) + "\r\n\r\n",
                   &response),
              ParseResult::kReject);
    EXPECT_EQ(response.correlation_id, 5u);
    EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
    EXPECT_EQ(response.description, "a stream in response to a single call");
    ASSERT_EQ(Read(kSuccess, &response), ParseResult::kOk);
  }
}

TEST_F(HttpClient, RefusesEncodedMessages) {
  const auto read = [&](std::string_view fields, InboundResponse* response) {
    return Read("HTTP/1.1 200 OK\r\nRpc-SeqNo: 5\r\n" + std::string(fields) +
                    "\r\nContent-Length: 2\r\n\r\nab",
                response);
  };
  for (const std::string_view fields :
       {"Content-Encoding: gzip", "content-encoding: identity, br",
        "Rpc-Error-Code: 0\r\nContent-Encoding: deflate"}) {
    for (int i = 0; i != 2; ++i) {
      InboundResponse response;
      ASSERT_EQ(read(fields, &response), ParseResult::kReject);
      EXPECT_EQ(response.correlation_id, 5u);
      EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
      EXPECT_EQ(response.description,
                "a response with a Content-Encoding, which calls don't ask "
                "for");
      EXPECT_TRUE(response.body.empty());
    }
  }
  InboundResponse response;
  ASSERT_EQ(read("Content-Encoding: identity", &response), ParseResult::kOk);
  EXPECT_EQ(FlattenSlow(response.body), "ab");
  ASSERT_EQ(read("Rpc-Error-Code: 7\r\nContent-Encoding: gzip", &response),
            ParseResult::kOk);
  EXPECT_EQ(response.status, 7);
}

// The published servers send texts of failures as they are.
TEST_F(HttpClient, ReadsReasonsOfSeveralLines) {
  const std::string bytes =
      "HTTP/1.1 500 Internal Server Error\r\nRpc-SeqNo: 3\r\n"
      "Rpc-Error-Code: 1001\r\n"
      "Rpc-Error-Reason: line1\nline2\n\n\x01 line4\r\r\nContent-Length: "
      "0\r\n\r\n";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    InboundResponse response;
    ASSERT_EQ(Read(bytes + kSuccess, &response, piece), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 3u);
    EXPECT_EQ(response.status, 1001);
    EXPECT_EQ(response.description, "line1 line2    line4");
    ASSERT_EQ(Read("", &response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 17u);
  }
  // And as it comes.
  const std::string both = bytes + kSuccess;
  InboundResponse response;
  std::size_t read = 0;
  for (const char c : both) {
    if (Cut(std::string(1, c), &response) != CutResult::kMessage) continue;
    EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, read++ == 0 ? 3u : 17u);
    response.Clear();
  }
  EXPECT_EQ(read, 2u);
}

TEST_F(HttpClient, ReadsLongReasons) {
  const std::string reason(flare::testing::Rounds(20'000), 'r');
  const std::string bytes =
      "HTTP/1.1 500 No\r\nRpc-SeqNo: 3\r\nRpc-Error-Code: 1001\r\n"
      "Rpc-Error-Reason: " +
      reason + "\r\nContent-Length: 0\r\n\r\n";
  protocol_ = NewHttpClientProtocol(PayloadFormat::kProtobuf,
                                    ClientLimits(1 << 20), "");
  for (std::size_t piece : {100, 1'000'000}) {
    InboundResponse response;
    ASSERT_EQ(Read(bytes, &response, piece), ParseResult::kOk);
    EXPECT_EQ(response.status, 1001);
    EXPECT_EQ(response.description, reason);
  }
  // As it trickles in, before a usual one.
  InboundResponse response;
  int read = 0;
  for (const char c : bytes + kSuccess) {
    if (Cut(std::string(1, c), &response) != CutResult::kMessage) continue;
    EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, read++ == 0 ? 3u : 17u);
    response.Clear();
  }
  EXPECT_EQ(read, 2);
}

// Folded, as HTTP once allowed, or with the line ends of a published server's
// reason, which is sent as it is.
TEST_F(HttpClient, ReadsFieldsOfSeveralLines) {
  struct Case {
    std::string sent, read;
  } cases[] = {{"a\r\n b", "a   b"},
               {"a\r\n\tb", "a   b"},
               {"a\r\n b\r\n \r\n c", "a   b      c"},
               {"\r\n a", "a"},
               {"a\r\nb", "a  b"},
               {"a\r\nb\r\nc\nd", "a  b  c d"},
               {"a\r\nX: y", "a"}};
  for (const Case& c : cases) {
    for (std::size_t piece : {1, 7, 1000}) {
      InboundResponse response;
      ASSERT_EQ(Read("HTTP/1.1 500 No\r\nRpc-SeqNo: 3\r\n"
                     "Rpc-Error-Code: 1001\r\nRpc-Error-Reason: " +
                         c.sent + "\r\nContent-Length: 4\r\n\r\nbody",
                     &response, piece),
                ParseResult::kOk)
          << c.sent;
      EXPECT_EQ(response.correlation_id, 3u);
      EXPECT_EQ(response.status, 1001);
      EXPECT_EQ(response.description, c.read);
    }
  }
}

TEST_F(HttpClient, SkipsInterimResponses) {
  InboundResponse response;
  ASSERT_EQ(Read("HTTP/1.1 100 Continue\r\n\r\n"
                 "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" +
                     kSuccess,
                 &response, 9),
            ParseResult::kOk);
  EXPECT_EQ(response.correlation_id, 17u);
}

TEST_F(HttpClient, InterimResponsesHaveAnEnd) {
  const std::string interim = "HTTP/1.1 100 Continue\r\n\r\n";
  std::string most;
  for (int i = 0; i != HttpResponseReader::kMaxInterim; ++i) most += interim;
  const auto fresh = [this] {
    protocol_ = NewHttpClientProtocol(PayloadFormat::kProtobuf, Limits(), "");
    in_.Clear();
  };
  for (const std::size_t piece : {std::size_t{7}, 10 * most.size()}) {
    // As many before each response, not more; whether or not one follows.
    fresh();
    InboundResponse response;
    ASSERT_EQ(Read(most + kSuccess, &response, piece), ParseResult::kOk);
    response.Clear();
    ASSERT_EQ(Read(most + kSuccess, &response, piece), ParseResult::kOk);
    response.Clear();
    EXPECT_EQ(Cut(most + interim, &response, piece), CutResult::kError);
    EXPECT_EQ(error_, "http: interim responses without end");
  }
  fresh();
  InboundResponse response;
  EXPECT_EQ(Cut("HTTP/1.1 101 Switching Protocols\r\n\r\n", &response),
            CutResult::kError);
}

TEST_F(HttpClient, ASuccessfulStatusCanCarryAFailure) {
  InboundResponse response;
  ASSERT_EQ(Read("HTTP/1.1 200 OK\r\nRpc-SeqNo: 1\r\nRpc-Error-Code: 1234\r\n"
                 "Rpc-Error-Reason: no\r\nContent-Length: 3\r\n\r\nxyz",
                 &response),
            ParseResult::kOk);
  EXPECT_EQ(response.status, 1234);
  EXPECT_EQ(response.description, "no");
  EXPECT_TRUE(response.body.empty());
}

TEST_F(HttpClient, AServersOwnMalformedDataIsReadable) {
  InboundResponse response;
  ASSERT_EQ(Read("HTTP/1.1 500 No\r\nRpc-SeqNo: 1\r\nRpc-Error-Code: 102\r\n"
                 "Content-Length: 0\r\n\r\n",
                 &response),
            ParseResult::kOk);
  EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
}

TEST_F(HttpClient, FailuresAreDescribedInMemoryThatIsThere) {
  InboundResponse response;
  response.scratch.reserve(1000);
  const char* const room = response.scratch.data();
  const std::string reason(100, 'r');
  // In pieces the head is there itself.
  for (std::size_t piece : {9, 1000}) {
    ASSERT_EQ(Read("HTTP/1.1 500 No\r\nRpc-SeqNo: 1\r\nRpc-Error-Code: 12\r\n"
                   "Rpc-Error-Reason: " +
                       reason + "\r\nContent-Length: 0\r\n\r\n",
                   &response, piece),
              ParseResult::kOk);
    EXPECT_EQ(response.description, reason);
    EXPECT_EQ(response.description.data(), room);
  }
}

TEST_F(HttpClient, FailsTheCallOfAMalformedFailure) {
  struct Case {
    std::string fields;
    std::string text;
  } cases[] = {
      {"", "HTTP status 503 (Busy) without Rpc-Error-Code"},
      {"Rpc-Error-Code: 0\r\n", "a failure whose Rpc-Error-Code isn't one"},
      {"Rpc-Error-Code: x\r\n", "a failure whose Rpc-Error-Code isn't one"},
      {"Rpc-Error-Code: 99999999999\r\n",
       "a failure whose Rpc-Error-Code isn't one"},
  };
  for (const Case& c : cases) {
    for (std::size_t piece : {1, 1000}) {
      InboundResponse response;
      EXPECT_EQ(Read("HTTP/1.1 503 Busy\r\nRpc-SeqNo: 8\r\n" + c.fields +
                         "Content-Length: 0\r\n\r\n",
                     &response, piece),
                ParseResult::kReject);
      EXPECT_EQ(response.correlation_id, 8u);
      EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
      EXPECT_EQ(response.description, c.text);
    }
  }
}

TEST_F(HttpClient, NoticesThatTheServerCloses) {
  InboundResponse response;
  ASSERT_EQ(Read("HTTP/1.1 200 OK\r\nRpc-SeqNo: 1\r\nConnection: close\r\n"
                 "Content-Length: 0\r\n\r\n",
                 &response),
            ParseResult::kOk);
  EXPECT_TRUE(response.last_on_connection);
  ASSERT_EQ(Read("HTTP/1.0 200 OK\r\nRpc-SeqNo: 1\r\n"
                 "Content-Length: 0\r\n\r\n",
                 &response),
            ParseResult::kOk);
  EXPECT_TRUE(response.last_on_connection);
}

TEST_F(HttpClient, ResponsesWithoutBody) {
  for (const char* status : {"204 No Content", "304 Not Modified"}) {
    for (const char* field :
         {"", "Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n"}) {
      InboundResponse response;
      ASSERT_EQ(Read("HTTP/1.1 "s + status + "\r\nRpc-SeqNo: 1\r\n" + field +
                         "Rpc-Error-Code: 5\r\n\r\n" + kSuccess,
                     &response),
                ParseResult::kOk);
      EXPECT_EQ(response.status, 5);
      ASSERT_EQ(Read("", &response), ParseResult::kOk);
      EXPECT_EQ(response.correlation_id, 17u);
    }
  }
}

TEST_F(HttpClient, SpeaksWithTheServer) {
  std::mt19937 rng(5);
  HttpUses uses{.pb = true};
  ServerDriver server(
      [&](auto* sink) { return NewHttpServerProtocol(uses, Limits(), sink); });
  for (int i = 1; i <= 500; ++i) {
    std::string body(rng() % 3000, static_cast<char>(rng()));
    server.Feed(Write(Request(i, body)), 1 + rng() % 300);
    ASSERT_EQ(server.count(), static_cast<std::size_t>(i));
    EXPECT_EQ(server.request(i - 1).head.method, "a.B.C");
    EXPECT_EQ(server.request(i - 1).head.timeout_ms, 2000u);
    EXPECT_EQ(FlattenSlow(server.request(i - 1).body), body);
    server.Answer(i - 1, body);
    InboundResponse response;
    ASSERT_EQ(Read(server.sink().Take(), &response, 1 + rng() % 300),
              ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, static_cast<unsigned>(i));
    EXPECT_EQ(FlattenSlow(response.body), body);
  }
}

TEST_F(HttpClient, UnderstandsEveryRefusalOfTheServer) {
  HttpUses uses{.json = true};
  ServerDriver server(
      [&](auto* sink) { return NewHttpServerProtocol(uses, Limits(), sink); });
  server.Feed(Write(Request(4, "x")));
  server.AnswerAll();
  InboundResponse response;
  ASSERT_EQ(Read(server.sink().Take(), &response), ParseResult::kOk);
  EXPECT_EQ(response.correlation_id, 4u);
  EXPECT_EQ(response.status, STATUS_NOT_SUPPORTED);
  EXPECT_EQ(response.description,
            "the Content-Type must be application/x-proto3-json, not "
            "application/x-protobuf");
}

}  // namespace
}  // namespace flare::rpc

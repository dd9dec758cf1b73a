// Metadata in the bytes of each protocol: its place, its form on both sides,
// and refused entries.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/wire/client_protocol_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using ::testing::HasSubstr;
using testing::ServerDriver;
using std::string_literals::operator""s;

// The entries {"k", "v"} and {"b-bin", 0x00 0xff}, as bytes in a protobuf map,
// and with the values as text; and of the own field of flare.
const std::string kPbEntry = "\x06\x0a\x01k\x12\x01v"s;
const std::string kPbBinary = "\x0b\x0a\x05"s + "b-bin\x12\x02\0\xff"s;
const std::string kPbText = "\x0c\x0a\x05"s + "b-bin\x12\x03"s + "AP8";

struct Wire {
  std::string name;
  // The bytes of a request and a reply beyond those without metadata.
  std::string in_request;
  std::string in_reply;
};

const Wire kWires[] = {
    {"flare", "\xca\x3e"s + kPbEntry + "\xca\x3e" + kPbBinary,
     "\xca\x3e"s + kPbEntry + "\xca\x3e" + kPbBinary},
    {"baidu-std", "\x4a"s + kPbEntry + "\x4a" + kPbText,
     "\x4a"s + kPbEntry + "\x4a" + kPbText},
    {"trpc", "\x4a"s + kPbEntry + "\x4a" + kPbBinary,
     "\x42"s + kPbEntry + "\x42" + kPbBinary},
    {"bolt", "\0\0\0\x01k\0\0\0\x01v\0\0\0\x05"s + "b-bin\0\0\0\x03"s + "AP8",
     "\0\0\0\x01k\0\0\0\x01v\0\0\0\x05"s + "b-bin\0\0\0\x03"s + "AP8"},
    {"http+pb", "\r\nk: v\r\nb-bin: AP8\r\n", "\r\nk: v\r\nb-bin: AP8\r\n"},
    {"http+proto3-json", "\r\nk: v\r\nb-bin: AP8\r\n",
     "\r\nk: v\r\nb-bin: AP8\r\n"}};

Metadata TwoEntries() {
  Metadata metadata;
  EXPECT_TRUE(metadata.Add("k", "v").ok());
  EXPECT_TRUE(metadata.Add("b-bin", "\0\xff"s).ok());
  return metadata;
}

class MetadataProtocols
    : public testing::ClientProtocolTest<::testing::TestWithParam<Wire>> {
 protected:
  MetadataProtocols() : ClientProtocolTest(NewClient(Limits())) {}

  static std::unique_ptr<ClientProtocol> NewClient(const Limits& limits) {
    return std::move(NewClientProtocol(GetParam().name, limits, "host:1"))
        .value();
  }
  static ServerDriver NewServer(const Limits& limits = {}) {
    return ServerDriver([&](ReplySink* sink) {
      return ServerProtocolSet::FromNames({GetParam().name}, limits)
          ->New(0, sink);
    });
  }

  std::string Request(const Metadata* metadata) const {
    OutboundRequest request;
    request.correlation_id = 7;
    request.method = "a.B.C";
    request.metadata = metadata;
    request.body = CreateBufferSlow("body");
    return Write(std::move(request));
  }
  // That of a server to such a request.
  static std::string Reply(ServerDriver* server, const Metadata* metadata,
                           int status = STATUS_SUCCESS) {
    OutboundResponse response;
    response.status = status;
    if (status != STATUS_SUCCESS) response.description = "failed";
    response.metadata = metadata;
    if (status == STATUS_SUCCESS) response.body = CreateBufferSlow("reply");
    server->protocol().Write(server->request().ticket, std::move(response));
    return server->sink().Take();
  }

  static Limits SmallLimits() {
    Limits limits;
    limits.metadata = {.entries = 1, .bytes = 1000};
    return limits;
  }
};

void ExpectTwoEntries(const Metadata* metadata) {
  ASSERT_NE(metadata, nullptr);
  EXPECT_EQ(metadata->size(), 2u);
  EXPECT_EQ(metadata->Get("k"), "v");
  EXPECT_EQ(metadata->Get("b-bin"), "\0\xff"s);
}

TEST_P(MetadataProtocols, StandsInRequests) {
  const Metadata metadata = TwoEntries();
  const std::string bytes = Request(&metadata);
  EXPECT_THAT(bytes, HasSubstr(GetParam().in_request));
  for (const std::size_t piece : {std::string::npos, std::size_t{1}}) {
    ServerDriver server = NewServer();
    server.Feed(bytes, piece);
    ASSERT_EQ(server.count(), 1u);
    ASSERT_EQ(server.result(), ParseResult::kOk);
    EXPECT_EQ(server.request().head.method, "a.B.C");
    EXPECT_EQ(FlattenSlow(server.request().body), "body");
    ExpectTwoEntries(server.request().metadata.get());
  }
}

TEST_P(MetadataProtocols, StandsInReplies) {
  const Metadata metadata = TwoEntries();
  for (const int status : {int{STATUS_SUCCESS}, 4711}) {
    ServerDriver server = NewServer();
    server.Feed(Request(nullptr));
    ASSERT_EQ(server.count(), 1u);
    const std::string bytes = Reply(&server, &metadata, status);
    EXPECT_THAT(bytes, HasSubstr(GetParam().in_reply));
    InboundResponse response;
    ASSERT_EQ(Cut(bytes, &response), CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.status, status);
    EXPECT_EQ(response.correlation_id, 7u);
    if (status == STATUS_SUCCESS) {
      EXPECT_EQ(FlattenSlow(response.body), "reply");
    } else {
      EXPECT_EQ(response.description, "failed");
    }
    ExpectTwoEntries(response.metadata.get());
  }
}

TEST_P(MetadataProtocols, NoObjectWithoutIt) {
  const std::string bytes = Request(nullptr);
  const Metadata empty;
  EXPECT_EQ(Request(&empty), bytes);
  ServerDriver server = NewServer();
  server.Feed(bytes);
  ASSERT_EQ(server.count(), 1u);
  EXPECT_EQ(server.request().metadata, nullptr);
  InboundResponse response;
  ASSERT_EQ(Cut(Reply(&server, nullptr), &response), CutResult::kMessage);
  ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_EQ(response.metadata, nullptr);
}

TEST_P(MetadataProtocols, TooMuchOfItIsRefused) {
  Metadata metadata = TwoEntries();
  ASSERT_TRUE(metadata.Add("c", "").ok());
  ServerDriver server = NewServer(SmallLimits());
  server.Feed(Request(&metadata));
  ASSERT_EQ(server.count(), 1u);
  EXPECT_EQ(server.result(), ParseResult::kReject);
  EXPECT_THAT(server.request().reject_reason,
              HasSubstr("metadata of 3 entries exceeds the limit of 1"));
  EXPECT_EQ(server.request().metadata, nullptr);
  server.AnswerAll();
  InboundResponse refusal;
  ASSERT_EQ(Cut(server.sink().Take(), &refusal), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&refusal), ParseResult::kOk);
  EXPECT_EQ(refusal.status, STATUS_MALFORMED_DATA);
  // The connection goes on.
  server.Feed(Request(nullptr));
  ASSERT_EQ(server.count(), 2u);
  EXPECT_EQ(server.result(1), ParseResult::kOk);

  protocol_ = NewClient(SmallLimits());
  ServerDriver generous = NewServer();
  generous.Feed(Request(nullptr));
  ASSERT_EQ(generous.count(), 1u);
  InboundResponse response;
  ASSERT_EQ(Cut(Reply(&generous, &metadata), &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
  EXPECT_EQ(response.correlation_id, 7u);
  // One over trpc is for the request's, which a reply repeats.
  EXPECT_EQ(response.description,
            GetParam().name == "trpc"
                ? "metadata of 3 entries exceeds the limit of 2"
                : "metadata of 3 entries exceeds the limit of 1");
}

// A proxy passes on values of peers, which may be any bytes.
TEST_P(MetadataProtocols, ValuesOfPeersForgeNothing) {
  Metadata metadata;
  ASSERT_TRUE(metadata.AddReceived("k", "v\r\nRpc-Timeout: 1\r\n\r\n"));
  ServerDriver server = NewServer();
  server.Feed(Request(&metadata));
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  EXPECT_EQ(server.request().head.timeout_ms, 0u);
  ASSERT_NE(server.request().metadata, nullptr);
  EXPECT_EQ(server.request().metadata->size(), 1u);
  EXPECT_EQ(FlattenSlow(server.request().body), "body");
}

INSTANTIATE_TEST_SUITE_P(All, MetadataProtocols, ::testing::ValuesIn(kWires),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : info.param.name) {
                             if (c != '+' && c != '-') name += c;
                           }
                           return name;
                         });

// --- of single protocols ---------------------------------------------------

ServerDriver ServerOf(const std::string& name) {
  return ServerDriver([&](ReplySink* sink) {
    return ServerProtocolSet::FromNames({name})->New(0, sink);
  });
}

// Headers that a browser or a proxy adds are metadata, but those that frame the
// message aren't.
TEST(HttpMetadata, OfOtherCallers) {
  ServerDriver server = ServerOf("http+pb");
  server.Feed(
      "POST /rpc/a.B.C HTTP/1.1\r\nHost: h\r\nRpc-SeqNo: 7\r\n"
      "User-Agent: x/1\r\nX-Request-Id: 5\r\nConnection: keep-alive\r\n"
      "TE: trailers\r\nKeep-Alive: 5\r\nRpc-Other: 1\r\n"
      "a-bin: AAE=, AgM\r\nContent-Type: application/x-protobuf\r\n"
      "Content-Length: 0\r\n\r\n");
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  const Metadata& metadata = *server.request().metadata;
  EXPECT_EQ(metadata.size(), 4u);
  EXPECT_EQ(metadata.Get("user-agent"), "x/1");
  EXPECT_EQ(metadata.Get("x-request-id"), "5");
  EXPECT_EQ(metadata.GetAll("a-bin"),
            (std::vector<std::string_view>{{"\0\1", 2}, {"\2\3", 2}}));
}

TEST(HttpMetadata, OfChunkedRequests) {
  ServerDriver server = ServerOf("http+pb");
  server.Feed(
      "POST /rpc/a.B.C HTTP/1.1\r\nHost: h\r\nRpc-SeqNo: 7\r\nk: v\r\n"
      "Content-Type: application/x-protobuf\r\n"
      "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n");
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  ASSERT_NE(server.request().metadata, nullptr);
  EXPECT_EQ(server.request().metadata->Get("k"), "v");
}

// With the names of a Java peer, and without the protocol's own.
TEST(BoltMetadata, LeavesOutTheProtocolsOwn) {
  Metadata metadata;
  ASSERT_TRUE(metadata.AddReceived("service", "x"));
  auto client = std::move(NewClientProtocol("bolt", {}, "")).value();
  OutboundRequest request;
  request.correlation_id = 7;
  request.method = "a.B.C";
  request.metadata = &metadata;
  BufferBuilder out;
  const flare::Status status = client->Write(std::move(request), &out);
  EXPECT_EQ(status.code(), STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status.message(),
            "bolt: the protocol uses the name \"service\" itself: it can't be "
            "that of metadata");
  EXPECT_TRUE(out.DestructiveGet().empty());
}

// A reply repeats the request's trans_info, as published servers do, in front
// of its own.
TEST(TrpcMetadata, FollowsWhatIsRepeated) {
  const Metadata asked = TwoEntries();
  auto client = std::move(NewClientProtocol("trpc", {}, "")).value();
  OutboundRequest request;
  request.correlation_id = 7;
  request.method = "a.B.C";
  request.metadata = &asked;
  BufferBuilder out;
  ASSERT_TRUE(client->Write(std::move(request), &out).ok());
  ServerDriver server = ServerOf("trpc");
  server.Feed(FlattenSlow(out.DestructiveGet()));
  ASSERT_EQ(server.count(), 1u);
  Metadata answered;
  ASSERT_TRUE(answered.Add("r", "s").ok());
  OutboundResponse response;
  response.metadata = &answered;
  server.protocol().Write(server.request().ticket, std::move(response));
  EXPECT_THAT(server.sink().Take(),
              HasSubstr("\x42"s + kPbEntry + "\x42" + kPbBinary +
                        "\x42\x06\x0a\x01r\x12\x01s"));
}

// A reply whose metadata has no room beside the repeated part is sent without
// it.
TEST(TrpcMetadata, IsWorthLessThanTheReply) {
  Metadata asked;
  for (int i = 0; i != 4; ++i) {
    ASSERT_TRUE(asked.AddReceived("k", std::string(15'000, 'x')));
  }
  Limits limits;
  limits.metadata.bytes = 1 << 20;
  auto client = std::move(NewClientProtocol("trpc", limits, "")).value();
  OutboundRequest request;
  request.correlation_id = 7;
  request.method = "a.B.C";
  request.metadata = &asked;
  BufferBuilder out;
  ASSERT_TRUE(client->Write(std::move(request), &out).ok());
  ServerDriver server([&](ReplySink* sink) {
    return ServerProtocolSet::FromNames({"trpc"}, limits)->New(0, sink);
  });
  server.Feed(FlattenSlow(out.DestructiveGet()));
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  Metadata answered;
  ASSERT_TRUE(answered.Add("r", std::string(10'000, 's')).ok());
  OutboundResponse response;
  response.body = CreateBufferSlow("reply");
  response.metadata = &answered;
  server.protocol().Write(server.request().ticket, std::move(response));
  Buffer in = CreateBufferSlow(server.sink().Take());
  InboundResponse read;
  std::size_t need;
  std::string error;
  ASSERT_EQ(client->Cut(in, &read, &need, &error), CutResult::kMessage);
  ASSERT_EQ(client->Parse(&read), ParseResult::kOk);
  EXPECT_EQ(read.status, STATUS_SUCCESS);
  EXPECT_EQ(FlattenSlow(read.body), "reply");
  EXPECT_FALSE(read.metadata->Contains("r"));
}

// log_id, and a key of a Java peer.
TEST(BaiduStdMetadata, HasTheLogId) {
  ServerDriver server = ServerOf("baidu-std");
  const std::string meta = "\x0a\x0a\x0a\x03"s + "a.B\x12\x01"s +
                           "C\x18\x2a"s +  // log_id 42
                           "\x20\x07\x4a\x06\x0a\x01K\x12\x01v"s;
  server.Feed("PRPC\0\0\0"s + static_cast<char>(meta.size()) + "\0\0\0"s +
              static_cast<char>(meta.size()) + meta);
  ASSERT_EQ(server.count(), 1u);
  ASSERT_EQ(server.result(), ParseResult::kOk);
  ASSERT_NE(server.request().metadata, nullptr);
  EXPECT_EQ(server.request().metadata->Get("log-id"), "42");
  EXPECT_EQ(server.request().metadata->Get("k"), "v");
}

}  // namespace
}  // namespace flare::rpc

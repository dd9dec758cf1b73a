#include <memory>
#include <string>
#include <utility>

#include "flare/rpc/wire/bolt_frame.h"
#include "flare/rpc/wire/bolt_protocol.h"
#include "flare/rpc/wire/bolt_testing.h"
#include "flare/rpc/wire/flood_guard.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::BoltErrorReply;
using testing::BoltHeaders;
using testing::BoltRequestParts;
using testing::BoltResponseParts;
using testing::FromHex;
using testing::ServerDriver;
using testing::SlicedBuffer;

class BoltClient : public ::testing::Test {
 protected:
  BoltClient() {
    Limits limits;
    limits.max_packet_size = 1000;
    protocol_ = NewBoltClientProtocol(limits, "host");
  }

  static OutboundRequest Call(std::string_view method = "a.b.Service.Method") {
    OutboundRequest request;
    request.correlation_id = 0x01020304;
    request.method = method;
    request.timeout_ms = 2000;
    request.body = CreateBufferSlow("content");
    return request;
  }

  flare::Status Write(OutboundRequest request) {
    BufferBuilder builder;
    flare::Status status = protocol_->Write(std::move(request), &builder);
    written_ = FlattenSlow(builder.DestructiveGet());
    return status;
  }

  // Cuts and parses one response; fails the test if there isn't just one.
  ParseResult Read(std::string_view bytes, std::size_t piece = 1000) {
    response_.Clear();
    Buffer in = SlicedBuffer(bytes, piece);
    std::size_t need = 0;
    EXPECT_EQ(protocol_->Cut(in, &response_, &need, &error_),
              CutResult::kMessage);
    EXPECT_TRUE(in.empty());
    return protocol_->Parse(&response_);
  }

  CutResult Cut(std::string_view bytes, std::size_t* need = nullptr) {
    response_.Clear();
    Buffer in = SlicedBuffer(bytes, 7);
    std::size_t unused;
    return protocol_->Cut(in, &response_, need ? need : &unused, &error_);
  }

  std::unique_ptr<ClientProtocol> protocol_;
  std::string written_;
  InboundResponse response_;
  std::string error_;
};

TEST_F(BoltClient, WritesACall) {
  ASSERT_TRUE(Write(Call()).ok());
  BoltRequestParts parts;
  parts.id = 0x01020304;
  parts.timeout_ms = 2000;
  parts.headers = BoltHeaders({{"service", "a.b.Service:1.0"},
                               {"sofa_head_target_service", "a.b.Service:1.0"},
                               {"sofa_head_method_name", "Method"}});
  parts.content = "content";
  EXPECT_EQ(written_, parts.Bytes());
  OutboundRequest one_way = Call();
  one_way.one_way = true;
  ASSERT_TRUE(Write(std::move(one_way)).ok());
  parts.type = 2;
  EXPECT_EQ(written_, parts.Bytes());
}

TEST_F(BoltClient, WritesTimeouts) {
  struct Case {
    std::uint32_t timeout_ms;
    const char* hex;
  } cases[] = {{0, "ffffffff"},
               {1, "00000001"},
               {0x7fffffff, "7fffffff"},
               {0xffffffff, "7fffffff"}};
  for (const Case& c : cases) {
    OutboundRequest request = Call();
    request.timeout_ms = c.timeout_ms;
    ASSERT_TRUE(Write(std::move(request)).ok());
    EXPECT_EQ(written_.substr(10, 4), FromHex(c.hex));
  }
}

// From a few bytes more than a builder reserves in one piece up to the limit.
TEST_F(BoltClient, WritesNamesOfAnySize) {
  for (std::size_t size = 1; size < 32'000; size += size < 600 ? 7 : 1000) {
    const std::string name = std::string(size, 's') + ".Method";
    ASSERT_TRUE(Write(Call(name)).ok());
    ServerDriver server(
        [](ReplySink* sink) { return NewBoltServerProtocol(Limits(), sink); });
    server.Feed(written_, 100);
    ASSERT_EQ(server.count(), 1u);
    ASSERT_EQ(server.result(), ParseResult::kOk);
    EXPECT_EQ(server.request().head.method, name);
    EXPECT_EQ(FlattenSlow(server.request().body), "content");
  }
}

TEST_F(BoltClient, RefusesWhatItCannotWrite) {
  for (const std::string& name :
       {""s, "Method"s, ".Method"s, "a.B."s, std::string(33'000, 's') + ".M"}) {
    EXPECT_EQ(Write(Call(name)).code(), STATUS_INVALID_METHOD_NAME);
    EXPECT_EQ(written_, "");
  }
  OutboundRequest request = Call();
  request.attachment = CreateBufferSlow("a");
  EXPECT_EQ(Write(std::move(request)).code(), STATUS_NOT_SUPPORTED);
  request = Call();
  request.correlation_id = std::uint64_t{1} << 32;
  EXPECT_EQ(Write(std::move(request)).code(), STATUS_SERIALIZE_REQUEST);
  EXPECT_EQ(written_, "");
}

// --------------------------------------------------------------------------

TEST_F(BoltClient, ReadsAResponse) {
  BoltResponseParts parts;
  parts.headers = BoltHeaders({{"some", "thing"}});
  parts.content = "content";
  for (std::size_t piece : {1, 50, 1000}) {
    ASSERT_EQ(Read(parts.Bytes(), piece), ParseResult::kOk);
    EXPECT_EQ(response_.correlation_id, 7u);
    EXPECT_EQ(response_.status, STATUS_SUCCESS);
    EXPECT_EQ(response_.description, "");
    EXPECT_EQ(FlattenSlow(response_.body), "content");
    EXPECT_EQ(response_.wire_size, parts.Bytes().size());
    EXPECT_FALSE(response_.last_on_connection);
  }
}

// The documented one with another codec: neither class nor headers.
TEST_F(BoltClient, ReadsAResponseWithoutClass) {
  std::string bytes = testing::kBoltResponseVector;
  bytes[9] = 11;
  ASSERT_EQ(Read(bytes), ParseResult::kOk);
  EXPECT_EQ(response_.correlation_id, 1u);
  EXPECT_EQ(response_.status, STATUS_SUCCESS);
  EXPECT_EQ(FlattenSlow(response_.body), "hello");
}

TEST_F(BoltClient, TheDocumentedResponseIsNoProtobuf) {
  ASSERT_EQ(Read(testing::kBoltResponseVector), ParseResult::kReject);
  EXPECT_EQ(response_.correlation_id, 1u);
  EXPECT_EQ(response_.status, STATUS_MALFORMED_DATA);
  EXPECT_EQ(response_.description,
            "bolt: a response that isn't protobuf (codec 11)");
}

TEST_F(BoltClient, ReadsOurErrors) {
  for (int status : {9, 10, 11, 99, 104, 4711, -5}) {
    for (std::size_t piece : {1, 1000}) {
      ASSERT_EQ(Read(BoltErrorReply(2, status, "why"), piece),
                ParseResult::kOk);
      EXPECT_EQ(response_.correlation_id, 7u);
      EXPECT_EQ(response_.status, status);
      EXPECT_EQ(response_.description, "why");
    }
  }
}

TEST_F(BoltClient, ReadsTheErrorsOfOthers) {
  struct Case {
    std::uint16_t bolt_status;
    int status;
    const char* text;
  } cases[] = {{1, STATUS_FAILED, "error"},
               {2, STATUS_FAILED, "server exception"},
               {3, STATUS_FAILED, "unknown"},
               {4, STATUS_OVERLOADED, "thread pool busy"},
               {6, STATUS_NO_PEER, "no processor, or no healthy upstream"},
               {7, STATUS_TIMEOUT, "timeout"},
               {9, STATUS_NOT_SUPPORTED, "codec exception"},
               {16, STATUS_CHANNEL_SHUTDOWN, "connection closed"},
               {18, STATUS_PARSE_REQUEST, "server deserialize exception"},
               {1000, STATUS_FAILED, "unknown"}};
  for (const Case& c : cases) {
    BoltResponseParts parts;
    parts.status = c.bolt_status;
    parts.codec = 1;
    parts.content = "a hessian object";
    ASSERT_EQ(Read(parts.Bytes()), ParseResult::kOk);
    EXPECT_EQ(response_.status, c.status);
    EXPECT_EQ(response_.description, "bolt: response status " +
                                         std::to_string(c.bolt_status) + " (" +
                                         c.text + ")");
  }
}

TEST_F(BoltClient, DoubtfulErrorCodesAreNotUsed) {
  for (const char* code : {"", "0", "x", "1x", "99999999999999999999"}) {
    BoltResponseParts parts;
    parts.status = 7;
    parts.headers =
        BoltHeaders({{"Rpc-Error-Code", code}, {"Rpc-Error-Reason", "why"}});
    ASSERT_EQ(Read(parts.Bytes()), ParseResult::kOk);
    EXPECT_EQ(response_.status, STATUS_TIMEOUT) << code;
    EXPECT_EQ(response_.description, "why");
  }
  // Nor is a failure made of success.
  BoltResponseParts parts;
  parts.headers = BoltHeaders({{"Rpc-Error-Code", "99"}});
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kOk);
  EXPECT_EQ(response_.status, STATUS_SUCCESS);
}

// How SOFARPC reports an exception of the service to callers that use
// protobuf.
TEST_F(BoltClient, ReadsErrorsInsideOfSuccess) {
  BoltResponseParts parts;
  parts.headers = BoltHeaders({{"sofa_head_response_error", "true"}});
  parts.content = "it broke";
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kOk);
  EXPECT_EQ(response_.status, STATUS_FAILED);
  EXPECT_EQ(response_.description, "it broke");
  parts.headers = BoltHeaders({{"sofa_head_response_error", "false"}});
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kOk);
  EXPECT_EQ(response_.status, STATUS_SUCCESS);
}

// Heartbeats of the server's own, and answers without a question.
TEST_F(BoltClient, HeartbeatsHaveAnEnd) {
  std::string answer = testing::kBoltHeartbeatVector.substr(0, 20);
  answer[1] = 0;
  answer.replace(10, 10, 10, '\0');
  for (const std::string& heartbeat : {testing::kBoltHeartbeatVector, answer}) {
    protocol_ = NewBoltClientProtocol(Limits(), "");
    std::string bytes;
    for (int i = 0; i != 3 * FloodGuard::kMaxNotices; ++i) bytes += heartbeat;
    Buffer in = CreateBufferSlow(bytes);
    std::size_t need = 0;
    std::string error;
    CutResult result = CutResult::kMessage;
    int messages = 0;
    for (; result == CutResult::kMessage; ++messages) {
      response_.Clear();
      result = protocol_->Cut(in, &response_, &need, &error);
    }
    // At most those of two seconds.
    EXPECT_EQ(result, CutResult::kError);
    EXPECT_EQ(error, kBoltNoticesWithoutEnd);
    EXPECT_LE(messages, 2 * FloodGuard::kMaxNotices + 1);
  }
}

// Our server says the code as well, and other servers a status.
TEST_F(BoltClient, ReadsWhatSofasClientsAreTold) {
  BoltResponseParts parts;
  parts.content = "it broke";
  for (std::uint16_t bolt_status : {0, 2}) {
    parts.status = bolt_status;
    parts.headers = BoltHeaders(
        {{"sofa_head_response_error", "true"}, {"Rpc-Error-Code", "4711"}});
    for (std::size_t piece : {1, 1000}) {
      ASSERT_EQ(Read(parts.Bytes(), piece), ParseResult::kOk);
      EXPECT_EQ(response_.status, 4711);
      EXPECT_EQ(response_.description, "it broke");
    }
  }
  parts.status = 4;
  parts.headers = BoltHeaders({{"sofa_head_response_error", "true"}});
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kOk);
  EXPECT_EQ(response_.status, STATUS_OVERLOADED);
  EXPECT_EQ(response_.description, "it broke");
  parts.status = 0;
  parts.content = "";
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kOk);
  EXPECT_EQ(response_.status, STATUS_FAILED);
  EXPECT_FALSE(response_.description.empty());
}

TEST_F(BoltClient, ResponsesItCannotReadFailTheirCall) {
  BoltResponseParts parts;
  parts.headers = "\0\0\0\x09k"s;
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kReject);
  EXPECT_EQ(response_.correlation_id, 7u);
  EXPECT_EQ(response_.description,
            "bolt: a response with a malformed header map");

  parts = BoltResponseParts();
  parts.command = 3;
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kReject);
  EXPECT_EQ(response_.description,
            "bolt: a response with an unknown command code");

  parts = BoltResponseParts();
  parts.content = std::string(1000, 'x');
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kReject);
  EXPECT_EQ(response_.correlation_id, 7u);
  EXPECT_EQ(response_.status, STATUS_MALFORMED_DATA);
  EXPECT_EQ(response_.description,
            "a message of 1066 bytes exceeds the limit of 1000 "
            "(flare_rpc_channel_max_packet_size)");
}

TEST_F(BoltClient, PassesOverHeartbeatsThatNeedNoAnswer) {
  const std::string reply =
      FromHex("01 00 0000 01 00000007 01 0000 0000 0000 00000000");
  std::string one_way = testing::kBoltHeartbeatVector;
  one_way[1] = 2;
  ASSERT_EQ(Read(reply + one_way + BoltResponseParts().Bytes()),
            ParseResult::kOk);
  EXPECT_EQ(response_.correlation_id, 7u);
  EXPECT_FALSE(response_.is_notice);
  EXPECT_EQ(Cut(reply), CutResult::kNeedMore);
}

TEST_F(BoltClient, HeartbeatsOfTheServerHaveAnAnswer) {
  for (std::size_t piece : {1, 1000}) {
    ASSERT_EQ(Read(testing::kBoltHeartbeatVector, piece), ParseResult::kOk);
    EXPECT_EQ(response_.correlation_id, 0u);
    EXPECT_TRUE(response_.is_notice);
    EXPECT_FALSE(response_.last_on_connection);
    EXPECT_EQ(FlattenSlow(response_.body),
              FromHex("01 00 0000 01 00000007 01 0000 0000 0000 00000000"));
  }
}

TEST_F(BoltClient, GoAwayIsForNoCallButTheConnection) {
  BoltRequestParts parts;
  parts.command = 100;
  ASSERT_EQ(Read(parts.Bytes()), ParseResult::kOk);
  EXPECT_EQ(response_.correlation_id, 0u);
  EXPECT_TRUE(response_.last_on_connection);
  EXPECT_TRUE(response_.is_notice);
  EXPECT_TRUE(response_.body.empty());
  ASSERT_EQ(Read(BoltResponseParts().Bytes()), ParseResult::kOk);
  EXPECT_FALSE(response_.last_on_connection);
}

TEST_F(BoltClient, OtherBytesAreErrors) {
  EXPECT_EQ(Cut(BoltRequestParts().Bytes()), CutResult::kError);
  EXPECT_EQ(error_, "bolt: a request instead of a response");
  EXPECT_EQ(Cut("HTTP/1.1 200 OK\r\n"), CutResult::kError);
  EXPECT_EQ(error_, "bolt: the peer's bytes are no bolt response");
  EXPECT_EQ(Cut("\x01\x09"), CutResult::kError);
}

TEST_F(BoltClient, Version2IsNamedAsTheReason) {
  const std::string head =
      FromHex("02 01 00 0002 01 00000001 01 00 0000 0000 0000");
  EXPECT_EQ(Cut(head), CutResult::kNeedMore);
  EXPECT_EQ(Cut(head + FromHex("00000000")), CutResult::kError);
  EXPECT_EQ(error_, "bolt: the peer speaks version 2 of the protocol, not 1");
}

}  // namespace
}  // namespace flare::rpc

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/wire/bolt_frame.h"
#include "flare/rpc/wire/bolt_protocol.h"
#include "flare/rpc/wire/bolt_testing.h"
#include "flare/rpc/wire/flood_guard.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "flare/rpc/wire/utf8.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::BigEndian;
using testing::BoltErrorReply;
using testing::BoltHeaders;
using testing::BoltRequestParts;
using testing::BoltResponseParts;
using testing::FromHex;
using testing::kBoltHeartbeatVector;
using testing::kBoltRequestVector;
using testing::ServerDriver;

const std::string kHeartbeatReply =
    FromHex("01 00 0000 01 00000007 01 0000 0000 0000 00000000");

std::unique_ptr<ServerDriver> NewDriver(std::size_t max_packet_size = 4096) {
  return std::make_unique<ServerDriver>([=](ReplySink* sink) {
    Limits limits;
    limits.max_packet_size = max_packet_size;
    return NewBoltServerProtocol(limits, sink);
  });
}

class BoltServer : public ::testing::Test {
 protected:
  // Feeds one bad request; expects that it is answered so, and that the
  // connection still works.
  void ExpectAnswered(const BoltRequestParts& parts, std::uint16_t bolt_status,
                      int status, const std::string& text) {
    for (std::size_t piece : {1, 1000}) {
      auto driver = NewDriver();
      driver->Feed(parts.Bytes(), piece);
      ASSERT_EQ(driver->count(), 1u);
      EXPECT_EQ(driver->result(), ParseResult::kReject);
      EXPECT_EQ(driver->request().reject_status, status);
      EXPECT_EQ(driver->request().reject_reason, text);
      driver->AnswerAll();
      std::string scratch;
      EXPECT_EQ(driver->sink().Take(),
                BoltErrorReply(bolt_status, status,
                               std::string(AsUtf8(text, &scratch)), parts.id,
                               parts.codec));

      driver->Feed(BoltRequestParts().Bytes());
      ASSERT_EQ(driver->count(), 2u);
      EXPECT_EQ(driver->result(1), ParseResult::kOk);
      EXPECT_FALSE(driver->sink().closed());
    }
  }

  std::unique_ptr<ServerDriver> driver_ = NewDriver();
};

TEST_F(BoltServer, ReadsACall) {
  BoltRequestParts parts;
  parts.content = "content";
  EXPECT_EQ(driver_->Feed(parts.Bytes()), CutResult::kMessage);
  ASSERT_EQ(driver_->count(), 1u);
  ASSERT_EQ(driver_->result(), ParseResult::kOk);
  const InboundRequest& request = driver_->request();
  EXPECT_EQ(driver_->facts().id, 7u);
  EXPECT_EQ(request.head.method, "a.B.C");
  EXPECT_EQ(request.head.timeout_ms, 3000u);
  EXPECT_EQ(request.head.format, PayloadFormat::kProtobuf);
  EXPECT_EQ(request.head.compression, CompressionAlgorithm::kNone);
  EXPECT_EQ(FlattenSlow(request.body), "content");
  EXPECT_TRUE(request.attachment.empty());
  EXPECT_EQ(request.wire_size, parts.Bytes().size());
  EXPECT_FALSE(request.own);
  EXPECT_FALSE(driver_->facts().one_way);
  EXPECT_TRUE(driver_->in().empty());
}

TEST_F(BoltServer, WritesAResponse) {
  driver_->Feed(BoltRequestParts().Bytes());
  driver_->Answer(0, "reply");
  BoltResponseParts parts;
  parts.content = "reply";
  EXPECT_EQ(driver_->sink().Take(), parts.Bytes());
  driver_->Answer(0, "");
  parts.content = "";
  EXPECT_EQ(driver_->sink().Take(), parts.Bytes());
  const std::string large(100'000, 'x');
  driver_->Answer(0, large);
  parts.content = large;
  EXPECT_EQ(driver_->sink().Take(), parts.Bytes());
}

// It is a hessian object, which we don't read.
TEST_F(BoltServer, AnswersTheDocumentedRequest) {
  driver_->Feed(kBoltRequestVector);
  ASSERT_EQ(driver_->count(), 1u);
  driver_->AnswerAll();
  // Byte for byte, the text as SOFARPC's clients of Java and node read it.
  BoltResponseParts parts;
  parts.id = 1;
  parts.codec = 1;
  parts.headers =
      BoltHeaders({{"sofa_head_response_error", "true"},
                   {"Rpc-Error-Code", std::to_string(STATUS_NOT_SUPPORTED)}});
  parts.content =
      FromHex("4f be") + "com.alipay.sofa.rpc.core.response.SofaResponse" +
      FromHex("94 07") + "isError" + FromHex("08") + "errorMsg" +
      FromHex("0b") + "appResponse" + FromHex("0d") + "responseProps" +
      FromHex("6f 90 54 53 003d") +
      "bolt: the content must be protobuf (codec 11), not of codec 1" +
      FromHex("4e 4e");
  EXPECT_EQ(driver_->sink().Take(), parts.Bytes());
}

TEST_F(BoltServer, SaysNothingInHessianOfOtherClasses) {
  BoltRequestParts parts;
  parts.codec = 1;
  parts.class_name = "a.Request";
  driver_->Feed(parts.Bytes());
  driver_->AnswerAll();
  EXPECT_EQ(driver_->sink().Take(),
            BoltErrorReply(6, STATUS_SERVICE_NOT_FOUND,
                           "bolt: no processor for class a.Request", 7, 1));
}

TEST_F(BoltServer, AnswersTheDocumentedHeartbeat) {
  EXPECT_EQ(driver_->Feed(kBoltHeartbeatVector), CutResult::kHandled);
  EXPECT_EQ(driver_->count(), 0u);
  EXPECT_EQ(driver_->sink().Take(), kHeartbeatReply);
  EXPECT_TRUE(driver_->in().empty());
}

TEST_F(BoltServer, AnswersHeartbeatsAmongCalls) {
  const std::string call = BoltRequestParts().Bytes();
  const std::string bytes = kBoltHeartbeatVector + call + kBoltHeartbeatVector +
                            kBoltHeartbeatVector + call + kBoltHeartbeatVector;
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    auto driver = NewDriver();
    driver->Feed(bytes, piece);
    EXPECT_EQ(driver->count(), 2u) << piece;
    EXPECT_EQ(driver->sink().writes(), 4);
  }
  driver_->Trickle(bytes);
  EXPECT_EQ(driver_->count(), 2u);
  EXPECT_EQ(driver_->sink().Take(), kHeartbeatReply + kHeartbeatReply +
                                        kHeartbeatReply + kHeartbeatReply);
}

TEST_F(BoltServer, HeartbeatsHaveAnEnd) {
  std::string go_away = BoltRequestParts().Bytes().substr(0, 22);
  go_away[3] = 100;
  go_away.replace(14, 8, 8, '\0');
  for (const std::string& notice : {kBoltHeartbeatVector, go_away}) {
    std::string bytes;
    for (int i = 0; i != 3 * FloodGuard::kMaxNotices; ++i) bytes += notice;
    auto driver = NewDriver();
    EXPECT_EQ(driver->Feed(bytes), CutResult::kError);
    EXPECT_EQ(driver->error(), kBoltNoticesWithoutEnd);
    EXPECT_LE(driver->sink().writes(), 2 * FloodGuard::kMaxNotices + 1);
  }
}

// Only the parts that make the reply are looked at.
TEST_F(BoltServer, AnswersOddHeartbeats) {
  BoltRequestParts parts;
  parts.command = 0;
  parts.codec = 1;
  parts.headers = "not a map";
  parts.content = std::string(10'000, 'x');  // More than the limit.
  driver_->Feed(parts.Bytes() + BoltRequestParts().Bytes());
  EXPECT_EQ(driver_->sink().Take(), kHeartbeatReply);
  EXPECT_EQ(driver_->count(), 1u);
  parts.type = 2;
  driver_->Feed(parts.Bytes() + BoltRequestParts().Bytes());
  EXPECT_EQ(driver_->sink().Take(), "");
  EXPECT_EQ(driver_->count(), 2u);
}

TEST_F(BoltServer, NeverAnswersOneWayRequests) {
  BoltRequestParts parts;
  parts.type = 2;
  parts.content = "content";
  driver_->Feed(parts.Bytes());
  ASSERT_EQ(driver_->count(), 1u);
  ASSERT_EQ(driver_->result(0), ParseResult::kOk);
  EXPECT_EQ(driver_->request(0).head.method, "a.B.C");
  EXPECT_EQ(FlattenSlow(driver_->request(0).body), "content");
  parts.class_name = "wrong";
  driver_->Feed(parts.Bytes());
  ASSERT_EQ(driver_->count(), 2u);
  EXPECT_EQ(driver_->result(1), ParseResult::kReject);
  parts.content = std::string(10'000, 'x');
  driver_->Feed(parts.Bytes());
  ASSERT_EQ(driver_->count(), 3u);
  EXPECT_EQ(driver_->result(2), ParseResult::kReject);
  driver_->AnswerAll("reply");
  EXPECT_EQ(driver_->sink().Take(), "");
  EXPECT_EQ(driver_->sink().writes(), 0);
  EXPECT_FALSE(driver_->sink().aborted());
}

TEST_F(BoltServer, PassesOverGoAway) {
  BoltRequestParts parts;
  parts.command = 100;
  driver_->Feed(parts.Bytes() + BoltRequestParts().Bytes());
  EXPECT_EQ(driver_->count(), 1u);
  EXPECT_EQ(driver_->sink().writes(), 0);
}

// The method's name is put together beside a header map of any size.
TEST_F(BoltServer, FindsTheMethodInLargeHeaderMaps) {
  for (std::size_t size : {1, 100, 1000, 60'000}) {
    const std::string service(size, 's');
    BoltRequestParts parts;
    parts.headers = BoltHeaders({{"x", "y"},
                                 {"sofa_head_method_name", "Method"},
                                 {"service", service + ":2.0:id"},
                                 {"z", ""}});
    for (std::size_t piece : {1, 500, 100'000}) {
      auto driver = NewDriver(1 << 20);
      driver->Feed(parts.Bytes(), piece);
      ASSERT_EQ(driver->result(), ParseResult::kOk);
      EXPECT_EQ(driver->request().head.method, service + ".Method");
    }
  }
}

TEST_F(BoltServer, PrefersTheServiceThatMeshesRewrite) {
  BoltRequestParts parts;
  parts.headers = BoltHeaders({{"service", "a.New:1.0"},
                               {"sofa_head_method_name", "M"},
                               {"sofa_head_target_service", "a.Old:1.0"}});
  driver_->Feed(parts.Bytes());
  parts.headers = BoltHeaders({{"service", ""},
                               {"sofa_head_method_name", "M"},
                               {"sofa_head_target_service", "a.Old:1.0"}});
  driver_->Feed(parts.Bytes());
  ASSERT_EQ(driver_->count(), 2u);
  ASSERT_EQ(driver_->result(0), ParseResult::kOk);
  EXPECT_EQ(driver_->request(0).head.method, "a.New.M");
  ASSERT_EQ(driver_->result(1), ParseResult::kOk);
  EXPECT_EQ(driver_->request(1).head.method, "a.Old.M");
}

TEST_F(BoltServer, TimeoutsBelow1AreNone) {
  for (int timeout : {0, -1, std::numeric_limits<int>::min()}) {
    BoltRequestParts parts;
    parts.timeout_ms = timeout;
    driver_ = NewDriver();
    driver_->Feed(parts.Bytes());
    ASSERT_EQ(driver_->result(), ParseResult::kOk);
    EXPECT_EQ(driver_->request().head.timeout_ms, 0u);
  }
}

// --------------------------------------------------------------------------

TEST_F(BoltServer, RefusesUnknownCommands) {
  for (int command : {2, 3, 99, 101, 65535}) {
    BoltRequestParts parts;
    parts.command = static_cast<std::uint16_t>(command);
    ExpectAnswered(parts, 9, STATUS_NOT_SUPPORTED,
                   "bolt: unknown command code " + std::to_string(command));
  }
}

TEST_F(BoltServer, RefusesUnknownClasses) {
  BoltRequestParts parts;
  for (const std::string& name : {""s, "java.lang.String"s, "\0\xff"s}) {
    parts.class_name = name;
    ExpectAnswered(parts, 6, STATUS_SERVICE_NOT_FOUND,
                   "bolt: no processor for class " + name);
  }
  // Quotations have a limit.
  parts.class_name = std::string(3000, 'c');
  ExpectAnswered(parts, 6, STATUS_SERVICE_NOT_FOUND,
                 "bolt: no processor for class " + std::string(256, 'c'));
}

TEST_F(BoltServer, RefusesOtherCodecs) {
  for (int codec : {0, 2, 3, 4, 12, 255}) {
    BoltRequestParts parts;
    parts.codec = static_cast<std::uint8_t>(codec);
    ExpectAnswered(
        parts, 9, STATUS_NOT_SUPPORTED,
        "bolt: the content must be protobuf (codec 11), not of codec " +
            std::to_string(codec));
  }
}

TEST_F(BoltServer, RefusesMalformedHeaderMaps) {
  BoltRequestParts parts;
  const std::string good = parts.headers;
  for (const std::string& bad :
       {good + "x", good.substr(0, good.size() - 1), "\0\0\0\1k"s,
        "\xff\xff\xff\xfe"s, good + BigEndian(70'000, 4)}) {
    parts.headers = bad;
    ExpectAnswered(parts, 18, STATUS_MALFORMED_DATA,
                   "bolt: malformed header map");
  }
}

TEST_F(BoltServer, RefusesRequestsThatNameNoMethod) {
  BoltRequestParts parts;
  const std::string no_service = "bolt: no header sofa_head_target_service";
  const std::string no_method = "bolt: no header sofa_head_method_name";
  parts.headers = "";
  ExpectAnswered(parts, 6, STATUS_INVALID_METHOD_NAME, no_service);
  parts.headers = BoltHeaders({{"sofa_head_method_name", "M"}});
  ExpectAnswered(parts, 6, STATUS_INVALID_METHOD_NAME, no_service);
  parts.headers =
      BoltHeaders({{"service", ":1.0"}, {"sofa_head_method_name", "M"}});
  ExpectAnswered(parts, 6, STATUS_INVALID_METHOD_NAME, no_service);
  parts.headers = BoltHeaders({{"service", "a.B:1.0"}});
  ExpectAnswered(parts, 6, STATUS_INVALID_METHOD_NAME, no_method);
}

TEST_F(BoltServer, RefusesOversizedRequests) {
  BoltRequestParts parts;
  parts.content = std::string(5000, 'x');
  ExpectAnswered(parts, 18, STATUS_MALFORMED_DATA,
                 "a message of " + std::to_string(parts.Bytes().size()) +
                     " bytes exceeds the limit of 4096 "
                     "(flare_rpc_server_max_packet_size)");
}

// Before any of it has come.
TEST_F(BoltServer, RefusesOversizedRequestsByTheAnnouncedSize) {
  BoltRequestParts parts;
  std::string head = parts.Bytes().substr(0, 22);
  head.replace(18, 4, "\x01\xff\xff\xff");
  EXPECT_EQ(driver_->Feed(head), CutResult::kMessage);
  driver_->AnswerAll();
  EXPECT_EQ(driver_->sink().Take()[11], 18);
  for (int i = 0; i != 100; ++i) {
    EXPECT_EQ(driver_->Feed(std::string(10'000, 'x')), CutResult::kNeedMore);
    EXPECT_TRUE(driver_->in().empty());
  }
}

TEST_F(BoltServer, ClosesOnResponsesAndUnknownTypes) {
  EXPECT_EQ(driver_->Feed(BoltResponseParts().Bytes()), CutResult::kError);
  EXPECT_EQ(driver_->error(), "bolt: a response instead of a request");
  driver_ = NewDriver();
  EXPECT_EQ(driver_->Feed("\x01\x03"), CutResult::kError);
}

// In its own form, without CRC; the next frame is understood.
TEST_F(BoltServer, RefusesRequestsOfVersion2) {
  const std::string request =
      FromHex("02 02 01 0001 01 00000009 04 01 00000bb8 0001 0002 00000003") +
      "chhabc1234";
  for (std::size_t piece = 1; piece <= request.size(); ++piece) {
    auto driver = NewDriver();
    driver->Feed(request + BoltRequestParts().Bytes(), piece);
    ASSERT_EQ(driver->count(), 2u);
    EXPECT_EQ(driver->result(0), ParseResult::kReject);
    EXPECT_EQ(driver->request(0).reject_status, STATUS_NOT_SUPPORTED);
    EXPECT_EQ(driver->result(1), ParseResult::kOk);
  }
  driver_->Feed(request);
  driver_->AnswerAll();
  const std::string v1 = BoltErrorReply(
      9, STATUS_NOT_SUPPORTED,
      "bolt: this server speaks version 1 of the protocol, not 2", 9, 4);
  EXPECT_EQ(driver_->sink().Take(),
            "\x02\x02" + v1.substr(1, 9) + "\0"s + v1.substr(10));
}

TEST_F(BoltServer, AnswersHeartbeatsOfVersion2) {
  driver_->Feed(
      FromHex("02 01 01 0000 01 00000007 01 00 ffffffff 0000 0000 00000000"));
  EXPECT_EQ(driver_->count(), 0u);
  EXPECT_EQ(driver_->sink().Take(),
            FromHex("02 01 00 0000 01 00000007 01 00 0000 0000 0000 00000000"));
}

// --------------------------------------------------------------------------

TEST_F(BoltServer, WritesEveryOutcome) {
  for (int status : {1, 3, 10, 11, 99, 100, 104, 1000, 4711, -5,
                     std::numeric_limits<int>::min()}) {
    ReplyTicket ticket;
    ticket.Emplace<BoltTicket>({.id = 0xfffffffe, .codec = 11});
    OutboundResponse response;
    response.status = status;
    response.description = "why";
    response.body = CreateBufferSlow("not sent");
    driver_->protocol().Write(ticket, std::move(response));
    const std::string sent = driver_->sink().Take();
    ASSERT_GT(sent.size(), 20u);
    EXPECT_EQ(sent, BoltErrorReply(static_cast<std::uint8_t>(sent[11]), status,
                                   "why", 0xfffffffe));
    EXPECT_NE(sent[11], 0);
  }
}

// Requests of SOFARPC's clients, with the headers in any order.
BoltRequestParts FromSofa(bool java, bool reversed = false) {
  testing::BoltPairs pairs = {
      {"service", "a.B:1.0"},
      {"sofa_head_method_name", "C"},
      {"sofa_head_target_app", ""},
      {"sofa_head_target_service", "a.B:1.0"},
      {"rpc_trace_context.sofaRpcId", "0"},
  };
  if (java) pairs.emplace_back("app", "x");
  if (java) pairs.emplace_back("protocol", "bolt");
  if (reversed) std::reverse(pairs.begin(), pairs.end());
  BoltRequestParts parts;
  parts.headers = BoltHeaders(pairs);
  return parts;
}

class BoltSofaCallers : public BoltServer,
                        public ::testing::WithParamInterface<bool> {
 protected:
  std::string ReplyTo(const BoltRequestParts& parts, int status,
                      std::string_view text) {
    auto driver = NewDriver();
    driver->Feed(parts.Bytes());
    OutboundResponse response;
    response.status = status;
    response.description = text;
    driver->protocol().Write(driver->request().ticket, std::move(response));
    return driver->sink().Take();
  }
  static std::string Expected(std::uint16_t bolt_status, int status,
                              const std::string& text) {
    BoltResponseParts parts;
    parts.status = bolt_status;
    parts.headers = BoltHeaders({{"sofa_head_response_error", "true"},
                                 {"Rpc-Error-Code", std::to_string(status)}});
    parts.content = text;
    return parts.Bytes();
  }
};

// Byte for byte: the reply of SOFARPC's own servers, and our code.
TEST_P(BoltSofaCallers, JavaIsToldInsideOfSuccess) {
  const BoltRequestParts java = FromSofa(/*java=*/true, GetParam());
  EXPECT_EQ(ReplyTo(java, 1001, "it broke"),
            FromHex("01 00 0002 01 00000007 0b 0000 002e 003e 00000008") +
                "com.alipay.sofa.rpc.core.response.SofaResponse" +
                FromHex("00000018") + "sofa_head_response_error" +
                FromHex("00000004") + "true" + FromHex("0000000e") +
                "Rpc-Error-Code" + FromHex("00000004") + "1001" + "it broke");
  for (int status : {10, 3, 102, -5}) {
    EXPECT_EQ(ReplyTo(java, status, "why"), Expected(0, status, "why"));
  }
  // A status that it knows, and does something about.
  EXPECT_EQ(ReplyTo(java, STATUS_OVERLOADED, "busy"),
            Expected(4, STATUS_OVERLOADED, "busy"));
}

TEST_P(BoltSofaCallers, NodeIsToldByAStatusAndTheContent) {
  const BoltRequestParts node = FromSofa(/*java=*/false, GetParam());
  EXPECT_EQ(ReplyTo(node, 1001, "it broke"), Expected(2, 1001, "it broke"));
  EXPECT_EQ(ReplyTo(node, STATUS_METHOD_NOT_FOUND, "why"),
            Expected(6, STATUS_METHOD_NOT_FOUND, "why"));
}

TEST_P(BoltSofaCallers, AlwaysGetAText) {
  for (const bool java : {true, false}) {
    EXPECT_EQ(ReplyTo(FromSofa(java, GetParam()), 1234, ""),
              Expected(java ? 0 : 2, 1234, "the call failed with code 1234"));
    EXPECT_EQ(ReplyTo(FromSofa(java, GetParam()), 1234, "bad \xff"),
              Expected(java ? 0 : 2, 1234, "bad ?"));
  }
}

TEST_P(BoltSofaCallers, GetSuccessesAsOthersDo) {
  for (const bool java : {true, false}) {
    auto driver = NewDriver();
    driver->Feed(FromSofa(java, GetParam()).Bytes());
    driver->Answer(0, "reply");
    BoltResponseParts parts;
    parts.content = "reply";
    EXPECT_EQ(driver->sink().Take(), parts.Bytes());
  }
}

TEST_P(BoltSofaCallers, AreToldSoOfBadRequests) {
  BoltRequestParts parts = FromSofa(/*java=*/true, GetParam());
  parts.headers = BoltHeaders({{"protocol", "bolt"}});
  auto driver = NewDriver();
  driver->Feed(parts.Bytes());
  ASSERT_EQ(driver->result(), ParseResult::kReject);
  driver->AnswerAll();
  EXPECT_EQ(driver->sink().Take(),
            Expected(0, STATUS_INVALID_METHOD_NAME,
                     "bolt: no header sofa_head_target_service"));
}

INSTANTIATE_TEST_SUITE_P(BothOrders, BoltSofaCallers, ::testing::Bool());

}  // namespace
}  // namespace flare::rpc

// The common part of the protocols whose messages are frames: those of
// framed_protocol.h, and bolt. The bytes are written by their own other side;
// the tests of each compare them with the documented ones.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/wire/client_protocol_testing.h"
#include "flare/rpc/wire/framing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::ServerDriver;

struct Format {
  std::string name;
  std::size_t magic_size;   // bytes after which it is clear whose they are
  std::size_t header_size;  // of a request, with all sizes in it
};

const Format kFormats[] = {
    {"flare", 4, 16}, {"baidu-std", 4, 12}, {"trpc", 2, 16}, {"bolt", 1, 22}};

constexpr std::size_t kMaxSkipped = Limits().max_skipped;

constexpr std::string_view kMethod = "example.EchoService.Echo";

class FramedProtocols
    : public testing::ClientProtocolTest<::testing::TestWithParam<Format>> {
 protected:
  FramedProtocols() : ClientProtocolTest(NewClient()) {}

  static std::unique_ptr<ServerProtocol> NewServer(const std::string& name,
                                                   std::size_t max_packet_size,
                                                   ReplySink* sink) {
    Limits limits;
    limits.max_packet_size = max_packet_size;
    return std::move(ServerProtocolSet::FromNames({name}, limits))
        .value()
        .New(0, sink);
  }
  // The result for `message`, which has no body, once its header is changed to
  // announce `more` bytes and they haven't come.
  static std::string Announcing(std::string message, std::size_t more) {
    const std::string& name = GetParam().name;
    if (name == "flare") return Put32(8, __builtin_bswap32(more), message);
    if (name != "bolt") {
      const std::size_t uncounted = name == "trpc" ? 0 : 12;
      return Put32(4, message.size() - uncounted + more, message);
    }
    // The head ends before names and headers.
    const std::size_t head = message[1] == 0 ? 20 : 22;
    Put32(head - 4, more - (message.size() - head), message);
    return message.substr(0, head);
  }
  static std::string& Put32(std::size_t at, std::size_t value,
                            std::string& message) {
    PutBigEndian32(value, message.data() + at);
    return message;
  }

  static ServerDriver NewDriver(std::size_t max_packet_size = 4 << 20) {
    return ServerDriver([=](ReplySink* sink) {
      return NewServer(GetParam().name, max_packet_size, sink);
    });
  }
  static std::unique_ptr<ClientProtocol> NewClient(
      const std::string& name = GetParam().name,
      std::size_t max_packet_size = 4 << 20) {
    Limits limits;
    limits.max_packet_size = max_packet_size;
    return std::move(NewClientProtocol(name, limits, "host")).value();
  }

  static std::string Request(std::uint64_t id, std::string_view body,
                             const std::string& name = GetParam().name) {
    OutboundRequest request;
    request.correlation_id = id;
    request.method = kMethod;
    request.timeout_ms = 2000;
    request.body = CreateBufferSlow(body);
    BufferBuilder out;
    EXPECT_TRUE(NewClient(name)->Write(std::move(request), &out).ok());
    return FlattenSlow(out.DestructiveGet());
  }
  static std::string Response(std::uint64_t id, OutboundResponse&& response) {
    ServerDriver driver = NewDriver();
    driver.Feed(Request(id, ""));
    driver.protocol().Write(driver.request().ticket, std::move(response));
    return driver.sink().Take();
  }
  static std::string Response(std::uint64_t id, std::string_view body) {
    OutboundResponse response;
    response.body = CreateBufferSlow(body);
    return Response(id, std::move(response));
  }
};

INSTANTIATE_TEST_SUITE_P(All, FramedProtocols, ::testing::ValuesIn(kFormats),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::erase(name, '-');
                           return name;
                         });

// --- servers ---------------------------------------------------------------

TEST_P(FramedProtocols, RequestsAreCutInAnyPieces) {
  const std::string two = Request(1, "first") + Request(2, "second");
  for (std::size_t piece = 1; piece <= two.size(); ++piece) {
    ServerDriver driver = NewDriver();
    driver.Feed(two, piece);
    ASSERT_EQ(driver.count(), 2u) << piece;
    for (int i : {0, 1}) {
      ASSERT_EQ(driver.result(i), ParseResult::kOk);
      EXPECT_EQ(driver.facts(i).id, i + 1u);
      EXPECT_EQ(driver.request(i).head.method, kMethod);
      EXPECT_EQ(FlattenSlow(driver.request(i).body), i ? "second" : "first");
    }
    EXPECT_TRUE(driver.in().empty());
    EXPECT_EQ(driver.request(0).wire_size + driver.request(1).wire_size,
              two.size());
  }
}

TEST_P(FramedProtocols, RequestsMayTrickle) {
  ServerDriver driver = NewDriver();
  driver.Trickle(Request(1, "body") + Request(2, "body"));
  ASSERT_EQ(driver.count(), 2u);
  EXPECT_EQ(driver.request(1).head.method, kMethod);
}

TEST_P(FramedProtocols, EveryPrefixTellsWhatIsMissing) {
  const auto& [name, magic_size, header_size] = GetParam();
  const std::string whole = Request(1, "body");
  for (std::size_t size = 0; size != whole.size(); ++size) {
    ServerDriver driver = NewDriver();
    EXPECT_EQ(driver.Feed(whole.substr(0, size)),
              size < magic_size ? CutResult::kUnsure : CutResult::kNeedMore);
    if (size > 1 && size >= magic_size) {
      EXPECT_EQ(driver.need(), size < header_size ? header_size : whole.size());
    }
    EXPECT_EQ(driver.in().size(), size);
  }
}

TEST_P(FramedProtocols, OthersAreLeftAlone) {
  std::vector<std::string> others = {"GET / HTTP/1.1\r\n", "X"};
  for (const Format& other : kFormats) {
    if (other.name == GetParam().name) continue;
    others.push_back(Request(1, "body", other.name));
  }
  for (const std::string& other : others) {
    ServerDriver driver = NewDriver();
    EXPECT_EQ(driver.Feed(other), CutResult::kNotMine) << other;
    EXPECT_EQ(FlattenSlow(driver.in()), other);
  }
}

TEST_P(FramedProtocols, OversizedRequestsAreAnsweredBeforeTheyHaveCome) {
  ServerDriver driver = NewDriver(1000);
  const std::string frame = Request(7, std::string(2000, 'b'));
  const std::size_t head = GetParam().name == "bolt" ? GetParam().header_size
                                                     : Request(7, "").size();
  // Up to the last byte of the part that names the call: undecided.
  EXPECT_EQ(driver.Feed(frame.substr(0, head - 1)), CutResult::kNeedMore);
  EXPECT_EQ(driver.need(), head);
  driver.Feed(frame.substr(head - 1, 1));
  ASSERT_EQ(driver.count(), 1u);
  EXPECT_EQ(driver.result(), ParseResult::kReject);
  EXPECT_EQ(driver.request().reject_status, STATUS_MALFORMED_DATA);
  EXPECT_EQ(driver.request().reject_reason,
            "a message of " + std::to_string(frame.size()) +
                " bytes exceeds the limit of 1000 "
                "(flare_rpc_server_max_packet_size)");
  EXPECT_EQ(driver.facts().id, 7u);
  EXPECT_EQ(driver.request().wire_size, frame.size());
  // Its rest is dropped as it comes, and the next message is read.
  for (std::size_t at = head; at < frame.size(); at += 100) {
    driver.Feed(frame.substr(at, 100));
    EXPECT_TRUE(driver.in().empty());
  }
  driver.Feed(Request(8, "body"));
  ASSERT_EQ(driver.count(), 2u);
  EXPECT_EQ(driver.result(1), ParseResult::kOk);
}

TEST_P(FramedProtocols, AnOversizedRequestAndItsSuccessorInOnePiece) {
  ServerDriver driver = NewDriver(1000);
  driver.Feed(Request(7, std::string(2000, 'b')) + Request(8, "body"));
  ASSERT_EQ(driver.count(), 2u);
  EXPECT_EQ(driver.result(0), ParseResult::kReject);
  EXPECT_EQ(driver.result(1), ParseResult::kOk);
}

// The size is wrong, most likely: the rest would never be read.
TEST_P(FramedProtocols, MuchOversizedRequestsAreTheLastOnes) {
  for (const auto more : {std::size_t{4'000'000'000}, kMaxSkipped + 1}) {
    ServerDriver driver = NewDriver();
    const std::string head = Announcing(Request(7, ""), more);
    EXPECT_EQ(driver.Feed(head + Request(8, "body")), CutResult::kError);
    ASSERT_EQ(driver.count(), 1u);
    EXPECT_EQ(driver.result(), ParseResult::kReject);
    EXPECT_EQ(driver.facts().id, 7u);
    EXPECT_EQ(driver.request().reject_reason,
              "a message of " + std::to_string(head.size() + more) +
                  " bytes exceeds the limit of 4194304 "
                  "(flare_rpc_server_max_packet_size)");
  }
}

TEST_P(FramedProtocols, TheLimitItselfIsAllowed) {
  const std::string frame = Request(7, std::string(500, 'b'));
  for (std::size_t limit : {frame.size(), frame.size() - 1}) {
    ServerDriver driver = NewDriver(limit);
    driver.Feed(frame);
    ASSERT_EQ(driver.count(), 1u);
    EXPECT_EQ(driver.result() == ParseResult::kOk, limit == frame.size());
  }
}

// A reply whose meta exceeded the clients' limit would cost them all calls of
// the connection.
TEST_P(FramedProtocols, LongErrorTextsAreCutToWhatAClientTakes) {
  for (std::size_t size : {std::size_t{5000}, std::size_t{200'000}}) {
    std::string text;
    while (text.size() < size) text += "caf\xc3\xa9 \xff";
    OutboundResponse failure;
    failure.status = 4711;
    failure.description = text;
    InboundResponse response;
    ASSERT_EQ(Cut(Response(7, std::move(failure)), &response),
              CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_EQ(response.status, 4711);
    EXPECT_EQ(response.description.substr(0, 12), "caf\xc3\xa9 ?caf\xc3\xa9");
    EXPECT_EQ(response.description.size(),
              std::min<std::size_t>(text.size(), 32 << 10));
  }
}

TEST_P(FramedProtocols, LongErrorTextsAreNotCutWithinACharacter) {
  std::string text = "x";
  while (text.size() < 50'000) text += "\xc3\xa9";
  OutboundResponse failure;
  failure.status = 4711;
  failure.description = text;
  InboundResponse response;
  ASSERT_EQ(Cut(Response(7, std::move(failure)), &response),
            CutResult::kMessage);
  ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_EQ(response.description.size(), (32u << 10) - 1);
  EXPECT_TRUE(text.starts_with(response.description));
}

// --- clients ---------------------------------------------------------------

TEST_P(FramedProtocols, SmallRequestsAreOneSlice) {
  BufferBuilder out;
  for (int i = 1; i != 6; ++i) {
    OutboundRequest request;
    request.correlation_id = i;
    request.method = kMethod;
    request.body = CreateBufferSlow("hi");
    ASSERT_TRUE(protocol_->Write(std::move(request), &out).ok());
  }
  EXPECT_EQ(out.DestructiveGet().SliceCount(), 1u);
}

TEST_P(FramedProtocols, MethodsMustHaveNames) {
  for (const char* name : {"", "Echo", ".Echo", "a.B."}) {
    if (GetParam().name == "flare" && *name != '\0') continue;  // Any text.
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = name;
    BufferBuilder out;
    EXPECT_EQ(protocol_->Write(std::move(request), &out).code(),
              STATUS_INVALID_METHOD_NAME);
    EXPECT_EQ(out.ByteSize(), 0u);
  }
}

TEST_P(FramedProtocols, ResponsesAreCutInAnyPieces) {
  const std::string bytes = Response(7, "body");
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    InboundResponse response;
    ASSERT_EQ(Cut(bytes, &response, piece), CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, 7u);
    EXPECT_EQ(response.status, STATUS_SUCCESS);
    EXPECT_EQ(FlattenSlow(response.body), "body");
    EXPECT_EQ(response.wire_size, bytes.size());
  }
}

TEST_P(FramedProtocols, ClientsWaitForTheRest) {
  const std::string bytes = Response(7, "body");
  InboundResponse response;
  EXPECT_EQ(Cut(bytes.substr(0, 1), &response), CutResult::kNeedMore);
  EXPECT_EQ(Cut(bytes.substr(1, bytes.size() - 2), &response),
            CutResult::kNeedMore);
  EXPECT_EQ(need_, bytes.size());
  EXPECT_EQ(Cut(bytes.substr(bytes.size() - 1), &response),
            CutResult::kMessage);
}

TEST_P(FramedProtocols, ClientsCloseOnForeignBytes) {
  InboundResponse response;
  EXPECT_EQ(Cut("HTTP/1.1 200 OK\r\n", &response), CutResult::kError);
  const std::string& name = GetParam().name;
  EXPECT_EQ(error_, name + ": the peer's bytes are no " + name + " response");
}

TEST_P(FramedProtocols, AnOversizedResponseFailsItsCallOnly) {
  protocol_ = NewClient(GetParam().name, 200);
  const std::string large = Response(7, std::string(1000, 'b'));
  InboundResponse response;
  ASSERT_EQ(Cut(large + Response(8, "body"), &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
  EXPECT_EQ(response.correlation_id, 7u);
  EXPECT_EQ(response.status, STATUS_MALFORMED_DATA);
  EXPECT_EQ(response.description, "a message of " +
                                      std::to_string(large.size()) +
                                      " bytes exceeds the limit of 200 "
                                      "(flare_rpc_channel_max_packet_size)");
  response.Clear();
  ASSERT_EQ(Cut("", &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_EQ(response.correlation_id, 8u);
}

TEST_P(FramedProtocols, AMuchOversizedResponseEndsTheConnection) {
  for (const auto more : {std::size_t{4'000'000'000}, kMaxSkipped + 1}) {
    protocol_ = NewClient();
    in_.Clear();
    InboundResponse response;
    ASSERT_EQ(Cut(Announcing(Response(7, ""), more), &response),
              CutResult::kMessage);
    EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
    EXPECT_EQ(response.correlation_id, 7u);
    response.Clear();
    // At once, not when more has come.
    EXPECT_EQ(Cut("", &response), CutResult::kError);
    EXPECT_EQ(error_, GetParam().name +
                          ": the last message exceeds the limit of 4194304 "
                          "bytes by too much to skip the rest, " +
                          std::to_string(more) + " bytes");
  }
}

TEST_P(FramedProtocols, AsMuchAsIsSkippedIsSkipped) {
  InboundResponse response;
  ASSERT_EQ(Cut(Announcing(Response(7, ""), kMaxSkipped), &response),
            CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kReject);
  response.Clear();
  const std::string piece(1 << 20, 'x');
  for (std::size_t at = 0; at != kMaxSkipped; at += piece.size()) {
    EXPECT_TRUE(protocol_->WithinMessage());
    ASSERT_EQ(Cut(piece, &response), CutResult::kNeedMore);
    ASSERT_TRUE(in_.empty());
  }
  EXPECT_FALSE(protocol_->WithinMessage());
  ASSERT_EQ(Cut(Response(8, "body"), &response), CutResult::kMessage);
  EXPECT_EQ(protocol_->Parse(&response), ParseResult::kOk);
  EXPECT_EQ(response.correlation_id, 8u);
}

TEST_P(FramedProtocols, BothSidesUnderstandEachOther) {
  std::mt19937 rng(5);
  ServerDriver server = NewDriver();
  const bool attachments = protocol_->traits().attachments;
  for (std::uint64_t id = 1; id <= 300; ++id) {
    const std::string body(rng() % 3000, static_cast<char>(rng()));
    const std::string attachment(attachments ? rng() % 300 : 0, 'a');
    OutboundRequest request;
    request.correlation_id = id;
    request.method = kMethod;
    request.body = CreateBufferSlow(body);
    request.attachment = CreateBufferSlow(attachment);
    server.Feed(Write(std::move(request)), 1 + rng() % 200);
    ASSERT_EQ(server.result(id - 1), ParseResult::kOk);
    InboundRequest& received = server.request(id - 1);
    EXPECT_EQ(received.head.method, kMethod);
    EXPECT_EQ(FlattenSlow(received.body), body);
    EXPECT_EQ(FlattenSlow(received.attachment), attachment);
    OutboundResponse reply;
    reply.body = CreateBufferSlow(body);
    reply.attachment = CreateBufferSlow(attachment);
    server.protocol().Write(received.ticket, std::move(reply));
    InboundResponse response;
    ASSERT_EQ(Cut(server.sink().Take(), &response, 1 + rng() % 200),
              CutResult::kMessage);
    ASSERT_EQ(protocol_->Parse(&response), ParseResult::kOk);
    EXPECT_EQ(response.correlation_id, id);
    EXPECT_EQ(FlattenSlow(response.body), body);
    EXPECT_EQ(FlattenSlow(response.attachment), attachment);
  }
}

}  // namespace
}  // namespace flare::rpc

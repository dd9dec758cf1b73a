#include "flare/rpc/server_protocol.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

// Counts how often it is given back.
class CountingRequest final : public OwnRequest {
 public:
  void Serve(OwnRequestHost*) override {}
  void Refuse(std::string_view, OwnRequestHost*) override {}
  bool IsExempt() const override { return false; }
  void Recycle() override { ++recycled; }
  int recycled = 0;
};

TEST(InboundRequestTest, ClearMakesItNew) {
  CountingRequest own;
  InboundRequest request;
  request.own.reset(&own);
  request.head.timeout_ms = 5;
  request.head.method = "m";
  request.head.format = PayloadFormat::kProto3Json;
  request.head.reply_needs_request = true;
  request.body = CreateBufferSlow("b");
  request.attachment = CreateBufferSlow("a");
  request.wire = CreateBufferSlow("w");
  request.reject_status = STATUS_FAILED;
  request.reject_reason = "reason";
  request.wire_size = request.meta_size = request.body_size = 3;
  request.Clear();
  EXPECT_FALSE(request.own);
  EXPECT_EQ(own.recycled, 1);
  EXPECT_EQ(request.head.timeout_ms, 0u);
  EXPECT_TRUE(request.head.method.empty());
  EXPECT_EQ(request.head.format, PayloadFormat::kProtobuf);
  EXPECT_FALSE(request.head.reply_needs_request);
  EXPECT_TRUE(request.body.empty());
  EXPECT_TRUE(request.attachment.empty());
  EXPECT_TRUE(request.wire.empty());
  EXPECT_EQ(request.reject_status, STATUS_SUCCESS);
  EXPECT_TRUE(request.reject_reason.empty());
  EXPECT_EQ(request.wire_size + request.meta_size + request.body_size, 0u);
}

// One large message must not occupy the pool for ever.
TEST(InboundRequestTest, ClearKeepsLittleMemory) {
  const std::string large(1'000'000, 'x');
  InboundRequest request;
  request.scratch = request.reject_reason = large;
  request.Clear();
  EXPECT_LE(request.scratch.capacity(), 4096u);
  EXPECT_LE(request.reject_reason.capacity(), 4096u);
  // The usual size stays.
  request.scratch.assign(4000, 'x');
  request.Clear();
  EXPECT_GE(request.scratch.capacity(), 4000u);
}

class NullSink : public ReplySink {
 public:
  bool Write(Buffer&&) override { return false; }
  void CloseAfterReplies() override {}
  void Abort(const flare::Status& why) override { aborted = why; }
  flare::Status aborted;
};

// Records the input of Write.
class LastReply : public ServerProtocol {
 public:
  explicit LastReply(ReplySink* sink) : ServerProtocol(sink) {}
  std::string_view name() const override { return "last-reply"; }
  ProtocolTraits traits() const override { return {}; }
  CutResult Cut(Buffer&, InboundRequest*, std::size_t*, std::string*) override {
    return CutResult::kNotMine;
  }
  ParseResult Parse(InboundRequest*) const override { return ParseResult::kOk; }
  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override {
    id = ticket.As<Ticket>().id;
    status = response.status;
    description = response.description;
  }

  struct Ticket {
    std::uint64_t id = 0;
  };
  std::uint64_t id = 0;
  int status = 0;
  std::string description;
};

TEST(ServerProtocolTest, RejectionsAreRepliesWithTheReason) {
  NullSink sink;
  LastReply protocol(&sink);
  InboundRequest request;
  request.ticket.Emplace<LastReply::Ticket>().id = 7;
  request.reject_status = STATUS_MALFORMED_DATA;
  request.reject_reason = "because";
  protocol.WriteRejection(request);
  EXPECT_EQ(protocol.id, 7u);
  EXPECT_EQ(protocol.status, STATUS_MALFORMED_DATA);
  EXPECT_EQ(protocol.description, "because");
}

// A call keeps the ticket when it gives its request back.
TEST(ReplyTicketTest, IsCopiedWithWhatAProtocolPutThere) {
  struct Small {
    std::uint16_t number = 7;
    bool flag = true;
  };
  ReplyTicket ticket;
  ticket.Emplace<Small>();
  const ReplyTicket small = ticket;
  ticket.Emplace<std::uint64_t>(9);
  EXPECT_EQ(ticket.As<std::uint64_t>(), 9u);
  EXPECT_EQ(small.As<Small>().number, 7);
  EXPECT_TRUE(small.As<Small>().flag);
  ticket = small;
  ticket.As<Small>().number = 8;
  EXPECT_EQ(ticket.As<Small>().number, 8);
  EXPECT_EQ(small.As<Small>().number, 7);
}

}  // namespace
}  // namespace flare::rpc

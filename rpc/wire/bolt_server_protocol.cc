#include <charconv>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/wire/bolt_frame.h"
#include "flare/rpc/wire/bolt_protocol.h"
#include "flare/rpc/wire/flood_guard.h"
#include "flare/rpc/wire/stop_notice.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {

namespace {

// NOLINTNEXTLINE(misc-unused-using-decls): it is used, for literals.
using std::string_view_literals::operator""sv;

constexpr std::string_view kRequestClass =
    "com.alipay.sofa.rpc.core.request.SofaRequest";

// The head of replies; id, codec, status and sizes are filled in.
constexpr std::string_view kResponseHead =
    "\x01\0\0\x02\x01....\x0b\0\0\0\x2e\0\0\0\0\0\0"
    "com.alipay.sofa.rpc.core.response.SofaResponse"sv;
static_assert(kResponseHead.size() == kBoltResponseSize + 0x2e);

// Thread pool busy: SOFARPC's clients of Java know what to do with it.
constexpr std::uint16_t kBusy = 4;

// A frame of v1 as one of v2, without CRC.
std::string ToVersion2(std::string_view frame, std::uint8_t protocol_version) {
  std::string bytes = "\x02";
  bytes.push_back(static_cast<char>(protocol_version));
  bytes.append(frame.substr(1, 9));  // Type to codec.
  bytes.push_back('\0');             // Switch.
  return bytes.append(frame.substr(10));
}

// A SofaResponse that failed with `text`, as SOFARPC's clients read it with
// codec 1: Hessian 2.0 in the draft of sofa-hessian (Hessian2Output.java),
// whose strings count UTF-16 units. The definition of the class, with its
// fields; an object of it; and their values.
std::string HessianFailure(std::string_view text) {
  std::string bytes =
      "O\xbe"
      "com.alipay.sofa.rpc.core.response.SofaResponse"
      "\x94"
      "\x07"
      "isError"
      "\x08"
      "errorMsg"
      "\x0b"
      "appResponse"
      "\x0d"
      "responseProps"
      "o\x90"
      "TS";
  static_assert(kMaxErrorText <= 0xffff);
  char size[2];
  PutBigEndian16(text.size(), size);
  bytes.append(size, sizeof(size));
  // All texts that go that way should be ASCII.
  for (const char c : text) bytes.push_back((c & 0x80) == 0 ? c : '?');
  return bytes + "NN";
}

// The longest quotation from a request.
constexpr std::size_t kMaxQuoted = 256;

class BoltServerProtocol : public ServerProtocol {
 public:
  BoltServerProtocol(const Limits& limits, ReplySink* sink)
      : ServerProtocol(sink),
        cutter_(limits),
        metadata_limits_(limits.metadata) {}

  std::string_view name() const override { return BoltFrame::kName; }
  ProtocolTraits traits() const override {
    return {.metadata = true, .translates_codes = true};
  }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    BoltFrame frame;
    const CutResult result =
        cutter_.Cut(in, &frame, &request->wire, need, error);
    if (result != CutResult::kMessage) return result;
    if (frame.type == kBoltTypeResponse) {
      *error = "bolt: a response instead of a request";
      return CutResult::kError;
    }
    if (!IsNotice(frame)) {
      if (notice_.Looks() && TakesGoAway(frame, request)) notice_.OnAsked();
      Describe(frame, request);
      return CutResult::kMessage;
    }
    request->wire.Clear();
    if (!notices_.Admit(NowNs())) {
      *error = kBoltNoticesWithoutEnd;
      return CutResult::kError;
    }
    return CutResult::kHandled;
  }

  bool WithinMessage() const override { return cutter_.skipping(); }

  bool AnnounceEnd() override {
    return notice_.asked() && sink()->WriteSoon(CreateBufferSlow(BoltGoAway()));
  }

  ParseResult Parse(InboundRequest* request) const override {
    const BoltFrame frame = DecodeBoltFrame(request->wire);
    BoltTicket& ticket = request->ticket.Emplace<BoltTicket>();
    ticket.id = frame.id;
    ticket.codec = frame.codec;
    ticket.one_way = frame.type == kBoltTypeOneWay;
    if (frame.version2()) {
      ticket.protocol_version = frame.protocol_version;
      return Reject("this server speaks version 1 of the protocol, not 2", "",
                    request, STATUS_NOT_SUPPORTED);
    }
    if (request->reject_status != STATUS_SUCCESS) return ParseResult::kReject;
    if (frame.command != kBoltRpcRequest) {
      return Reject("unknown command code ", std::to_string(frame.command),
                    request, STATUS_NOT_SUPPORTED);
    }
    request->scratch.reserve(2 * frame.head_size());
    const std::string_view head =
        ContiguousPrefix(request->wire, frame.head_size(), &request->scratch)
            .substr(kBoltRequestSize);
    const std::string_view class_name = head.substr(0, frame.class_size);
    if (class_name != kRequestClass) {
      return Reject("no processor for class ", class_name.substr(0, kMaxQuoted),
                    request, STATUS_SERVICE_NOT_FOUND);
    }
    if (frame.codec != kBoltCodecProtobuf) {
      if (frame.codec == kBoltCodecHessian) {
        ticket.caller = BoltCaller::kHessian;
      }
      return Reject("the content must be protobuf (codec 11), not of codec ",
                    std::to_string(frame.codec), request, STATUS_NOT_SUPPORTED);
    }
    bool has_others = false;
    const std::string_view headers = head.substr(frame.class_size);
    if (!ReadMethod(headers, &has_others, request)) {
      return ParseResult::kReject;
    }
    if (has_others) {
      const std::string why =
          ReadBoltMetadata(headers, metadata_limits_, &request->metadata);
      if (!why.empty()) {
        return Reject(why, "", request, STATUS_MALFORMED_DATA);
      }
    }
    request->head.timeout_ms =
        frame.timeout_ms > 0 ? static_cast<std::uint32_t>(frame.timeout_ms) : 0;
    request->wire.Skip(frame.head_size());
    request->body = std::move(request->wire);
    return ParseResult::kOk;
  }

  void Write(const ReplyTicket& reply_ticket,
             OutboundResponse&& response) override {
    const auto& ticket = reply_ticket.As<BoltTicket>();
    if (ticket.one_way) return;
    if (response.body.size() > std::numeric_limits<std::uint32_t>::max()) {
      response = OutboundResponse();
      response.status = STATUS_SERIALIZE_RESPONSE;
      response.description = "the response exceeds 4 GiB";
    }
    BufferBuilder out;
    if (ticket.protocol_version != 0) [[unlikely]] {
      AppendError(ticket, response, &out);
      const std::string frame = FlattenSlow(out.DestructiveGet());
      out.Append(ToVersion2(frame, ticket.protocol_version));
    } else if (response.status == STATUS_SUCCESS) [[likely]] {
      char* const at = out.Reserve(kResponseHead.size());
      PutHead(ticket, at);
      PutBigEndian32(response.body.size(), at + 16);
      if (response.metadata != nullptr) [[unlikely]] {
        const std::string pairs = BoltMetadata(response.metadata);
        PutBigEndian16(pairs.size(), at + 14);
        out.Append(pairs);
      }
      std::move(response.body).AppendTo(&out);
    } else {
      AppendError(ticket, response, &out);
    }
    sink()->Write(out.DestructiveGet());
  }

 private:
  static bool TakesGoAway(const BoltFrame& frame, InboundRequest* request) {
    // A request that is too large has less of it.
    if (request->wire.size() < frame.head_size()) return false;
    const std::size_t before = frame.fixed_size() + frame.class_size;
    BoltHeaderReader reader(
        ContiguousPrefix(request->wire, frame.head_size(), &request->scratch)
            .substr(before));
    while (reader.Next()) {
      if (reader.key() == kBoltTakesGoAway) return true;
    }
    return false;
  }

  // A message that isn't a call; if so, it is dealt with.
  bool IsNotice(const BoltFrame& frame) {
    if (frame.command == kBoltGoAway) return true;
    if (frame.command != kBoltHeartbeat) return false;
    if (frame.type == kBoltTypeOneWay) return true;
    const std::string reply = BoltHeartbeatReply(frame);
    sink()->Write(CreateBufferSlow(
        frame.version2() ? ToVersion2(reply, frame.protocol_version) : reply));
    return true;
  }

  void Describe(const BoltFrame& frame, InboundRequest* request) const {
    request->wire_size = frame.total();
    if (!cutter_.Oversized(frame)) return;
    request->reject_status = STATUS_MALFORMED_DATA;
    request->reject_reason =
        cutter_.OversizedText(frame.total(), kServerSizeLimit);
  }

  static ParseResult Reject(std::string_view what, std::string_view detail,
                            InboundRequest* request, int status) {
    request->reject_status = status;
    request->reject_reason.assign("bolt: ").append(what).append(detail);
    return ParseResult::kReject;
  }

  // Puts the full name of the method together, behind the content of `scratch`:
  // maybe the header map, so Parse has made room.
  static bool ReadMethod(std::string_view headers, bool* has_others,
                         InboundRequest* request) {
    std::string_view service, target, method;
    BoltCaller& caller = request->ticket.As<BoltTicket>().caller;
    BoltHeaderReader reader(headers);
    while (reader.Next()) {
      if (reader.key() == kBoltService) {
        service = reader.value();
      } else if (reader.key() == kBoltTargetService) {
        target = reader.value();
      } else if (reader.key() == kBoltMethod) {
        method = reader.value();
      } else if (reader.key() == kBoltJavaCaller) {
        caller = BoltCaller::kJava;
      } else if (reader.key() == kBoltNodeCaller) {
        if (caller != BoltCaller::kJava) caller = BoltCaller::kNode;
      } else {
        *has_others = true;
      }
    }
    if (reader.malformed()) {
      Reject("malformed header map", "", request, STATUS_MALFORMED_DATA);
      return false;
    }
    // Meshes that route a call elsewhere may rewrite `service` alone.
    if (service.empty()) service = target;
    service = service.substr(0, service.find(':'));
    if (service.empty() || method.empty()) {
      Reject("no header ", service.empty() ? kBoltTargetService : kBoltMethod,
             request, STATUS_INVALID_METHOD_NAME);
      return false;
    }
    request->head.method = JoinMethodName(service, method, &request->scratch);
    return true;
  }

  static void PutHead(const BoltTicket& ticket, char* at) {
    std::memcpy(at, kResponseHead.data(), kResponseHead.size());
    PutBigEndian32(ticket.id, at + 5);
    at[9] = static_cast<char>(ticket.codec);
  }

  static void AppendError(const BoltTicket& ticket,
                          const OutboundResponse& response,
                          BufferBuilder* out) {
    char digits[16];
    const auto end =
        std::to_chars(digits, digits + sizeof(digits), response.status).ptr;
    const std::string_view code(digits, static_cast<std::size_t>(end - digits));
    std::string scratch;
    const std::string_view reason =
        AsUtf8(CutUtf8(response.description, kMaxErrorText), &scratch);
    if (ticket.caller != BoltCaller::kOther) {
      return AppendSofaError(ticket, response, code, reason, out);
    }
    const std::string metadata = BoltMetadata(response.metadata);
    const std::size_t pairs =
        BoltHeaderSize(kBoltErrorCode.size(), code.size()) +
        BoltHeaderSize(kBoltErrorReason.size(), 0);
    char* at = out->Reserve(kResponseHead.size() + pairs);
    PutHead(ticket, at);
    PutBigEndian16(BoltStatusFor(response.status), at + 10);
    PutBigEndian16(pairs + reason.size() + metadata.size(), at + 14);
    at = PutBoltHeader(kBoltErrorCode, code, at + kResponseHead.size());
    PutBoltHeader(kBoltErrorReason, "", at, reason.size());
    out->Append(reason);
    out->Append(metadata);
  }

  // In SOFARPC's own way. Its clients need a content, or know of no error.
  // Those that read Hessian look at nothing else.
  static void AppendSofaError(const BoltTicket& ticket,
                              const OutboundResponse& response,
                              std::string_view code, std::string_view reason,
                              BufferBuilder* out) {
    constexpr std::string_view kTrue = "true";
    std::string text(reason);
    if (reason.empty()) text.append("the call failed with code ").append(code);
    if (ticket.caller == BoltCaller::kHessian) text = HessianFailure(text);
    const std::uint16_t closest = BoltStatusFor(response.status);
    const std::string metadata = BoltMetadata(response.metadata);
    const bool as_success =
        ticket.caller != BoltCaller::kNode && closest != kBusy;
    const std::size_t pairs =
        BoltHeaderSize(kBoltResponseError.size(), kTrue.size()) +
        BoltHeaderSize(kBoltErrorCode.size(), code.size());
    char* at = out->Reserve(kResponseHead.size() + pairs);
    PutHead(ticket, at);
    PutBigEndian16(as_success ? 0 : closest, at + 10);
    PutBigEndian16(pairs + metadata.size(), at + 14);
    PutBigEndian32(text.size(), at + 16);
    at = PutBoltHeader(kBoltResponseError, kTrue, at + kResponseHead.size());
    PutBoltHeader(kBoltErrorCode, code, at);
    out->Append(metadata);
    out->Append(text);
  }

  FrameCutter<BoltFrame> cutter_;
  const MetadataLimits metadata_limits_;
  FloodGuard notices_{FloodGuard::kMaxNotices};
  StopNoticeTaker notice_;
};

}  // namespace

std::unique_ptr<ServerProtocol> NewBoltServerProtocol(const Limits& limits,
                                                      ReplySink* sink) {
  return std::make_unique<BoltServerProtocol>(limits, sink);
}

}  // namespace flare::rpc

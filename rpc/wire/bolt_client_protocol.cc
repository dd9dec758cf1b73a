#include <algorithm>
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

namespace flare::rpc {

namespace {

// NOLINTNEXTLINE(misc-unused-using-decls): it is used, for literals.
using std::string_view_literals::operator""sv;

// The head of requests; id, timeout and the sizes of header map and content are
// filled in.
constexpr std::string_view kRequestHead =
    "\x01\x01\0\x01\x01....\x0b....\0\x2c\0\0\0\0\0\0"
    "com.alipay.sofa.rpc.core.request.SofaRequest"sv;
static_assert(kRequestHead.size() == kBoltRequestSize + 0x2c);

constexpr std::string_view kVersion = ":1.0";
constexpr std::int32_t kNoTimeout = -1;
// Bytes of an error's text.
constexpr std::size_t kMaxReason = 4096;

// The size of the header map that names the method.
std::size_t HeadersSize(const MethodName& name) {
  const std::size_t service_size = name.service.size() + kVersion.size();
  return BoltHeaderSize(kBoltService.size(), service_size) +
         BoltHeaderSize(kBoltTargetService.size(), service_size) +
         BoltHeaderSize(kBoltMethod.size(), name.method.size());
}

char* PutHeaders(const MethodName& name, char* at) {
  for (std::string_view key : {kBoltService, kBoltTargetService}) {
    at = PutBoltHeader(key, name.service, at, kVersion.size());
    at += kVersion.copy(at, kVersion.size());
  }
  return PutBoltHeader(kBoltMethod, name.method, at);
}

class BoltClientProtocol : public ClientProtocol {
 public:
  explicit BoltClientProtocol(const Limits& limits)
      : cutter_(limits), metadata_limits_(limits.metadata) {}

  std::string_view name() const override { return BoltFrame::kName; }
  ProtocolTraits traits() const override {
    return {.metadata = true, .one_way = true};
  }
  PayloadFormat format() const override { return PayloadFormat::kProtobuf; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    const MethodName name(request.method);
    if (!name.ok()) return BadMethodName(request.method);
    const std::size_t headers_size = HeadersSize(name);
    if (headers_size > kMaxBoltHeadersSize) {
      return flare::Status(
          STATUS_INVALID_METHOD_NAME,
          "bolt: the name of the method is longer than 64 KiB");
    }
    if (!request.attachment.empty()) {
      return flare::Status(STATUS_NOT_SUPPORTED,
                           "bolt: the protocol has no attachments");
    }
    constexpr auto kMax = std::numeric_limits<std::uint32_t>::max();
    if (request.body.size() > kMax || request.correlation_id > kMax) {
      return flare::Status(STATUS_SERIALIZE_REQUEST,
                           "bolt: the request exceeds 4 GiB, or its id 32 "
                           "bits");
    }
    std::string metadata;
    if (request.metadata != nullptr) [[unlikely]] {
      flare::Status status =
          EncodeMetadata(*request.metadata, headers_size, &metadata);
      if (!status.ok()) return status;
    }
    if (asker_.Asks(request.correlation_id)) [[unlikely]]
      AskForNotice(headers_size, &metadata);
    AppendHead(
        kRequestHead.size() + headers_size,
        [&](char* at) {
          return PutHead(request, name, headers_size + metadata.size(), at);
        },
        out);
    out->Append(metadata);
    std::move(request.body).AppendTo(out);
    return flare::Status();
  }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    for (;;) {
      BoltFrame frame;
      const CutResult result =
          cutter_.CutResponse(in, &frame, &response->wire, need, error);
      if (result != CutResult::kMessage) return result;
      if (frame.version2()) {
        *error = "bolt: the peer speaks version 2 of the protocol, not 1";
        return CutResult::kError;
      }
      const bool notice =
          frame.command == kBoltHeartbeat || frame.command == kBoltGoAway;
      if (notice && !notices_.Admit(NowNs())) {
        *error = kBoltNoticesWithoutEnd;
        return CutResult::kError;
      }
      // Commands that both a server and a client may send.
      const bool heartbeat = frame.command == kBoltHeartbeat;
      if (heartbeat && frame.type != kBoltTypeRequest) {
        response->wire.Clear();
        continue;
      }
      if (heartbeat) response->body.Append(BoltHeartbeatReply(frame));
      response->last_on_connection = frame.command == kBoltGoAway;
      response->is_notice = heartbeat || response->last_on_connection;
      if (frame.type != kBoltTypeResponse && !response->is_notice) {
        *error = "bolt: a request instead of a response";
        return CutResult::kError;
      }
      response->wire_size = frame.total();
      return CutResult::kMessage;
    }
  }

  void SetOutput(StreamOutput* output) override { asker_.SetOutput(output); }

  bool WithinMessage() const override { return cutter_.skipping(); }

  ParseResult Parse(InboundResponse* response) const override {
    if (response->is_notice) return ParseResult::kOk;
    const BoltFrame frame = DecodeBoltFrame(response->wire);
    response->correlation_id = frame.id;
    response->status = STATUS_MALFORMED_DATA;
    if (cutter_.Oversized(frame)) {
      response->oversized = true;
      response->scratch =
          cutter_.OversizedText(frame.total(), kClientSizeLimit);
      response->description = response->scratch;
      return ParseResult::kReject;
    }
    if (frame.command != kBoltRpcResponse) {
      response->description = "bolt: a response with an unknown command code";
      return ParseResult::kReject;
    }
    Buffer head = response->wire.Cut(frame.head_size());
    response->body = std::move(response->wire);
    response->wire = std::move(head);
    return ReadOutcome(frame, response);
  }

 private:
  [[gnu::cold, gnu::noinline]] static void AskForNotice(
      std::size_t headers_size, std::string* pairs) {
    const std::size_t size =
        BoltHeaderSize(kBoltTakesGoAway.size(), kBoltTrue.size());
    const std::size_t at = pairs->size();
    if (headers_size + at + size > kMaxBoltHeadersSize) return;
    pairs->resize(at + size);
    PutBoltHeader(kBoltTakesGoAway, kBoltTrue, pairs->data() + at);
  }

  // `headers_size` is that of the other headers.
  [[gnu::cold, gnu::noinline]] static flare::Status EncodeMetadata(
      const Metadata& metadata, std::size_t headers_size, std::string* pairs) {
    for (const Metadata::Entry entry : metadata) {
      if (!IsBoltKey(entry.name)) continue;
      return flare::Status(STATUS_NOT_SUPPORTED,
                           "bolt: the protocol uses the name \"" +
                               std::string(entry.name) +
                               "\" itself: it can't be that of metadata");
    }
    *pairs = BoltMetadata(&metadata);
    if (headers_size + pairs->size() > kMaxBoltHeadersSize) {
      return flare::Status(STATUS_NOT_SUPPORTED,
                           "bolt: the metadata takes more than is left of 64 "
                           "KiB beside the method's name");
    }
    return {};
  }

  static char* PutHead(const OutboundRequest& request, const MethodName& name,
                       std::size_t headers_size, char* at) {
    std::memcpy(at, kRequestHead.data(), kRequestHead.size());
    if (request.one_way) at[1] = static_cast<char>(kBoltTypeOneWay);
    PutBigEndian32(request.correlation_id, at + 5);
    constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
    PutBigEndian32(request.timeout_ms == 0
                       ? static_cast<std::size_t>(kNoTimeout)
                       : std::min<std::size_t>(request.timeout_ms, kMax),
                   at + 10);
    PutBigEndian16(headers_size, at + 16);
    PutBigEndian32(request.body.size(), at + 18);
    return PutHeaders(name, at + kRequestHead.size());
  }

  ParseResult ReadOutcome(const BoltFrame& frame,
                          InboundResponse* response) const {
    std::string_view code, reason;
    bool failed = false;
    const std::string_view headers =
        ContiguousPrefix(response->wire, frame.head_size(), &response->scratch)
            .substr(frame.fixed_size() + frame.class_size);
    BoltHeaderReader reader(headers);
    while (reader.Next()) {
      if (reader.key() == kBoltErrorCode) code = reader.value();
      if (reader.key() == kBoltErrorReason) reason = reader.value();
      if (reader.key() == kBoltResponseError) failed = reader.value() == "true";
    }
    if (reader.malformed()) {
      response->description = "bolt: a response with a malformed header map";
      return ParseResult::kReject;
    }
    if (!headers.empty()) {
      std::string why =
          ReadBoltMetadata(headers, metadata_limits_, &response->metadata);
      if (!why.empty()) {
        response->scratch = std::move(why);
        response->description = response->scratch;
        return ParseResult::kReject;
      }
    }
    if (frame.status != 0 || failed) {
      // `code` and `reason` may lie in the scratch.
      std::string content;
      if (failed && reason.empty()) {
        content = FlattenSlow(response->body, kMaxReason);
      }
      ReadError(frame.status, code, reason, response);
      if (!content.empty()) {
        response->scratch = std::move(content);
        response->description = response->scratch;
      }
      return ParseResult::kOk;
    }
    if (frame.codec != kBoltCodecProtobuf) {
      response->description = "bolt: a response that isn't protobuf (codec 11)";
      return ParseResult::kReject;
    }
    response->status = STATUS_SUCCESS;
    return ParseResult::kOk;
  }

  // `code` and `reason` are from the headers; empty: none.
  static void ReadError(std::uint16_t bolt_status, std::string_view code,
                        std::string_view reason, InboundResponse* response) {
    int exact = 0;
    const char* const end = code.data() + code.size();
    const auto parsed = std::from_chars(code.data(), end, exact);
    const bool valid = parsed.ec == std::errc() && parsed.ptr == end;
    // An error inside of success is the service's.
    const int closest =
        bolt_status == 0 ? STATUS_FAILED : StatusFromBolt(bolt_status);
    response->status = valid && exact != 0 ? exact : closest;
    response->description = reason;
    if (!reason.empty()) return;
    response->scratch.assign("bolt: response status ")
        .append(std::to_string(bolt_status))
        .append(" (")
        .append(BoltStatusText(bolt_status))
        .append(")");
    response->description = response->scratch;
  }

  FrameCutter<BoltFrame> cutter_;
  const MetadataLimits metadata_limits_;
  StopNoticeAsker asker_;
  FloodGuard notices_{FloodGuard::kMaxNotices};
};

}  // namespace

std::unique_ptr<ClientProtocol> NewBoltClientProtocol(const Limits& limits,
                                                      std::string_view) {
  return std::make_unique<BoltClientProtocol>(limits);
}

}  // namespace flare::rpc

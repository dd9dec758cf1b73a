#include "flare/rpc/protocol/flare_protocol.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "flare/rpc/protocol/framing.h"
#include "flare/rpc/protocol/rpc_meta.h"
#include "flare/rpc/protocol/utf8.h"

namespace flare::rpc {

namespace {

// Bit n: algorithm n. None, gzip, lz4-frame, snappy, zstd.
constexpr std::uint64_t kAcceptableCompressions = 0x3e;

constexpr ProtocolTraits kTraits{
    .attachments = true, .compression = true, .multiplexed = true};

std::uint32_t ReadLittleEndian(const char* at) {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i) {
    value = value << 8 | static_cast<std::uint8_t>(at[i]);
  }
  return value;
}

char* PutLittleEndian(std::size_t value, char* out) {
  for (int i = 0; i != 4; ++i) {
    *out++ = static_cast<char>(value >> (8 * i));
  }
  return out;
}

struct FlareFrame {
  static constexpr std::string_view kName = "flare";
  static constexpr std::string_view kMagic = "CPRF";
  static constexpr std::size_t kHeaderSize = 16;

  std::uint32_t meta_size = 0;
  std::uint32_t body_size = 0;
  std::uint32_t attachment_size = 0;

  void Read(const char* header) {
    meta_size = ReadLittleEndian(header + 4);
    body_size = ReadLittleEndian(header + 8);
    attachment_size = ReadLittleEndian(header + 12);
  }
  std::string Check() const {
    return meta_size <= kMaxMetaSize ? std::string()
                                     : OversizedMetaText(meta_size);
  }
  std::size_t head_size() const { return kHeaderSize + meta_size; }
  std::size_t total() const {
    return head_size() + std::size_t{body_size} + attachment_size;
  }
};

// kNone for the number 0, which says nothing; nullopt for unknown ones.
std::optional<CompressionAlgorithm> CompressionFromWire(std::int32_t number) {
  if (number == 0) return CompressionAlgorithm::kNone;
  if (number < static_cast<int>(CompressionAlgorithm::kNone) ||
      number > static_cast<int>(CompressionAlgorithm::kZstd)) {
    return std::nullopt;
  }
  return static_cast<CompressionAlgorithm>(number);
}

// As the published implementation does, the attachment flag goes along with
// the algorithm where there is no attachment to tell otherwise.
void SetCompression(CompressionAlgorithm algorithm, bool attachment_compressed,
                    bool has_attachment, RpcMeta* meta) {
  if (algorithm == CompressionAlgorithm::kUnknown ||
      algorithm == CompressionAlgorithm::kNone) {
    return;
  }
  meta->compression_algorithm = static_cast<std::int32_t>(algorithm);
  meta->attachment_compressed = attachment_compressed || !has_attachment;
}

void AppendFrame(const RpcMeta& meta, Buffer&& body, Buffer&& attachment,
                 BufferBuilder* out) {
  std::size_t meta_size = RpcMetaSize(meta);
  auto put_head = [&](char* at) {
    std::memcpy(at, FlareFrame::kMagic.data(), FlareFrame::kMagic.size());
    at = PutLittleEndian(meta_size, at + FlareFrame::kMagic.size());
    at = PutLittleEndian(body.size(), at);
    EncodeRpcMeta(meta, PutLittleEndian(attachment.size(), at));
  };
  AppendHead(FlareFrame::kHeaderSize + meta_size, put_head, out);
  if (!body.empty()) out->Append(std::move(body));
  if (!attachment.empty()) out->Append(std::move(attachment));
}

bool TooLargeForFrame(const Buffer& part) {
  return part.size() > std::numeric_limits<std::uint32_t>::max();
}

// --------------------------------------------------------------------------

class FlareServerProtocol : public ServerProtocol {
 public:
  FlareServerProtocol(const Limits& limits, ReplySink* sink)
      : ServerProtocol(sink), cutter_(limits.max_packet_size) {}

  std::string_view name() const override { return FlareFrame::kName; }
  ProtocolTraits traits() const override { return kTraits; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    FlareFrame header;
    bool oversized = false;
    CutResult result =
        cutter_.Cut(in, &header, &request->wire, &oversized, need, error);
    if (result != CutResult::kMessage) return result;
    request->wire_size = header.total();
    request->meta_size = header.meta_size;
    request->body_size = header.body_size;
    if (oversized) {
      request->reject_status = STATUS_MALFORMED_DATA;
      request->reject_reason = cutter_.OversizedText(header.total());
    }
    return CutResult::kMessage;
  }

  ParseResult Parse(InboundRequest* request) const override {
    RpcMeta meta;
    std::string_view error =
        DecodeRpcMeta(HeadOf(FlareFrame::kHeaderSize, request), &meta);
    if (!meta.has_correlation_id) {
      request->reject_status = STATUS_MALFORMED_DATA;
      request->reject_reason = "flare: a request without a correlation id";
      return ParseResult::kClose;
    }
    request->ticket.correlation_id = meta.correlation_id;
    request->ticket.method_type = static_cast<std::uint8_t>(
        meta.method_type == kMethodTypeStream ? kMethodTypeStream
                                              : kMethodTypeSingle);
    if (request->reject_status != STATUS_SUCCESS) return ParseResult::kReject;
    if (!error.empty()) return Reject("malformed meta: ", error, request);
    if (ParseResult result = Check(meta, request); result != ParseResult::kOk) {
      return result;
    }
    FillHead(meta, &request->head);
    SplitFrame(FlareFrame::kHeaderSize, request);
    return ParseResult::kOk;
  }

  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override {
    if (TooLargeForFrame(response.body) ||
        TooLargeForFrame(response.attachment)) {
      response = OutboundResponse();
      response.status = STATUS_SERIALIZE_RESPONSE;
      response.description = "a part of the response exceeds 4 GiB";
    }
    RpcMeta meta;
    meta.correlation_id = ticket.correlation_id;
    meta.method_type = ticket.method_type;
    // A stream is only ever refused: by its first and last message.
    if (ticket.method_type == kMethodTypeStream) {
      meta.flags = kFlagStartOfStream | kFlagEndOfStream;
    }
    meta.has_response = true;
    meta.status = response.status;
    std::string scratch;
    meta.description = AsUtf8(response.description, &scratch);
    SetCompression(response.compression, response.attachment_compressed,
                   !response.attachment.empty(), &meta);
    BufferBuilder out;
    AppendFrame(meta, std::move(response.body), std::move(response.attachment),
                &out);
    sink()->Write(out.DestructiveGet());
  }

 private:
  static ParseResult Reject(std::string_view what, std::string_view detail,
                            InboundRequest* request,
                            int status = STATUS_MALFORMED_DATA) {
    request->reject_status = status;
    request->reject_reason.assign(what).append(detail);
    return ParseResult::kReject;
  }

  static ParseResult Check(const RpcMeta& meta, InboundRequest* request) {
    if (!meta.has_method_type) {
      return Reject("the meta has no method_type", "", request);
    }
    if (meta.method_type != kMethodTypeSingle &&
        meta.method_type != kMethodTypeStream) {
      return Reject("unknown method_type ", std::to_string(meta.method_type),
                    request);
    }
    if (!meta.has_request) {
      return Reject("the meta has no request_meta", "", request);
    }
    if (!meta.has_method_name) {
      return Reject("the meta has no method_name", "", request);
    }
    if (!CompressionFromWire(meta.compression_algorithm)) {
      return Reject("unknown compression algorithm ",
                    std::to_string(meta.compression_algorithm), request);
    }
    if (meta.method_type == kMethodTypeStream) {
      return Reject("this server has no streaming calls, but this is one of ",
                    meta.method_name, request, STATUS_NOT_SUPPORTED);
    }
    if ((meta.flags & kFlagNoPayload) != 0) {
      return Reject("NO_PAYLOAD in a call that isn't a stream", "", request);
    }
    return ParseResult::kOk;
  }

  static void FillHead(const RpcMeta& meta, RequestHead* head) {
    head->correlation_id = meta.correlation_id;
    head->method = meta.method_name;
    head->timeout_ms = meta.timeout;
    head->compression = *CompressionFromWire(meta.compression_algorithm);
    head->attachment_compressed = meta.attachment_compressed;
    head->acceptable_compressions = meta.acceptable_compression_algorithms;
    head->format = PayloadFormat::kProtobuf;
    head->tracing_context = meta.tracing_context;
  }

  FrameCutter<FlareFrame> cutter_;
};

// --------------------------------------------------------------------------

class FlareClientProtocol : public ClientProtocol {
 public:
  explicit FlareClientProtocol(const Limits& limits)
      : cutter_(limits.max_packet_size) {}

  std::string_view name() const override { return FlareFrame::kName; }
  ProtocolTraits traits() const override { return kTraits; }
  PayloadFormat format() const override { return PayloadFormat::kProtobuf; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    if (request.method.empty()) {
      return flare::Status(STATUS_INVALID_METHOD_NAME, "empty method name");
    }
    if (TooLargeForFrame(request.body) ||
        TooLargeForFrame(request.attachment)) {
      return flare::Status(STATUS_SERIALIZE_REQUEST,
                           "a part of the request exceeds 4 GiB");
    }
    RpcMeta meta;
    meta.correlation_id = request.correlation_id;
    meta.method_type = kMethodTypeSingle;
    meta.has_request = true;
    meta.method_name = request.method;
    meta.timeout = request.timeout_ms;
    meta.tracing_context = request.tracing_context;
    meta.acceptable_compression_algorithms = kAcceptableCompressions;
    SetCompression(request.compression, request.attachment_compressed,
                   !request.attachment.empty(), &meta);
    AppendFrame(meta, std::move(request.body), std::move(request.attachment),
                out);
    return flare::Status();
  }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    FlareFrame header;
    bool oversized = false;
    CutResult result = cutter_.CutResponse(in, &header, &response->wire,
                                           &oversized, need, error);
    if (result != CutResult::kMessage) return result;
    response->wire_size = header.total();
    response->meta_size = header.meta_size;
    response->body_size = header.body_size;
    // Parse turns this into the error it is.
    if (oversized) response->status = STATUS_MALFORMED_DATA;
    return CutResult::kMessage;
  }

  ParseResult Parse(InboundResponse* response) const override {
    bool oversized = response->status != STATUS_SUCCESS;
    RpcMeta meta;
    std::string_view error =
        DecodeRpcMeta(HeadOf(FlareFrame::kHeaderSize, response), &meta);
    response->status = STATUS_MALFORMED_DATA;
    if (!meta.has_correlation_id) {
      response->description = "flare: a response without a correlation id";
      return ParseResult::kClose;
    }
    response->correlation_id = meta.correlation_id;
    if (oversized) {
      // The meta isn't needed any more.
      response->scratch = cutter_.OversizedText(response->wire_size);
      error = response->scratch;
    } else if (error.empty()) {
      error = Check(meta);
    }
    if (!error.empty()) {
      response->description = error;
      return ParseResult::kReject;
    }
    response->status = meta.status;
    response->description = meta.description;
    response->compression = *CompressionFromWire(meta.compression_algorithm);
    response->attachment_compressed = meta.attachment_compressed;
    SplitFrame(FlareFrame::kHeaderSize, response);
    return ParseResult::kOk;
  }

 private:
  static std::string_view Check(const RpcMeta& meta) {
    if (!meta.has_response) return "a response without response_meta";
    if (!meta.has_status) return "a response without status";
    if (!CompressionFromWire(meta.compression_algorithm)) {
      return "a response compressed with an unknown algorithm";
    }
    if (meta.method_type == kMethodTypeStream && meta.status == 0) {
      return "a stream in response to a single call";
    }
    return {};
  }

  FrameCutter<FlareFrame> cutter_;
};

}  // namespace

std::unique_ptr<ServerProtocol> NewFlareServerProtocol(const Limits& limits,
                                                       ReplySink* sink) {
  return std::make_unique<FlareServerProtocol>(limits, sink);
}

std::unique_ptr<ClientProtocol> NewFlareClientProtocol(const Limits& limits,
                                                       std::string_view) {
  return std::make_unique<FlareClientProtocol>(limits);
}

}  // namespace flare::rpc

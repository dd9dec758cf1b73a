#include "flare/rpc/protocol/baidu_std_protocol.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "flare/rpc/protocol/baidu_std_meta.h"
#include "flare/rpc/protocol/framing.h"
#include "flare/rpc/protocol/utf8.h"

namespace flare::rpc {

namespace {

constexpr std::uint64_t Bit(CompressionAlgorithm algorithm) {
  return std::uint64_t{1} << static_cast<int>(algorithm);
}

constexpr std::uint64_t kCompressions = Bit(CompressionAlgorithm::kNone) |
                                        Bit(CompressionAlgorithm::kSnappy) |
                                        Bit(CompressionAlgorithm::kGzip);

constexpr ProtocolTraits kTraits{.attachments = true,
                                 .compression = true,
                                 .multiplexed = true,
                                 .compressions = kCompressions,
                                 .attachment_compression = false};

struct BaiduStdFrame {
  static constexpr std::string_view kName = "baidu-std";
  static constexpr std::string_view kMagic = "PRPC";
  static constexpr std::size_t kHeaderSize = 12;

  std::uint32_t size = 0;  // behind the header
  std::uint32_t meta_size = 0;

  void Read(const char* header) {
    size = ReadBigEndian32(header + 4);
    meta_size = ReadBigEndian32(header + 8);
  }
  std::string Check() const {
    if (meta_size > kMaxMetaSize) return OversizedMetaText(meta_size);
    if (meta_size <= size) return std::string();
    return "a meta of " + std::to_string(meta_size) +
           " bytes in a packet with " + std::to_string(size);
  }
  std::size_t head_size() const { return kHeaderSize + meta_size; }
  std::size_t total() const { return kHeaderSize + std::size_t{size}; }
};

std::optional<CompressionAlgorithm> CompressionFromWire(std::int32_t number) {
  switch (number) {
    case 0:
      return CompressionAlgorithm::kNone;
    case kBaiduStdSnappy:
      return CompressionAlgorithm::kSnappy;
    case kBaiduStdGzip:
      return CompressionAlgorithm::kGzip;
    default:
      return std::nullopt;
  }
}

// Others than those of kCompressions don't come here. Nothing stays nothing,
// which some peers couldn't decompress.
std::int32_t CompressionToWire(CompressionAlgorithm algorithm,
                               const Buffer& body) {
  if (body.empty()) return 0;
  if (algorithm == CompressionAlgorithm::kSnappy) return kBaiduStdSnappy;
  return algorithm == CompressionAlgorithm::kGzip ? kBaiduStdGzip : 0;
}

std::optional<PayloadFormat> FormatFromWire(std::int32_t content_type) {
  switch (content_type) {
    case kBaiduStdProtobuf:
      return PayloadFormat::kProtobuf;
    case kBaiduStdProtoJson:
      return PayloadFormat::kProto3Json;
    case kBaiduStdProtoText:
      return PayloadFormat::kProtobufText;
    default:
      return std::nullopt;
  }
}

std::int32_t FormatToWire(PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobufText:
      return kBaiduStdProtoText;
    case PayloadFormat::kProto3Json:
      return kBaiduStdProtoJson;
    default:
      return kBaiduStdProtobuf;
  }
}

// Leaves room for the meta, whatever peers take the sizes for.
bool TooLargeForFrame(const Buffer& body, const Buffer& attachment) {
  return body.size() + attachment.size() > std::size_t{2'000'000'000};
}

void AppendFrame(const BaiduStdMeta& meta, Buffer&& body, Buffer&& attachment,
                 BufferBuilder* out) {
  std::size_t meta_size = BaiduStdMetaSize(meta);
  auto put_head = [&](char* at) {
    std::memcpy(at, BaiduStdFrame::kMagic.data(), BaiduStdFrame::kMagic.size());
    at = PutBigEndian32(meta_size + body.size() + attachment.size(), at + 4);
    EncodeBaiduStdMeta(meta, PutBigEndian32(meta_size, at));
  };
  AppendHead(BaiduStdFrame::kHeaderSize + meta_size, put_head, out);
  if (!body.empty()) out->Append(std::move(body));
  if (!attachment.empty()) out->Append(std::move(attachment));
}

// Sets message->body_size; false if the parts don't fit into the frame.
template <class Message>
bool FindBody(const BaiduStdMeta& meta, Message* message) {
  std::size_t rest =
      message->wire_size - BaiduStdFrame::kHeaderSize - message->meta_size;
  if (meta.attachment_size < 0 ||
      static_cast<std::size_t>(meta.attachment_size) > rest) {
    return false;
  }
  message->body_size = static_cast<std::uint32_t>(rest) -
                       static_cast<std::uint32_t>(meta.attachment_size);
  return true;
}

// --------------------------------------------------------------------------

class BaiduStdServerProtocol : public ServerProtocol {
 public:
  BaiduStdServerProtocol(const Limits& limits, ReplySink* sink)
      : ServerProtocol(sink), cutter_(limits.max_packet_size) {}

  std::string_view name() const override { return BaiduStdFrame::kName; }
  ProtocolTraits traits() const override { return kTraits; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    BaiduStdFrame frame;
    bool oversized = false;
    CutResult result =
        cutter_.Cut(in, &frame, &request->wire, &oversized, need, error);
    if (result != CutResult::kMessage) return result;
    request->wire_size = frame.total();
    request->meta_size = frame.meta_size;
    if (oversized) {
      request->reject_status = STATUS_MALFORMED_DATA;
      request->reject_reason = cutter_.OversizedText(frame.total());
    }
    return CutResult::kMessage;
  }

  ParseResult Parse(InboundRequest* request) const override {
    // For a head in pieces, and for the name, which is shorter than the meta.
    request->scratch.reserve(BaiduStdFrame::kHeaderSize +
                             2 * std::size_t{request->meta_size});
    BaiduStdMeta meta;
    std::string_view error =
        DecodeBaiduStdMeta(HeadOf(BaiduStdFrame::kHeaderSize, request), &meta);
    if (!error.empty() && !meta.has_correlation_id) {
      request->reject_status = STATUS_MALFORMED_DATA;
      request->reject_reason.assign("baidu-std: malformed meta: ")
          .append(error);
      return ParseResult::kClose;
    }
    request->ticket.correlation_id = meta.correlation_id;
    if (request->reject_status != STATUS_SUCCESS) return ParseResult::kReject;
    if (!error.empty()) return Reject("malformed meta: ", error, request);
    if (ParseResult result = Check(meta, request); result != ParseResult::kOk) {
      return result;
    }
    FillHead(meta, request);
    SplitFrame(BaiduStdFrame::kHeaderSize, request);
    return ParseResult::kOk;
  }

  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override {
    if (TooLargeForFrame(response.body, response.attachment)) {
      response = OutboundResponse();
      response.status = STATUS_SERIALIZE_RESPONSE;
      response.description = "the response exceeds 2 GB";
    } else if (response.status != STATUS_SUCCESS) {
      response.body.Clear();
      response.attachment.Clear();
    }
    BaiduStdMeta meta;
    meta.has_response = true;
    meta.error_code = response.status;
    std::string scratch;
    meta.error_text = AsUtf8(response.description, &scratch);
    meta.correlation_id = ticket.correlation_id;
    meta.compress_type = CompressionToWire(response.compression, response.body);
    meta.attachment_size =
        static_cast<std::int32_t>(response.attachment.size());
    meta.content_type = FormatToWire(ticket.format);
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

  // Also finds the body.
  static ParseResult Check(const BaiduStdMeta& meta, InboundRequest* request) {
    if (!meta.has_request) {
      return Reject("the meta has no request", "", request);
    }
    if (!meta.has_service_name || !meta.has_method_name) {
      return Reject("the request has no ",
                    meta.has_service_name ? "method_name" : "service_name",
                    request);
    }
    if (!CompressionFromWire(meta.compress_type)) {
      return Reject("unknown compress_type ",
                    std::to_string(meta.compress_type), request);
    }
    if (!FormatFromWire(meta.content_type)) {
      return Reject("unknown content_type ", std::to_string(meta.content_type),
                    request);
    }
    if (!FindBody(meta, request)) {
      return Reject("no room for an attachment_size of ",
                    std::to_string(meta.attachment_size), request);
    }
    if (meta.has_stream_settings) {
      return Reject("this server has no streams", "", request,
                    STATUS_NOT_SUPPORTED);
    }
    return ParseResult::kOk;
  }

  static void FillHead(const BaiduStdMeta& meta, InboundRequest* request) {
    RequestHead* head = &request->head;
    head->correlation_id = meta.correlation_id;
    head->method =
        JoinMethodName(meta.service_name, meta.method_name, &request->scratch);
    if (meta.timeout_ms > 0) {
      head->timeout_ms = static_cast<std::uint32_t>(meta.timeout_ms);
    }
    head->compression = *CompressionFromWire(meta.compress_type);
    head->acceptable_compressions = kCompressions;
    head->format = *FormatFromWire(meta.content_type);
    request->ticket.format = head->format;
  }

  FrameCutter<BaiduStdFrame> cutter_;
};

// --------------------------------------------------------------------------

class BaiduStdClientProtocol : public ClientProtocol {
 public:
  explicit BaiduStdClientProtocol(const Limits& limits)
      : cutter_(limits.max_packet_size) {}

  std::string_view name() const override { return BaiduStdFrame::kName; }
  ProtocolTraits traits() const override { return kTraits; }
  PayloadFormat format() const override { return PayloadFormat::kProtobuf; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    std::size_t dot = request.method.rfind('.');
    if (dot == std::string_view::npos) {
      return flare::Status(STATUS_INVALID_METHOD_NAME,
                           "\"" + std::string(request.method) +
                               "\" isn't package.Service.Method");
    }
    if (TooLargeForFrame(request.body, request.attachment)) {
      return flare::Status(STATUS_SERIALIZE_REQUEST,
                           "the request exceeds 2 GB");
    }
    BaiduStdMeta meta;
    meta.has_request = true;
    meta.service_name = request.method.substr(0, dot);
    meta.method_name = request.method.substr(dot + 1);
    meta.compress_type = CompressionToWire(request.compression, request.body);
    meta.correlation_id = request.correlation_id;
    meta.attachment_size = static_cast<std::int32_t>(request.attachment.size());
    AppendFrame(meta, std::move(request.body), std::move(request.attachment),
                out);
    return flare::Status();
  }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    BaiduStdFrame frame;
    bool oversized = false;
    CutResult result = cutter_.CutResponse(in, &frame, &response->wire,
                                           &oversized, need, error);
    if (result != CutResult::kMessage) return result;
    response->wire_size = frame.total();
    response->meta_size = frame.meta_size;
    // Parse turns this into the error it is.
    if (oversized) response->status = STATUS_MALFORMED_DATA;
    return CutResult::kMessage;
  }

  ParseResult Parse(InboundResponse* response) const override {
    bool oversized = response->status != STATUS_SUCCESS;
    BaiduStdMeta meta;
    std::string_view error =
        DecodeBaiduStdMeta(HeadOf(BaiduStdFrame::kHeaderSize, response), &meta);
    response->status = STATUS_MALFORMED_DATA;
    if (!meta.has_correlation_id) {
      response->description = "baidu-std: a response without a correlation id";
      return ParseResult::kClose;
    }
    response->correlation_id = meta.correlation_id;
    if (oversized) {
      // The meta isn't needed any more.
      response->scratch = cutter_.OversizedText(response->wire_size);
      error = response->scratch;
    } else if (error.empty()) {
      error = Check(meta, response);
    }
    if (!error.empty()) {
      response->description = error;
      return ParseResult::kReject;
    }
    response->status = meta.error_code;
    response->description = meta.error_text;
    if (meta.error_code != 0) return ParseResult::kOk;  // Without a body.
    response->compression = *CompressionFromWire(meta.compress_type);
    SplitFrame(BaiduStdFrame::kHeaderSize, response);
    return ParseResult::kOk;
  }

 private:
  // Also finds the body.
  static std::string_view Check(const BaiduStdMeta& meta,
                                InboundResponse* response) {
    if (meta.has_request) return "a request in place of a response";
    if (meta.error_code != 0) return {};
    if (!CompressionFromWire(meta.compress_type)) {
      return "a response with an unknown compress_type";
    }
    if (meta.content_type != kBaiduStdProtobuf) {
      return "a response that isn't protobuf";
    }
    if (!FindBody(meta, response)) {
      return "a response without room for its attachment_size";
    }
    return {};
  }

  FrameCutter<BaiduStdFrame> cutter_;
};

}  // namespace

std::unique_ptr<ServerProtocol> NewBaiduStdServerProtocol(const Limits& limits,
                                                          ReplySink* sink) {
  return std::make_unique<BaiduStdServerProtocol>(limits, sink);
}

std::unique_ptr<ClientProtocol> NewBaiduStdClientProtocol(const Limits& limits,
                                                          std::string_view) {
  return std::make_unique<BaiduStdClientProtocol>(limits);
}

}  // namespace flare::rpc

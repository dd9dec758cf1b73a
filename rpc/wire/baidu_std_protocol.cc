#include "flare/rpc/wire/baidu_std_protocol.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "flare/base/crc32c.h"
#include "flare/rpc/wire/baidu_std_meta.h"
#include "flare/rpc/wire/framed_protocol.h"
#include "flare/rpc/wire/utf8.h"
#include "flare/rpc/wire/wire_numbers.h"

namespace flare::rpc {

namespace {

// There are others, of no use here.
constexpr WireNumbers<CompressionAlgorithm, 4> kCompressions{
    {{0, CompressionAlgorithm::kNone},
     {1, CompressionAlgorithm::kSnappy},
     {2, CompressionAlgorithm::kGzip},
     {3, CompressionAlgorithm::kZlib}}};
// 1 is JSON of brpc's own kind.
constexpr WireNumbers<PayloadFormat, 3> kFormats{
    {{0, PayloadFormat::kProtobuf},
     {2, PayloadFormat::kLenientJson},
     {3, PayloadFormat::kProtobufText}}};
constexpr std::int32_t kCrc32c = 1;

// With which a brpc server refuses a call before it gets to the service, and
// for a reason that another server may not have. Services use brpc's other
// codes, too, above all 1003 (bad request) and 2001 (internal).
constexpr int kBrpcNoService = 1001;
constexpr int kBrpcNoMethod = 1002;
constexpr int kBrpcOvercrowded = 1011;
constexpr int kBrpcStopping = 2003;
constexpr int kBrpcLimitReached = 2004;

// What a caller of brpc understands in place of `status`; 0: nothing else.
int BrpcCodeFor(int status, FailureDetail detail) {
  if (detail == FailureDetail::kNoService) return kBrpcNoService;
  if (status == STATUS_SERVICE_NOT_FOUND) return kBrpcNoService;
  if (status == STATUS_METHOD_NOT_FOUND) return kBrpcNoMethod;
  return 0;
}

constexpr bool IsOfBrpcService(int code) {
  switch (code) {
    case kBrpcNoService:
    case kBrpcNoMethod:
    case kBrpcOvercrowded:
    case kBrpcStopping:
    case kBrpcLimitReached:
      return false;
    default:
      return IsFromService(code);
  }
}

constexpr ProtocolTraits kBaiduStdTraits{
    .attachments = true,
    .metadata = true,
    .compression = true,
    .compressions = CompressionBits(kCompressions),
    .attachment_compression = false,
    .is_from_service = IsOfBrpcService};

struct BaiduStdFrame {
  static constexpr std::string_view kName = "baidu-std";
  static constexpr std::string_view kMagic = "PRPC";
  static constexpr std::size_t kHeaderSize = 12;

  std::uint32_t size = 0;  // behind the header
  std::uint32_t meta_size = 0;

  CutResult Read(std::string_view bytes, std::size_t* need,
                 std::string* error) {
    const CutResult result = MatchHeader(bytes, kMagic, kHeaderSize, need);
    if (result != CutResult::kMessage) return result;
    size = ReadBigEndian32(bytes.data() + 4);
    meta_size = ReadBigEndian32(bytes.data() + 8);
    if (meta_size > size) {
      *error = "a meta of " + std::to_string(meta_size) +
               " bytes in a packet with " + std::to_string(size);
      return CutResult::kError;
    }
    return CutResult::kMessage;
  }
  std::size_t kept_size() const { return kHeaderSize + meta_size; }
  std::size_t total() const { return kHeaderSize + std::size_t{size}; }
};

void AppendBaiduStd(const BaiduStdMeta& meta, OutboundBody&& body,
                    Buffer&& attachment, BufferBuilder* out) {
  const std::size_t meta_size = BaiduStdMetaSize(meta);
  const std::size_t size = meta_size + body.size() + attachment.size();
  const auto put_head = [&](char* at) {
    std::memcpy(at, BaiduStdFrame::kMagic.data(), BaiduStdFrame::kMagic.size());
    at = PutBigEndian32(size, at + BaiduStdFrame::kMagic.size());
    return EncodeBaiduStdMeta(meta, PutBigEndian32(meta_size, at));
  };
  AppendFrame(BaiduStdFrame::kHeaderSize + meta_size, put_head, std::move(body),
              std::move(attachment), out);
}

// Sets message->body_size; false if the parts don't fit into the frame.
template <class Message>
bool FindParts(const BaiduStdMeta& meta, Message* message) {
  return meta.attachment_size >= 0 &&
         FindBody<BaiduStdFrame>(static_cast<std::size_t>(meta.attachment_size),
                                 message);
}

// As brpc masks them, so that the checksum of a checksum is a good one, too.
std::uint32_t Masked(std::uint32_t crc) {
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

// Whether the bytes are those that the checksum was made of, if there is one of
// a kind that we know. Behind FindParts.
template <class Message>
bool ChecksumMatches(const BaiduStdMeta& meta, const Message& message) {
  if (meta.checksum_type != kCrc32c) return true;
  std::size_t skip = BaiduStdFrame::kHeaderSize + message.meta_size;
  std::size_t left = meta.checksum_with_attachment ? message.wire.size() - skip
                                                   : message.body_size;
  std::uint32_t crc = 0;
  for (std::string_view slice : message.wire) {
    const std::size_t skipped = std::min(skip, slice.size());
    skip -= skipped;
    slice = slice.substr(skipped, left);
    left -= slice.size();
    crc = ExtendCrc32c(crc, slice);
  }
  return meta.checksum_value.size() == sizeof(crc) &&
         ReadBigEndian32(meta.checksum_value.data()) == Masked(crc);
}

// --------------------------------------------------------------------------

class BaiduStdServerProtocol final
    : public FramedServerProtocol<BaiduStdServerProtocol, BaiduStdFrame,
                                  BaiduStdMeta> {
 public:
  BaiduStdServerProtocol(const Limits& limits, ReplySink* sink)
      : FramedServerProtocol(limits, sink) {}

  ProtocolTraits traits() const override { return kBaiduStdTraits; }

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
    if (response.detail == FailureDetail::kStopping) {
      meta.error_code = kBrpcStopping;
    } else if (const int code = BrpcCodeFor(response.status, response.detail))
        [[unlikely]] {
      meta.error_code = code;
      meta.own_error_code = response.status;
    }
    std::string scratch;
    meta.error_text =
        AsUtf8(CutUtf8(response.description, kMaxErrorText), &scratch);
    const auto& [correlation_id, format] = ticket.As<BaiduStdTicket>();
    meta.correlation_id = correlation_id;
    meta.compress_type =
        CompressionNumber(kCompressions, response.compression, response.body);
    meta.attachment_size =
        static_cast<std::int32_t>(response.attachment.size());
    meta.content_type = kFormats.NumberOf(format);
    meta.metadata.written = response.metadata;
    BufferBuilder out;
    AppendBaiduStd(meta, std::move(response.body),
                   std::move(response.attachment), &out);
    sink()->Write(out.DestructiveGet());
  }

  // For FramedServerProtocol.
  static constexpr bool kJoinsMethodName = true;

  static std::string_view Decode(std::string_view bytes, BaiduStdMeta* meta) {
    return DecodeBaiduStdMeta(bytes, meta);
  }

  static bool Identify(const BaiduStdMeta& meta, bool malformed,
                       InboundRequest* request) {
    request->ticket.Emplace<BaiduStdTicket>().correlation_id =
        meta.correlation_id;
    return meta.has_correlation_id || !malformed;
  }

  static ParseResult Accept(const BaiduStdMeta& meta, InboundRequest* request) {
    if (!meta.has_request) {
      return Reject("the meta has no request", "", request);
    }
    if (!meta.has_service_name || !meta.has_method_name) {
      return Reject("the request has no ",
                    meta.has_service_name ? "method_name" : "service_name",
                    request);
    }
    const auto compression = kCompressions.Find(meta.compress_type);
    if (!compression) {
      return Reject("unknown compress_type ",
                    std::to_string(meta.compress_type), request);
    }
    const auto format = kFormats.Find(meta.content_type);
    if (!format) {
      return Reject("unknown content_type ", std::to_string(meta.content_type),
                    request);
    }
    if (!FindParts(meta, request)) {
      return Reject("no room for an attachment_size of ",
                    std::to_string(meta.attachment_size), request);
    }
    if (meta.has_stream_settings) {
      return Reject("this server has no streams", "", request,
                    STATUS_NOT_SUPPORTED);
    }
    if (!ChecksumMatches(meta, *request)) {
      return Reject("the checksum is of other bytes", "", request);
    }
    RequestHead* const head = &request->head;
    head->method =
        JoinMethodName(meta.service_name, meta.method_name, &request->scratch);
    head->short_service = meta.service_name.find('.') == std::string_view::npos;
    if (meta.timeout_ms > 0) {
      head->timeout_ms = static_cast<std::uint32_t>(meta.timeout_ms);
    }
    head->compression = *compression;
    head->acceptable_compressions = kBaiduStdTraits.compressions;
    head->format = *format;
    request->ticket.As<BaiduStdTicket>().format = *format;
    if (meta.log_id != 0) [[unlikely]]
      AddLogId(meta.log_id, request);
    return ParseResult::kOk;
  }

 private:
  [[gnu::cold, gnu::noinline]] static void AddLogId(std::uint64_t log_id,
                                                    InboundRequest* request) {
    request->metadata = std::make_unique<Metadata>();
    request->metadata->AddReceived(
        "log-id", std::to_string(static_cast<std::int64_t>(log_id)));
  }
};

// --------------------------------------------------------------------------

class BaiduStdClientProtocol final
    : public FramedClientProtocol<BaiduStdClientProtocol, BaiduStdFrame,
                                  BaiduStdMeta> {
 public:
  explicit BaiduStdClientProtocol(const Limits& limits)
      : FramedClientProtocol(limits) {}

  ProtocolTraits traits() const override { return kBaiduStdTraits; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    const MethodName name(request.method);
    if (!name.ok()) return BadMethodName(request.method);
    if (TooLargeForFrame(request.body, request.attachment)) {
      return flare::Status(STATUS_SERIALIZE_REQUEST,
                           "the request exceeds 2 GB");
    }
    BaiduStdMeta meta;
    meta.has_request = true;
    meta.service_name = name.service;
    meta.method_name = name.method;
    constexpr std::uint32_t kMaxTimeout = 0x7fffffff;
    meta.timeout_ms =
        static_cast<std::int32_t>(std::min(request.timeout_ms, kMaxTimeout));
    meta.compress_type =
        CompressionNumber(kCompressions, request.compression, request.body);
    meta.correlation_id = request.correlation_id;
    meta.attachment_size = static_cast<std::int32_t>(request.attachment.size());
    meta.metadata.written = request.metadata;
    AppendBaiduStd(meta, std::move(request.body), std::move(request.attachment),
                   out);
    return flare::Status();
  }

  // For FramedClientProtocol.
  static std::string_view Decode(std::string_view bytes, BaiduStdMeta* meta) {
    return DecodeBaiduStdMeta(bytes, meta);
  }

  static bool Identify(const BaiduStdMeta& meta, bool /*malformed*/,
                       InboundResponse* response) {
    response->correlation_id = meta.correlation_id;
    return meta.has_correlation_id;
  }

  static std::string_view Accept(const BaiduStdMeta& meta,
                                 InboundResponse* response) {
    if (meta.has_request) return "a request in place of a response";
    response->status = meta.error_code;
    response->description = meta.error_text;
    if (meta.error_code != 0) {  // There is no body.
      if (meta.own_error_code != 0) response->status = meta.own_error_code;
      return {};
    }
    const auto compression = kCompressions.Find(meta.compress_type);
    if (!compression) return "a response with an unknown compress_type";
    response->compression = *compression;
    if (kFormats.Find(meta.content_type) != PayloadFormat::kProtobuf) {
      return "a response that isn't protobuf";
    }
    if (!FindParts(meta, response)) {
      return "a response without room for its attachment_size";
    }
    if (!ChecksumMatches(meta, *response)) {
      return "a response with the checksum of other bytes";
    }
    return {};
  }
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

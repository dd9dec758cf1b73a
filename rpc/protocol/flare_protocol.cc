#include "flare/rpc/protocol/flare_protocol.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "flare/rpc/protocol/rpc_meta.h"

namespace flare::rpc {

namespace {

constexpr std::string_view kName = "flare";
constexpr std::string_view kMagic = "CPRF";
constexpr std::size_t kHeaderSize = 16;
constexpr std::size_t kMaxMetaSize = 64 << 10;
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

struct FrameHeader {
  std::uint32_t meta_size = 0;
  std::uint32_t body_size = 0;
  std::uint32_t attachment_size = 0;

  std::size_t total() const {
    return kHeaderSize + std::size_t{meta_size} + body_size + attachment_size;
  }
};

// Takes frames off the input; the part that both sides share.
class FrameCutter {
 public:
  explicit FrameCutter(std::size_t max_packet_size)
      : max_packet_size_(max_packet_size) {}

  // On kMessage: *wire has header and meta and, unless *oversized, all of the
  // frame; the rest of an oversized one is skipped by this and later calls.
  CutResult Cut(Buffer& in, FrameHeader* header, Buffer* wire, bool* oversized,
                std::size_t* need, std::string* error) {
    *need = 0;
    if (!SkipRest(in)) return CutResult::kNeedMore;
    CutResult result = ReadHeader(in, header, need);
    if (result != CutResult::kMessage) return result;
    if (header->meta_size > kMaxMetaSize) {
      *error = "flare: a meta of " + std::to_string(header->meta_size) +
               " bytes exceeds the limit of " + std::to_string(kMaxMetaSize);
      return CutResult::kError;
    }
    *oversized = header->total() > max_packet_size_;
    std::size_t wanted =
        *oversized ? kHeaderSize + header->meta_size : header->total();
    if (in.size() < wanted) {
      *need = wanted;
      return CutResult::kNeedMore;
    }
    *wire = in.Cut(wanted);
    skip_ = header->total() - wanted;
    SkipRest(in);
    return CutResult::kMessage;
  }

  std::string OversizedText(std::size_t size) const {
    return "a message of " + std::to_string(size) +
           " bytes exceeds the limit of " + std::to_string(max_packet_size_);
  }

 private:
  // False if all of the input belonged to an oversized frame and more will.
  bool SkipRest(Buffer& in) {
    std::size_t n = std::min(skip_, in.size());
    if (n != 0) in.Skip(n);
    skip_ -= n;
    return skip_ == 0;
  }

  static CutResult ReadHeader(const Buffer& in, FrameHeader* header,
                              std::size_t* need) {
    char scratch[kHeaderSize];
    std::string_view bytes = in.Peek(std::min(in.size(), kHeaderSize), scratch);
    std::size_t known = std::min(bytes.size(), kMagic.size());
    if (bytes.substr(0, known) != kMagic.substr(0, known)) {
      return CutResult::kNotMine;
    }
    if (known < kMagic.size()) return CutResult::kUnsure;
    if (bytes.size() < kHeaderSize) {
      *need = kHeaderSize;
      return CutResult::kNeedMore;
    }
    header->meta_size = ReadLittleEndian(bytes.data() + 4);
    header->body_size = ReadLittleEndian(bytes.data() + 8);
    header->attachment_size = ReadLittleEndian(bytes.data() + 12);
    return CutResult::kMessage;
  }

  const std::size_t max_packet_size_;
  std::size_t skip_ = 0;  // bytes still to come of an oversized frame
};

// The meta of a frame cut off before, in one piece; maybe in
// `message->scratch`.
template <class Message>
std::string_view MetaBytes(Message* message) {
  return ContiguousPrefix(message->wire, kHeaderSize + message->meta_size,
                          &message->scratch)
      .substr(kHeaderSize);
}

// Takes the frame apart; its head stays in `wire`, for the views into it.
template <class Message>
void SplitFrame(Message* message) {
  Buffer head = message->wire.Cut(kHeaderSize + message->meta_size);
  message->body = message->wire.Cut(message->body_size);
  message->attachment = std::move(message->wire);
  message->wire = std::move(head);
}

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
    std::memcpy(at, kMagic.data(), kMagic.size());
    at = PutLittleEndian(meta_size, at + kMagic.size());
    at = PutLittleEndian(body.size(), at);
    EncodeRpcMeta(meta, PutLittleEndian(attachment.size(), at));
  };
  if (std::size_t size = kHeaderSize + meta_size;
      size <= BufferBuilder::kMaxReserve) {
    put_head(out->Reserve(size));
  } else {
    std::string head(size, '\0');
    put_head(head.data());
    out->Append(head);
  }
  if (!body.empty()) out->Append(std::move(body));
  if (!attachment.empty()) out->Append(std::move(attachment));
}

bool TooLargeForFrame(const Buffer& part) {
  return part.size() > std::numeric_limits<std::uint32_t>::max();
}

bool IsAscii(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<std::uint8_t>(c) >= 0x80;
  });
}

// Length of the UTF-8 sequence at the start of `text`; 0 if there is none.
std::size_t Utf8SequenceSize(std::string_view text) {
  auto at = [&](std::size_t i) {
    return i < text.size() ? static_cast<std::uint8_t>(text[i]) : 0u;
  };
  auto continues = [&](std::size_t i) { return (at(i) & 0xc0) == 0x80; };
  if (at(0) < 0x80) return 1;
  if (at(0) >= 0xc2 && at(0) <= 0xdf) return continues(1) ? 2 : 0;
  if (at(0) >= 0xe0 && at(0) <= 0xef) {
    bool overlong = at(0) == 0xe0 && at(1) < 0xa0;
    bool surrogate = at(0) == 0xed && at(1) > 0x9f;
    return continues(1) && continues(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (at(0) >= 0xf0 && at(0) <= 0xf4) {
    bool overlong = at(0) == 0xf0 && at(1) < 0x90;
    bool beyond = at(0) == 0xf4 && at(1) > 0x8f;
    return continues(1) && continues(2) && continues(3) && !overlong && !beyond
               ? 4
               : 0;
  }
  return 0;
}

// The schema says string: some peers refuse what isn't UTF-8, and an error
// text may quote what a client sent.
std::string ToUtf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    std::size_t size = Utf8SequenceSize(text);
    if (size == 0) {
      result.push_back('?');
      size = 1;
    } else {
      result.append(text.substr(0, size));
    }
    text.remove_prefix(size);
  }
  return result;
}

// --------------------------------------------------------------------------

class FlareServerProtocol : public ServerProtocol {
 public:
  FlareServerProtocol(const Limits& limits, ReplySink* sink)
      : ServerProtocol(sink), cutter_(limits.max_packet_size) {}

  std::string_view name() const override { return kName; }
  ProtocolTraits traits() const override { return kTraits; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    FrameHeader header;
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
    std::string_view error = DecodeRpcMeta(MetaBytes(request), &meta);
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
    SplitFrame(request);
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
    meta.description = response.description;
    std::string as_utf8;
    if (!IsAscii(meta.description)) {
      as_utf8 = ToUtf8(meta.description);
      meta.description = as_utf8;
    }
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

  FrameCutter cutter_;
};

// --------------------------------------------------------------------------

class FlareClientProtocol : public ClientProtocol {
 public:
  explicit FlareClientProtocol(const Limits& limits)
      : cutter_(limits.max_packet_size) {}

  std::string_view name() const override { return kName; }
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
    FrameHeader header;
    bool oversized = false;
    CutResult result =
        cutter_.Cut(in, &header, &response->wire, &oversized, need, error);
    switch (result) {
      case CutResult::kMessage:
        break;
      case CutResult::kUnsure:
        return CutResult::kNeedMore;
      case CutResult::kNotMine:
        *error = "flare: the peer's bytes are no flare response";
        return CutResult::kError;
      default:
        return result;
    }
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
    std::string_view error = DecodeRpcMeta(MetaBytes(response), &meta);
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
    SplitFrame(response);
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

  FrameCutter cutter_;
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

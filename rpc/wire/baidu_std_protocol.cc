#include "flare/rpc/wire/baidu_std_protocol.h"

#include <algorithm>
#include <string>
#include <utility>

#include "flare/base/crc32c.h"
#include "flare/rpc/wire/baidu_std_frame.h"
#include "flare/rpc/wire/baidu_std_meta.h"
#include "flare/rpc/wire/baidu_std_streams.h"
#include "flare/rpc/wire/framed_protocol.h"
#include "flare/rpc/wire/stop_notice.h"
#include "flare/rpc/wire/wire_numbers.h"

namespace flare::rpc {

namespace {

constexpr std::int32_t kCrc32c = 1;

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
      : FramedServerProtocol(limits, sink), streams_(limits, sink) {}

  ProtocolTraits traits() const override { return kBaiduStdTraits; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    is_stream_ = false;
    const CutResult result =
        FramedServerProtocol::Cut(in, request, need, error);
    if (result != CutResult::kMessage) return result;
    if (is_stream_) [[unlikely]]
      return streams_.Take(request, error);
    const std::string_view meta = MetaOf<BaiduStdFrame>(request);
    if (notice_.Looks() && HasNotice(meta)) notice_.OnAsked();
    if (request->reject_status == STATUS_SUCCESS && HasStreamSettings(meta))
        [[unlikely]] {
      BeginStream(request);
    }
    return result;
  }

  // To brpc this would be a reply that comes too late, which it passes over.
  bool AnnounceEnd() override {
    if (!notice_.asked()) return false;
    BaiduStdMeta meta;
    meta.has_response = true;
    meta.notice = kStopNotice;
    BufferBuilder out;
    AppendBaiduStd(meta, OutboundBody(), Buffer(), &out);
    return sink()->WriteSoon(out.DestructiveGet());
  }

  ParseResult Parse(InboundRequest* request) const override {
    const auto& ticket = request->ticket.As<BaiduStdTicket>();
    if (!ticket.is_parsed) [[likely]]
      return FramedServerProtocol::Parse(request);
    return request->stream != nullptr ? ParseResult::kOk : ParseResult::kReject;
  }

  void EndInput() override {
    streams_.EndInput("the caller's input ended, or the server stops");
  }
  void OnClosed(const flare::Status& why) override { streams_.Close(why); }

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
    std::string scratch;
    SetBaiduStdOutcome(response.status, response.detail, response.description,
                       &scratch, &meta);
    const auto& call = ticket.As<BaiduStdTicket>();
    meta.correlation_id = call.correlation_id;
    meta.compress_type = CompressionNumber(kBaiduStdCompressions,
                                           response.compression, response.body);
    meta.attachment_size =
        static_cast<std::int32_t>(response.attachment.size());
    meta.content_type = kBaiduStdFormats.NumberOf(call.format);
    meta.metadata.written = response.metadata;
    BufferBuilder out;
    AppendBaiduStd(meta, std::move(response.body),
                   std::move(response.attachment), &out);
    sink()->Write(out.DestructiveGet());
  }

  // For FramedServerProtocol.
  static constexpr bool kJoinsMethodName = true;

  void Describe(const BaiduStdFrame& frame, InboundRequest* request) {
    is_stream_ = frame.is_stream;
    request->ticket.Emplace<BaiduStdTicket>();
  }

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
    const auto compression = kBaiduStdCompressions.Find(meta.compress_type);
    if (!compression) {
      return Reject("unknown compress_type ",
                    std::to_string(meta.compress_type), request);
    }
    const auto format = kBaiduStdFormats.Find(meta.content_type);
    if (!format) {
      return Reject("unknown content_type ", std::to_string(meta.content_type),
                    request);
    }
    if (!FindParts(meta, request)) {
      return Reject("no room for an attachment_size of ",
                    std::to_string(meta.attachment_size), request);
    }
    if (meta.has_stream_settings && meta.attachment_size != 0) {
      return Reject("streams have no attachments", "", request,
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
  // A call that has messages beside its request. Parse() refuses it where
  // necessary.
  [[gnu::cold, gnu::noinline]] void BeginStream(InboundRequest* request) {
    BaiduStdMeta meta;
    if (!Decode(MetaOf<BaiduStdFrame>(request), &meta).empty()) return;
    const BaiduStdPeer peer = BaiduStdPeer::From(meta);
    if (FramedServerProtocol::Parse(request) != ParseResult::kOk) return;
    auto& ticket = request->ticket.As<BaiduStdTicket>();
    ticket.is_parsed = true;
    streams_.Begin(peer, ticket.correlation_id, request);
  }

  [[gnu::cold, gnu::noinline]] static void AddLogId(std::uint64_t log_id,
                                                    InboundRequest* request) {
    request->metadata = std::make_unique<Metadata>();
    request->metadata->AddReceived(
        "log-id", std::to_string(static_cast<std::int64_t>(log_id)));
  }

  BaiduStdServerStreams streams_;
  StopNoticeTaker notice_;
  bool is_stream_ = false;  // The frame at hand belongs to one.
};

// --------------------------------------------------------------------------

class BaiduStdClientProtocol final
    : public FramedClientProtocol<BaiduStdClientProtocol, BaiduStdFrame,
                                  BaiduStdMeta> {
 public:
  explicit BaiduStdClientProtocol(const Limits& limits)
      : FramedClientProtocol(limits), streams_(limits) {}

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
    meta.compress_type = CompressionNumber(kBaiduStdCompressions,
                                           request.compression, request.body);
    meta.correlation_id = request.correlation_id;
    meta.attachment_size = static_cast<std::int32_t>(request.attachment.size());
    meta.metadata.written = request.metadata;
    if (asker_.Asks(request.correlation_id)) meta.notice = kStopNotice;
    AppendBaiduStd(meta, std::move(request.body), std::move(request.attachment),
                   out);
    return flare::Status();
  }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    is_stream_ = false;
    const CutResult result =
        FramedClientProtocol::Cut(in, response, need, error);
    if (result != CutResult::kMessage || !streams_.opened()) [[likely]]
      return result;
    return TakeOfStream(response, error);
  }

  void SetOutput(StreamOutput* output) override {
    streams_.SetOutput(output);
    asker_.SetOutput(output);
  }
  std::unique_ptr<StreamWire> OpenStream(const ClientStreamOpening& opening,
                                         StreamOutput* output) override {
    return streams_.Open(opening, output);
  }
  bool has_streams() const override { return true; }
  bool streams_can_share() const override { return true; }
  bool HasOpenStreams() const override { return streams_.HasOpen(); }
  void OnClosed(const flare::Status& why) override { streams_.Close(why); }

  // For FramedClientProtocol.
  std::string_view Describe(const BaiduStdFrame& frame, InboundResponse*) {
    is_stream_ = frame.is_stream;
    if (is_stream_ && !streams_.opened()) return kNoStream;
    return {};
  }

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
    if (meta.notice == kStopNotice && meta.correlation_id == 0) [[unlikely]] {
      response->last_on_connection = response->is_notice = true;
      return {};
    }
    response->status = BaiduStdOutcome(meta);
    response->description = meta.error_text;
    if (meta.error_code != 0) return {};  // There is no body.
    const auto compression = kBaiduStdCompressions.Find(meta.compress_type);
    if (!compression) return "a response with an unknown compress_type";
    response->compression = *compression;
    if (kBaiduStdFormats.Find(meta.content_type) != PayloadFormat::kProtobuf) {
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

 private:
  static constexpr std::string_view kNoStream =
      "a frame of a stream, of which there is none";

  // kMessage: it belongs to none.
  CutResult TakeOfStream(InboundResponse* response, std::string* error) {
    std::uint64_t id = 0;
    if (is_stream_) {
      const BaiduStdClientStreams::Taken taken =
          streams_.TakeFrame(response, &id, error);
      if (taken == BaiduStdClientStreams::Taken::kError) {
        error->insert(0, "baidu-std: ");
        return CutResult::kError;
      }
      if (taken == BaiduStdClientStreams::Taken::kHandled) {
        response->Clear();
        return CutResult::kHandled;
      }
    } else {
      id = CorrelationIdOf(MetaOf<BaiduStdFrame>(response));
      if (!BaiduStdClientStreams::IsReply(id)) return CutResult::kMessage;
    }
    BaiduStdMeta meta;
    // Parse() finds the faults.
    static_cast<void>(Decode(MetaOf<BaiduStdFrame>(response), &meta));
    const BaiduStdPeer peer = BaiduStdPeer::From(meta);
    static_cast<void>(FramedClientProtocol::Parse(response));
    streams_.TakeReply(id, peer, response);
    response->Clear();
    return CutResult::kHandled;
  }

  BaiduStdClientStreams streams_;
  StopNoticeAsker asker_;
  bool is_stream_ = false;  // The frame at hand belongs to one.
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

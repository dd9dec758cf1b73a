#include "flare/rpc/wire/flare_protocol.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/rpc/wire/flare_frame.h"
#include "flare/rpc/wire/flare_resets.h"
#include "flare/rpc/wire/flare_streams.h"
#include "flare/rpc/wire/flood_guard.h"
#include "flare/rpc/wire/framed_protocol.h"
#include "flare/rpc/wire/rpc_meta.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {

namespace {

// Bit n: algorithm n. None, gzip, lz4-frame, snappy, zstd.
constexpr std::uint64_t kAcceptableCompressions = 0x3e;

constexpr ProtocolTraits kFlareTraits{.attachments = true,
                                      .metadata = true,
                                      .compression = true,
                                      .compressions = kAcceptableCompressions,
                                      .failures_have_messages = true};

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
  if (!IsCompressed(algorithm)) return;
  meta->compression_algorithm = static_cast<std::int32_t>(algorithm);
  meta->attachment_compressed = attachment_compressed || !has_attachment;
}

bool PartTooLarge(const OutboundBody& body, const Buffer& attachment) {
  return std::max(body.size(), attachment.size()) >
         std::numeric_limits<std::uint32_t>::max();
}

// --------------------------------------------------------------------------

class FlareServerProtocol final
    : public FramedServerProtocol<FlareServerProtocol, FlareFrame, RpcMeta> {
 public:
  FlareServerProtocol(const Limits& limits, ReplySink* sink)
      : FramedServerProtocol(limits, sink), streams_(sink), resets_(sink) {}

  ProtocolTraits traits() const override { return kFlareTraits; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    const CutResult result =
        FramedServerProtocol::Cut(in, request, need, error);
    if (result != CutResult::kMessage) return result;
    const std::string_view bytes = MetaOf<FlareFrame>(request);
    if (IsPlainlySingle(bytes)) [[likely]]
      return result;
    return TakeOther(bytes, request, error);
  }

  bool CallerLeft(const ReplyTicket& ticket) const override {
    const auto& [correlation_id, method_type] = ticket.As<FlareTicket>();
    return method_type == kMethodTypeSingle && resets_.Has(correlation_id);
  }

  bool AnnounceEnd() override {
    // seq_cst: behind the store of lingers_ in ServerConnection; pairs with the
    // store in TakeOther [SN2].
    if (!greeted_.load(std::memory_order_seq_cst)) return false;
    RpcMeta meta;
    meta.method_type = kMethodTypeSingle;
    meta.notice = kNoticeStopping;
    BufferBuilder out;
    AppendFlare(meta, OutboundBody(), Buffer(), &out);
    return sink()->WriteSoon(out.DestructiveGet());
  }

  void EndInput() override {
    streams_.EndInput("the caller's input ended, or the server stops");
  }
  void OnClosed(const flare::Status& why) override { streams_.Close(why); }

  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override {
    if (PartTooLarge(response.body, response.attachment)) {
      response = OutboundResponse();
      response.status = STATUS_SERIALIZE_RESPONSE;
      response.description = "a part of the response exceeds 4 GiB";
    }
    const auto& [correlation_id, method_type] = ticket.As<FlareTicket>();
    // Nobody waits for it.
    if (resets_.Remove(correlation_id) && method_type == kMethodTypeSingle)
        [[unlikely]] {
      return;
    }
    RpcMeta meta;
    meta.correlation_id = correlation_id;
    meta.method_type = method_type;
    // By this a stream is only refused: by its first and last message, which
    // isn't one for the reader. (Of an overloaded server's the published ones
    // don't say that.)
    if (method_type == kMethodTypeStream) {
      meta.flags = kFlagStartOfStream | kFlagEndOfStream;
      if (response.status != STATUS_OVERLOADED) meta.flags |= kFlagNoPayload;
    }
    meta.has_response = true;
    meta.status = response.status;
    std::string scratch;
    if (!response.description.empty()) [[unlikely]] {
      meta.description =
          AsUtf8(CutUtf8(response.description, kMaxErrorText), &scratch);
    }
    SetCompression(response.compression, response.attachment_compressed,
                   !response.attachment.empty(), &meta);
    meta.metadata.written = response.metadata;
    BufferBuilder out;
    AppendFlare(meta, std::move(response.body), std::move(response.attachment),
                &out);
    sink()->Write(out.DestructiveGet());
  }

  // For FramedServerProtocol.
  static void Describe(const FlareFrame& frame, InboundRequest* request) {
    request->body_size = frame.body_size;
  }

  static std::string_view Decode(std::string_view bytes, RpcMeta* meta) {
    return DecodeRpcMeta(bytes, meta);
  }

  static bool Identify(const RpcMeta& meta, bool /*malformed*/,
                       InboundRequest* request) {
    request->ticket.Emplace<FlareTicket>(
        {.correlation_id = meta.correlation_id,
         .method_type = meta.method_type == kMethodTypeStream
                            ? kMethodTypeStream
                            : kMethodTypeSingle});
    return meta.has_correlation_id;
  }

  static ParseResult Accept(const RpcMeta& meta, InboundRequest* request) {
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
    const auto compression = CompressionFromWire(meta.compression_algorithm);
    if (!compression) {
      return Reject("unknown compression algorithm ",
                    std::to_string(meta.compression_algorithm), request);
    }
    if (meta.method_type == kMethodTypeStream) {
      if (request->stream == nullptr) {
        return Reject("this server has no streaming calls, but this is one of ",
                      meta.method_name, request, STATUS_NOT_SUPPORTED);
      }
    } else if ((meta.flags & kFlagNoPayload) != 0) {
      return Reject("NO_PAYLOAD in a call that isn't a stream", "", request);
    }
    RequestHead* const head = &request->head;
    head->method = meta.method_name;
    head->timeout_ms = meta.timeout;
    head->compression = *compression;
    head->attachment_compressed = meta.attachment_compressed;
    head->acceptable_compressions = meta.acceptable_compression_algorithms;
    return ParseResult::kOk;
  }

 private:
  // A frame, `bytes` of which are the meta, that isn't plainly a request.
  [[gnu::noinline]] CutResult TakeOther(std::string_view bytes,
                                        InboundRequest* request,
                                        std::string* error) {
    const bool is_stream = IsStreamMeta(bytes);
    if (!is_stream && !SpeaksOfResets(bytes)) return CutResult::kMessage;
    RpcMeta meta;
    // Parse() refuses malformed requests.
    if (!DecodeRpcMeta(bytes, &meta).empty()) return CutResult::kMessage;
    if (meta.hello || meta.heeds_resets) {
      // seq_cst: before the reader looks at lingers_; pairs with the load in
      // AnnounceEnd [SN2].
      greeted_.store(true, std::memory_order_seq_cst);
    }
    const bool too_large = request->reject_status != STATUS_SUCCESS;
    if (is_stream) return streams_.Take(meta, too_large, request, error);
    if (!resets_.Take(meta)) return CutResult::kMessage;
    request->Clear();
    return CutResult::kHandled;
  }

  FlareServerStreams streams_;
  FlareServerResets resets_;
  // The client has sent `hello` or `heeds_resets`: it takes notices, or is an
  // older client of this library, and passes them over as late replies.
  std::atomic<bool> greeted_{false};
};

// --------------------------------------------------------------------------

class FlareClientProtocol final
    : public FramedClientProtocol<FlareClientProtocol, FlareFrame, RpcMeta> {
 public:
  explicit FlareClientProtocol(const Limits& limits)
      : FramedClientProtocol(limits), streams_(limits.metadata) {}

  ProtocolTraits traits() const override { return kFlareTraits; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    if (request.method.empty()) {
      return flare::Status(STATUS_INVALID_METHOD_NAME, "empty method name");
    }
    if (PartTooLarge(request.body, request.attachment)) {
      return flare::Status(STATUS_SERIALIZE_REQUEST,
                           "a part of the request exceeds 4 GiB");
    }
    RpcMeta meta;
    meta.correlation_id = request.correlation_id;
    meta.method_type = kMethodTypeSingle;
    meta.has_request = true;
    meta.method_name = request.method;
    meta.timeout = request.timeout_ms;
    meta.acceptable_compression_algorithms = kAcceptableCompressions;
    SetCompression(request.compression, request.attachment_compressed,
                   !request.attachment.empty(), &meta);
    meta.metadata.written = request.metadata;
    if (resets_.Asks(request.correlation_id)) [[unlikely]] {
      AppendAsking(meta, &request, out);
      return flare::Status();
    }
    AppendFlare(meta, std::move(request.body), std::move(request.attachment),
                out);
    return flare::Status();
  }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    const CutResult result =
        FramedClientProtocol::Cut(in, response, need, error);
    if (result != CutResult::kMessage) return result;
    const std::string_view bytes = MetaOf<FlareFrame>(response);
    if (IsPlainlySingle(bytes)) [[likely]]
      return result;
    return TakeOther(bytes, response, error);
  }

  void SetOutput(StreamOutput* output) override { resets_.SetOutput(output); }
  void Abandon(std::uint64_t correlation_id) override {
    resets_.Reset(correlation_id);
  }

  std::unique_ptr<StreamWire> OpenStream(const ClientStreamOpening& opening,
                                         StreamOutput* output) override {
    return streams_.Open(opening, output);
  }
  bool has_streams() const override { return true; }
  bool HasOpenStreams() const override { return streams_.HasOpen(); }
  bool streams_can_share() const override { return streams_.can_share(); }
  void OnClosed(const flare::Status& why) override { streams_.Close(why); }

  // For FramedClientProtocol.
  static std::string_view Describe(const FlareFrame& frame,
                                   InboundResponse* response) {
    response->body_size = frame.body_size;
    return {};
  }

  static std::string_view Decode(std::string_view bytes, RpcMeta* meta) {
    return DecodeRpcMeta(bytes, meta);
  }

  static bool Identify(const RpcMeta& meta, bool /*malformed*/,
                       InboundResponse* response) {
    response->correlation_id = meta.correlation_id;
    return meta.has_correlation_id;
  }

  static std::string_view Accept(const RpcMeta& meta,
                                 InboundResponse* response) {
    if (!meta.has_response) {
      // One with a body would be sent back, as the connection does with those
      // of other protocols.
      response->is_notice =
          (meta.heeds_resets || meta.notice != 0) && !meta.has_request &&
          response->wire_size ==
              FlareFrame::kHeaderSize + std::size_t{response->meta_size};
      response->last_on_connection =
          response->is_notice && meta.notice == kNoticeStopping;
      return response->is_notice ? "" : "a response without response_meta";
    }
    if (!meta.has_status) return "a response without status";
    const auto compression = CompressionFromWire(meta.compression_algorithm);
    // An unreadable body doesn't hide the failure that it comes with.
    if (!compression && meta.status == 0) {
      return "a response compressed with an unknown algorithm";
    }
    if (meta.method_type == kMethodTypeStream && meta.status == 0) {
      return "a stream in response to a single call";
    }
    response->status = meta.status;
    response->description = meta.description;
    response->compression =
        compression.value_or(CompressionAlgorithm::kUnknown);
    response->attachment_compressed = meta.attachment_compressed;
    return {};
  }

 private:
  // A frame, `bytes` of which are the meta, that isn't plainly a reply.
  [[gnu::noinline]] CutResult TakeOther(std::string_view bytes,
                                        InboundResponse* response,
                                        std::string* error) {
    const bool is_stream = IsStreamMeta(bytes);
    if (!is_stream && !SpeaksOfResets(bytes)) return CutResult::kMessage;
    RpcMeta meta;
    if (!DecodeRpcMeta(bytes, &meta).empty()) return CutResult::kMessage;
    if (is_stream) {
      const bool too_large = response->status != STATUS_SUCCESS;
      // A unary call may be answered so: by a failure.
      return streams_.Take(meta, too_large, response) ? CutResult::kHandled
                                                      : CutResult::kMessage;
    }
    if (meta.heeds_resets && !meta.has_response && !resets_.OnHeeded()) {
      *error = "flare: the server says twice that it heeds resets";
      return CutResult::kError;
    }
    if (meta.notice != 0 && !notices_.Admit(NowNs())) {
      *error = "flare: too many notices from the server";
      return CutResult::kError;
    }
    return CutResult::kMessage;
  }

  [[gnu::cold, gnu::noinline]] static void AppendAsking(
      const RpcMeta& meta, OutboundRequest* request, BufferBuilder* out) {
    AppendFlare<FlareAsk::kForResets>(meta, std::move(request->body),
                                      std::move(request->attachment), out);
  }

  FlareClientStreams streams_;
  FlareClientResets resets_;
  FloodGuard notices_{FloodGuard::kMaxNotices};
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

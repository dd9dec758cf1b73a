#include "flare/rpc/wire/trpc_protocol.h"

#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/wire/flood_guard.h"
#include "flare/rpc/wire/framed_protocol.h"
#include "flare/rpc/wire/protobuf_fields.h"
#include "flare/rpc/wire/stop_notice.h"
#include "flare/rpc/wire/trpc_frame.h"
#include "flare/rpc/wire/trpc_meta.h"
#include "flare/rpc/wire/trpc_streams.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {

namespace {

// The part of a request's header that its reply repeats; some callers find the
// call by it.
TrpcFrame ReplyFrame(const TrpcTicket& ticket) {
  TrpcFrame frame;
  frame.stream_id = ticket.stream_id;
  frame.version = ticket.version;
  return frame;
}

// All but the sizes is in `frame`. `encode` writes the meta, of at most `bound`
// bytes, and returns its end.
template <class Encode>
void AppendTrpc(TrpcFrame frame, std::size_t bound, Encode&& encode,
                OutboundBody&& body, Buffer&& attachment, BufferBuilder* out) {
  const std::size_t rest = body.size() + attachment.size();
  // How long the meta is, is known when it has been written.
  const auto put_head = [&](char* header) {
    char* const encoded = header + TrpcFrame::kHeaderSize;
    char* const end = encode(encoded);
    frame.meta_size = static_cast<std::uint32_t>(end - encoded);
    frame.size = static_cast<std::uint32_t>(frame.kept_size() + rest);
    PutTrpcHeader(frame, header);
    return end;
  };
  AppendFrame(TrpcFrame::kHeaderSize + bound, put_head, std::move(body),
              std::move(attachment), out);
}

// --------------------------------------------------------------------------

class TrpcServerProtocol final
    : public FramedServerProtocol<TrpcServerProtocol, TrpcFrame,
                                  TrpcRequestMeta> {
 public:
  TrpcServerProtocol(const Limits& limits, ReplySink* sink)
      : FramedServerProtocol(limits, sink), streams_(limits.metadata, sink) {}

  ProtocolTraits traits() const override { return kTrpcTraits; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    const CutResult result =
        FramedServerProtocol::Cut(in, request, need, error);
    if (result != CutResult::kMessage) return result;
    const auto& ticket = request->ticket.As<TrpcTicket>();
    if (!ticket.is_stream) [[likely]] {
      if (notice_.Looks() && TrpcRequestHasNotice(MetaOf<TrpcFrame>(request))) {
        notice_.OnAsked();
      }
      return result;
    }
    if (streams_.Take(ticket.stream_type, ticket.stream_id, request) ==
        CutResult::kHandled) {
      return CutResult::kHandled;
    }
    // Frames of streams that aren't there aren't answered.
    if (ticket.one_way && !unanswered_.Admit(NowNs())) [[unlikely]] {
      *error = "trpc: frames of streams without end";
      return CutResult::kError;
    }
    return result;
  }

  bool AnnounceEnd() override {
    if (!notice_.asked()) return false;
    TrpcResponseMeta meta;
    meta.notice = kStopNotice;
    BufferBuilder out;
    AppendTrpc(
        TrpcFrame(), TrpcResponseBound(meta),
        [&](char* at) { return EncodeTrpcResponse(meta, at); }, OutboundBody(),
        Buffer(), &out);
    return sink()->WriteSoon(out.DestructiveGet());
  }

  void EndInput() override {
    streams_.EndInput("the caller's input ended, or the server stops");
  }
  void OnClosed(const flare::Status& why) override { streams_.Close(why); }

  ParseResult Parse(InboundRequest* request) const override {
    if (!request->ticket.As<TrpcTicket>().is_stream) [[likely]]
      return FramedServerProtocol::Parse(request);
    return request->stream != nullptr ? ParseResult::kOk : ParseResult::kReject;
  }

  void Write(const ReplyTicket& reply_ticket,
             OutboundResponse&& response) override {
    const auto& ticket = reply_ticket.As<TrpcTicket>();
    if (ticket.one_way) return;
    std::string scratch;
    const std::string_view text =
        AsUtf8(CutUtf8(response.description, kMaxErrorText), &scratch);
    if (ticket.is_stream) [[unlikely]]
      return RefuseStream(ticket,
                          StatusToTrpc(response.status, response.detail), text);
    TrpcResponseMeta meta;
    meta.request_id = ticket.request_id;
    if (!ticket.request_header.empty()) {
      RepeatHeader(ticket.request_header, &meta);
    }
    SetOutcome(StatusToTrpc(response.status, response.detail), text, &meta);
    if (response.status != STATUS_SUCCESS) {
      response.body.Clear();
      response.attachment.Clear();
    }
    meta.content_encoding = static_cast<std::uint32_t>(CompressionNumber(
        kTrpcCompressions, response.compression, response.body));
    meta.attachment_size =
        static_cast<std::uint32_t>(response.attachment.size());
    meta.metadata.written = response.metadata;
    std::size_t bound = TrpcResponseBound(meta);
    if (TooLarge(meta, bound)) [[unlikely]] {
      // The reply is worth more than its metadata.
      meta.metadata.written = nullptr;
      bound = TrpcResponseBound(meta);
    }
    if (TooLarge(meta, bound) ||
        TooLargeForFrame(response.body, response.attachment)) {
      ShrinkToFailure(&response, &meta);
      bound = TrpcResponseBound(meta);
    }
    BufferBuilder out;
    AppendTrpc(
        ReplyFrame(ticket), bound,
        [&](char* at) { return EncodeTrpcResponse(meta, at); },
        std::move(response.body), std::move(response.attachment), &out);
    sink()->Write(out.DestructiveGet());
  }

  // For FramedServerProtocol.
  static constexpr bool kJoinsMethodName = true;

  static void Describe(const TrpcFrame& frame, InboundRequest* request) {
    TrpcTicket& ticket = request->ticket.Emplace<TrpcTicket>();
    ticket.stream_id = frame.stream_id;
    ticket.version = frame.version;
    if (frame.type != TrpcFrame::kStream) return;
    ticket.is_stream = true;
    ticket.stream_type = frame.stream_type;
    // Notices of a stream's end, or of room for more, want no reply.
    ticket.one_way = frame.stream_type == TrpcFrame::kStreamClose ||
                     frame.stream_type == TrpcFrame::kStreamFeedback;
    Reject("this server has no streams", "", request, STATUS_NOT_SUPPORTED);
  }

  static std::string_view Decode(std::string_view bytes,
                                 TrpcRequestMeta* meta) {
    return DecodeTrpcRequest(bytes, meta);
  }

  static bool Identify(const TrpcRequestMeta& meta, bool malformed,
                       InboundRequest* request) {
    TrpcTicket& ticket = request->ticket.As<TrpcTicket>();
    ticket.request_id = meta.request_id;
    ticket.one_way = meta.call_type == kTrpcOneWay;
    if (RepeatsHeader(meta)) {
      ticket.request_header = meta.bytes;
      request->head.reply_needs_request = true;
    }
    return meta.request_id != 0 || !malformed;
  }

  static ParseResult Accept(const TrpcRequestMeta& meta,
                            InboundRequest* request) {
    if (meta.call_type > kTrpcOneWay) {
      return Reject("unknown call_type ", std::to_string(meta.call_type),
                    request);
    }
    if (meta.service.empty()) {
      return Reject("func isn't /package.Service/Method: ", meta.func, request,
                    STATUS_METHOD_NOT_FOUND);
    }
    const auto format = kTrpcFormats.Find(meta.content_type);
    if (!format) {
      return Reject("unknown content_type ", std::to_string(meta.content_type),
                    request);
    }
    const auto compression = kTrpcCompressions.Find(meta.content_encoding);
    if (!compression) {
      return Reject("unknown content_encoding ",
                    std::to_string(meta.content_encoding), request);
    }
    if (!FindBody<TrpcFrame>(meta.attachment_size, request)) {
      return Reject("no room for an attachment_size of ",
                    std::to_string(meta.attachment_size), request);
    }
    RequestHead* const head = &request->head;
    head->method = JoinMethodName(meta.service, meta.method, &request->scratch);
    head->timeout_ms = meta.timeout;
    head->compression = *compression;
    head->acceptable_compressions = kTrpcTraits.compressions;
    head->format = *format;
    return ParseResult::kOk;
  }

 private:
  // Whether there is anything that a reply repeats; mostly there isn't.
  static bool RepeatsHeader(const TrpcRequestMeta& meta) {
    return (meta.version | meta.call_type | meta.message_type |
            meta.content_type) != 0 ||
           meta.metadata.count.entries != 0;
  }

  [[gnu::cold, gnu::noinline]] void RefuseStream(const TrpcTicket& ticket,
                                                 TrpcCodes codes,
                                                 std::string_view text) {
    sink()->Write(TrpcStreamClose(ticket.stream_id, ticket.version,
                                  /*reset=*/true, codes, text));
  }

  // The part of a request that its reply repeats.
  [[gnu::noinline]] static void RepeatHeader(std::string_view header,
                                             TrpcResponseMeta* meta) {
    TrpcRequestMeta request;
    // Even a malformed one is valid in front of the fault.
    (void)DecodeTrpcRequest(header, &request);
    meta->version = request.version;
    meta->call_type = request.call_type;
    meta->message_type = request.message_type;
    meta->content_type = request.content_type;
    meta->request = header;
  }

  static void SetOutcome(TrpcCodes codes, std::string_view text,
                         TrpcResponseMeta* meta) {
    meta->ret = codes.ret;
    meta->func_ret = codes.func_ret;
    meta->error_msg = text;
  }

  static bool TooLarge(const TrpcResponseMeta& meta, std::size_t bound) {
    return bound > TrpcFrame::kMaxMetaSize &&
           TrpcResponseSize(meta) > TrpcFrame::kMaxMetaSize;
  }

  // Into one that fits: a failure, without trans_info.
  [[gnu::cold, gnu::noinline]] static void ShrinkToFailure(
      OutboundResponse* response, TrpcResponseMeta* meta) {
    meta->request = {};
    if (response->status != STATUS_SUCCESS) return;
    *response = OutboundResponse();
    meta->content_encoding = 0;
    meta->attachment_size = 0;
    SetOutcome(StatusToTrpc(STATUS_SERIALIZE_RESPONSE),
               "the response is too large for a frame", meta);
  }

  FloodGuard unanswered_{FloodGuard::kMaxNotices};
  TrpcServerStreams streams_;
  StopNoticeTaker notice_;
};

// --------------------------------------------------------------------------

class TrpcClientProtocol final
    : public FramedClientProtocol<TrpcClientProtocol, TrpcFrame,
                                  TrpcResponseMeta> {
 public:
  explicit TrpcClientProtocol(const Limits& limits)
      : FramedClientProtocol(WithRepeated(limits)), streams_(limits.metadata) {}

  ProtocolTraits traits() const override { return kTrpcTraits; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    const MethodName name(request.method);
    if (!name.ok()) return BadMethodName(request.method);
    TrpcRequestMeta meta;
    meta.call_type = request.one_way ? kTrpcOneWay : kTrpcUnary;
    meta.request_id = static_cast<std::uint32_t>(request.correlation_id);
    meta.timeout = request.timeout_ms;
    meta.service = name.service;
    meta.method = name.method;
    meta.callee = meta.service;
    meta.content_encoding = static_cast<std::uint32_t>(CompressionNumber(
        kTrpcCompressions, request.compression, request.body));
    meta.attachment_size =
        static_cast<std::uint32_t>(request.attachment.size());
    meta.metadata.written = request.metadata;
    if (asker_.Asks(request.correlation_id)) meta.notice = kStopNotice;
    const std::size_t bound = TrpcRequestBound(meta);
    if ((bound > TrpcFrame::kMaxMetaSize &&
         TrpcRequestSize(meta) > TrpcFrame::kMaxMetaSize) ||
        TooLargeForFrame(request.body, request.attachment) ||
        meta.request_id != request.correlation_id) {
      return flare::Status(STATUS_SERIALIZE_REQUEST,
                           "the request is too large for a frame");
    }
    AppendTrpc(
        TrpcFrame(), bound,
        [&](char* at) { return EncodeTrpcRequest(meta, at); },
        std::move(request.body), std::move(request.attachment), out);
    return flare::Status();
  }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    stream_type_ = 0;
    const CutResult result =
        FramedClientProtocol::Cut(in, response, need, error);
    if (stream_type_ == 0 || result != CutResult::kMessage) [[likely]]
      return result;
    if (streams_.Take(stream_type_, stream_id_, response)) {
      return CutResult::kHandled;
    }
    *error = "trpc: a frame of a stream, of which there is none";
    return CutResult::kError;
  }

  void SetOutput(StreamOutput* output) override { asker_.SetOutput(output); }
  std::unique_ptr<StreamWire> OpenStream(const ClientStreamOpening& opening,
                                         StreamOutput* output) override {
    return streams_.Open(opening, output);
  }
  bool has_streams() const override { return true; }
  bool streams_can_share() const override { return true; }
  void OnClosed(const flare::Status& why) override { streams_.Close(why); }

  // For FramedClientProtocol.
  std::string_view Describe(const TrpcFrame& frame, InboundResponse*) {
    if (frame.type == TrpcFrame::kStream) [[unlikely]] {
      stream_type_ = frame.stream_type;
      stream_id_ = frame.stream_id;
    }
    return {};
  }

  static std::string_view Decode(std::string_view bytes,
                                 TrpcResponseMeta* meta) {
    return DecodeTrpcResponse(bytes, meta);
  }

  static bool Identify(const TrpcResponseMeta& meta, bool /*malformed*/,
                       InboundResponse* response) {
    response->correlation_id = meta.request_id;
    return meta.request_id != 0 || meta.notice == kStopNotice;
  }

  static std::string_view Accept(const TrpcResponseMeta& meta,
                                 InboundResponse* response) {
    if (meta.notice == kStopNotice && meta.request_id == 0) [[unlikely]] {
      response->last_on_connection = response->is_notice = true;
      return {};
    }
    response->status =
        StatusFromTrpc({.ret = meta.ret, .func_ret = meta.func_ret});
    response->description = meta.error_msg;
    if (response->status != STATUS_SUCCESS) {  // There is no body.
      if (meta.error_msg.empty()) DescribeByCode(meta, response);
      return {};
    }
    if (kTrpcFormats.Find(meta.content_type) != PayloadFormat::kProtobuf) {
      return "a response that isn't protobuf";
    }
    const auto compression = kTrpcCompressions.Find(meta.content_encoding);
    if (!compression) return "a response with an unknown content_encoding";
    response->compression = *compression;
    if (!FindBody<TrpcFrame>(meta.attachment_size, response)) {
      return "a response without room for its attachment_size";
    }
    return {};
  }

 private:
  // A reply repeats the request's metadata, in front of its own.
  static Limits WithRepeated(Limits limits) {
    limits.metadata.entries *= 2;
    limits.metadata.bytes *= 2;
    return limits;
  }

  // Unless the status is the very code.
  static void DescribeByCode(const TrpcResponseMeta& meta,
                             InboundResponse* response) {
    if (meta.ret == 0 && meta.func_ret == response->status) return;
    const bool by_framework = meta.ret != 0;
    response->scratch.assign(by_framework ? "trpc: ret " : "trpc: func_ret ")
        .append(std::to_string(by_framework ? meta.ret : meta.func_ret));
    response->description = response->scratch;
  }

  TrpcClientStreams streams_;
  StopNoticeAsker asker_;
  // The type of the frame at hand; 0: it isn't one of a stream.
  std::uint8_t stream_type_ = 0;
  std::uint32_t stream_id_ = 0;
};

}  // namespace

std::unique_ptr<ServerProtocol> NewTrpcServerProtocol(const Limits& limits,
                                                      ReplySink* sink) {
  return std::make_unique<TrpcServerProtocol>(limits, sink);
}

std::unique_ptr<ClientProtocol> NewTrpcClientProtocol(const Limits& limits,
                                                      std::string_view) {
  return std::make_unique<TrpcClientProtocol>(limits);
}

}  // namespace flare::rpc

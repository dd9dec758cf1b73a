#include "flare/rpc/protocol/trpc_protocol.h"

#include <string>
#include <utility>

#include "flare/rpc/protocol/framing.h"
#include "flare/rpc/protocol/protobuf_fields.h"
#include "flare/rpc/protocol/trpc_frame.h"
#include "flare/rpc/protocol/trpc_meta.h"
#include "flare/rpc/protocol/utf8.h"

namespace flare::rpc {

namespace {

// ReplyTicket::method_type of a frame that belongs to a stream.
constexpr std::uint8_t kStreamTicket = 2;

// Sets message->body_size; false if the attachment doesn't fit into the frame.
template <class Message>
bool FindBody(std::uint32_t attachment_size, Message* message) {
  std::size_t rest =
      message->wire_size - TrpcFrame::kHeaderSize - message->meta_size;
  if (attachment_size > rest) return false;
  message->body_size = static_cast<std::uint32_t>(rest - attachment_size);
  return true;
}

// `encode` writes meta_size bytes and returns their end.
template <class Encode>
void AppendFrame(std::size_t meta_size, Encode&& encode, Buffer&& body,
                 Buffer&& attachment, BufferBuilder* out) {
  TrpcFrame frame;
  frame.meta_size = static_cast<std::uint32_t>(meta_size);
  frame.size = static_cast<std::uint32_t>(frame.head_size() + body.size() +
                                          attachment.size());
  AppendHead(
      frame.head_size(), [&](char* at) { encode(PutTrpcHeader(frame, at)); },
      out);
  if (!body.empty()) out->Append(std::move(body));
  if (!attachment.empty()) out->Append(std::move(attachment));
}

// A stream's last frame: {close_type = reset, ret, msg}.
Buffer StreamReset(std::uint32_t stream_id, std::string_view text) {
  std::size_t size = 4 + fields::BytesFieldSize(text.size());
  TrpcFrame frame;
  frame.type = TrpcFrame::kStream;
  frame.stream_type = TrpcFrame::kStreamClose;
  frame.stream_id = stream_id;
  frame.size = static_cast<std::uint32_t>(TrpcFrame::kHeaderSize + size);
  BufferBuilder out;
  AppendHead(
      frame.size,
      [&](char* at) {
        at = fields::PutVarintField(1, 1, PutTrpcHeader(frame, at));
        at = fields::PutVarintField(2, kTrpcSystemError, at);
        fields::PutBytesField(3, text, at);
      },
      &out);
  return out.DestructiveGet();
}

// --------------------------------------------------------------------------

class TrpcServerProtocol : public ServerProtocol {
 public:
  TrpcServerProtocol(const Limits& limits, ReplySink* sink)
      : ServerProtocol(sink), cutter_(limits.max_packet_size) {}

  std::string_view name() const override { return TrpcFrame::kName; }
  ProtocolTraits traits() const override { return kTrpcTraits; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    TrpcFrame frame;
    bool oversized = false;
    CutResult result =
        cutter_.Cut(in, &frame, &request->wire, &oversized, need, error);
    if (result != CutResult::kMessage) return result;
    request->wire_size = frame.total();
    request->meta_size = frame.meta_size;
    if (frame.type == TrpcFrame::kStream) {
      request->ticket.method_type = kStreamTicket;
      request->ticket.correlation_id = frame.stream_id;
      Reject("this server has no streams", "", request, STATUS_NOT_SUPPORTED);
    } else if (oversized) {
      Reject(cutter_.OversizedText(frame.total()), "", request);
    }
    return CutResult::kMessage;
  }

  ParseResult Parse(InboundRequest* request) const override {
    if (request->ticket.method_type == kStreamTicket) {
      return ParseResult::kReject;
    }
    // For a head in pieces, and for the name, which is shorter than the meta.
    request->scratch.reserve(TrpcFrame::kHeaderSize +
                             2 * std::size_t{request->meta_size});
    std::string_view bytes = HeadOf(TrpcFrame::kHeaderSize, request);
    TrpcRequestMeta meta;
    std::string_view error = DecodeTrpcRequest(bytes, &meta);
    if (!error.empty() && meta.request_id == 0) {
      Reject("trpc: malformed header: ", error, request);
      return ParseResult::kClose;
    }
    request->ticket.correlation_id = meta.request_id;
    request->ticket.one_way = meta.call_type == kTrpcOneWay;
    request->ticket.request_header = bytes;
    if (request->reject_status != STATUS_SUCCESS) return ParseResult::kReject;
    if (!error.empty()) return Reject("malformed header: ", error, request);
    if (ParseResult result = Check(meta, request); result != ParseResult::kOk) {
      return result;
    }
    FillHead(meta, request);
    SplitFrame(TrpcFrame::kHeaderSize, request);
    return ParseResult::kOk;
  }

  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override {
    if (ticket.one_way) return;
    std::string scratch;
    std::string_view text = AsUtf8(response.description, &scratch);
    if (ticket.method_type == kStreamTicket) {
      sink()->Write(
          StreamReset(static_cast<std::uint32_t>(ticket.correlation_id), text));
      return;
    }
    TrpcResponseMeta meta;
    FillMeta(ticket, response.status, text, &meta);
    if (response.status != STATUS_SUCCESS) {
      response.body.Clear();
      response.attachment.Clear();
    }
    meta.content_encoding =
        CompressionToTrpc(response.compression, response.body);
    meta.attachment_size =
        static_cast<std::uint32_t>(response.attachment.size());
    std::size_t meta_size = TrpcResponseSize(meta);
    if (meta_size > TrpcFrame::kMaxMetaSize ||
        TooLargeForTrpc(response.body, response.attachment)) {
      response = OutboundResponse();
      meta = TrpcResponseMeta();
      FillMeta(ticket, STATUS_SERIALIZE_RESPONSE,
               "the response is too large for a frame", &meta);
      meta.request = {};
      meta_size = TrpcResponseSize(meta);
    }
    BufferBuilder out;
    AppendFrame(
        meta_size, [&](char* at) { EncodeTrpcResponse(meta, at); },
        std::move(response.body), std::move(response.attachment), &out);
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
  static ParseResult Check(const TrpcRequestMeta& meta,
                           InboundRequest* request) {
    if (meta.call_type > kTrpcOneWay) {
      return Reject("unknown call_type ", std::to_string(meta.call_type),
                    request);
    }
    if (meta.service.empty()) {
      return Reject("func isn't /package.Service/Method: ", meta.func, request,
                    STATUS_METHOD_NOT_FOUND);
    }
    if (!FormatFromTrpc(meta.content_type)) {
      return Reject("unknown content_type ", std::to_string(meta.content_type),
                    request);
    }
    if (!CompressionFromTrpc(meta.content_encoding)) {
      return Reject("unknown content_encoding ",
                    std::to_string(meta.content_encoding), request);
    }
    if (!FindBody(meta.attachment_size, request)) {
      return Reject("no room for an attachment_size of ",
                    std::to_string(meta.attachment_size), request);
    }
    return ParseResult::kOk;
  }

  static void FillHead(const TrpcRequestMeta& meta, InboundRequest* request) {
    RequestHead* head = &request->head;
    head->correlation_id = meta.request_id;
    head->method = JoinMethodName(meta.service, meta.method, &request->scratch);
    head->timeout_ms = meta.timeout;
    head->compression = *CompressionFromTrpc(meta.content_encoding);
    head->acceptable_compressions = kTrpcTraits.compressions;
    head->format = *FormatFromTrpc(meta.content_type);
    request->ticket.format = head->format;
  }

  // All but what depends on body and attachment.
  static void FillMeta(const ReplyTicket& ticket, int status,
                       std::string_view text, TrpcResponseMeta* meta) {
    TrpcRequestMeta request;
    // Even a malformed one says what it says in front of the fault.
    (void)DecodeTrpcRequest(ticket.request_header, &request);
    meta->version = request.version;
    meta->call_type = request.call_type;
    meta->request_id = static_cast<std::uint32_t>(ticket.correlation_id);
    TrpcCodes codes = StatusToTrpc(status);
    meta->ret = codes.ret;
    meta->func_ret = codes.func_ret;
    meta->error_msg = text;
    meta->message_type = request.message_type;
    meta->content_type = FormatToTrpc(ticket.format);
    meta->request = ticket.request_header;
  }

  FrameCutter<TrpcFrame> cutter_;
};

// --------------------------------------------------------------------------

class TrpcClientProtocol : public ClientProtocol {
 public:
  explicit TrpcClientProtocol(const Limits& limits)
      : cutter_(limits.max_packet_size) {}

  std::string_view name() const override { return TrpcFrame::kName; }
  ProtocolTraits traits() const override { return kTrpcTraits; }
  PayloadFormat format() const override { return PayloadFormat::kProtobuf; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override {
    std::size_t dot = request.method.rfind('.');
    if (dot == std::string_view::npos) {
      return flare::Status(STATUS_INVALID_METHOD_NAME,
                           "\"" + std::string(request.method) +
                               "\" isn't package.Service.Method");
    }
    TrpcRequestMeta meta;
    meta.request_id = static_cast<std::uint32_t>(request.correlation_id);
    meta.timeout = request.timeout_ms;
    meta.service = request.method.substr(0, dot);
    meta.method = request.method.substr(dot + 1);
    meta.callee = meta.service;
    meta.content_encoding =
        CompressionToTrpc(request.compression, request.body);
    meta.attachment_size =
        static_cast<std::uint32_t>(request.attachment.size());
    std::size_t meta_size = TrpcRequestSize(meta);
    if (meta_size > TrpcFrame::kMaxMetaSize ||
        TooLargeForTrpc(request.body, request.attachment) ||
        meta.request_id != request.correlation_id) {
      return flare::Status(STATUS_SERIALIZE_REQUEST,
                           "the request is too large for a frame");
    }
    AppendFrame(
        meta_size, [&](char* at) { EncodeTrpcRequest(meta, at); },
        std::move(request.body), std::move(request.attachment), out);
    return flare::Status();
  }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    TrpcFrame frame;
    bool oversized = false;
    CutResult result = cutter_.CutResponse(in, &frame, &response->wire,
                                           &oversized, need, error);
    if (result != CutResult::kMessage) return result;
    if (frame.type == TrpcFrame::kStream) {
      *error = "trpc: a frame of a stream, of which there is none";
      return CutResult::kError;
    }
    response->wire_size = frame.total();
    response->meta_size = frame.meta_size;
    // Parse turns this into the error it is.
    if (oversized) response->status = STATUS_MALFORMED_DATA;
    return CutResult::kMessage;
  }

  ParseResult Parse(InboundResponse* response) const override {
    bool oversized = response->status != STATUS_SUCCESS;
    TrpcResponseMeta meta;
    std::string_view error =
        DecodeTrpcResponse(HeadOf(TrpcFrame::kHeaderSize, response), &meta);
    response->status = STATUS_MALFORMED_DATA;
    if (meta.request_id == 0) {
      response->description = "trpc: a response without a request_id";
      return ParseResult::kClose;
    }
    response->correlation_id = meta.request_id;
    if (oversized) {
      // The header isn't needed any more.
      response->scratch = cutter_.OversizedText(response->wire_size);
      error = response->scratch;
    } else if (error.empty()) {
      error = Check(meta, response);
    }
    if (!error.empty()) {
      response->description = error;
      return ParseResult::kReject;
    }
    response->status =
        StatusFromTrpc({.ret = meta.ret, .func_ret = meta.func_ret});
    response->description = meta.error_msg;
    if (response->status != STATUS_SUCCESS) return ParseResult::kOk;
    response->compression = *CompressionFromTrpc(meta.content_encoding);
    SplitFrame(TrpcFrame::kHeaderSize, response);
    return ParseResult::kOk;
  }

 private:
  // Also finds the body.
  static std::string_view Check(const TrpcResponseMeta& meta,
                                InboundResponse* response) {
    if (meta.ret != 0 || meta.func_ret != 0) return {};
    if (meta.content_type != kTrpcProtobuf) {
      return "a response that isn't protobuf";
    }
    if (!CompressionFromTrpc(meta.content_encoding)) {
      return "a response with an unknown content_encoding";
    }
    if (!FindBody(meta.attachment_size, response)) {
      return "a response without room for its attachment_size";
    }
    return {};
  }

  FrameCutter<TrpcFrame> cutter_;
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

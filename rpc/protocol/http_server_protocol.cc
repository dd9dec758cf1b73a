#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/protocol/http_parser.h"
#include "flare/rpc/protocol/http_protocol.h"
#include "flare/rpc/protocol/http_writer.h"
#include "flare/rpc/protocol/ordered_replies.h"

namespace flare::rpc {

namespace {

constexpr std::string_view kRpcPrefix = "/rpc/";

int HttpStatusOf(int rpc_status) {
  switch (rpc_status) {
    case STATUS_SUCCESS:
      return 200;
    case STATUS_SERVICE_NOT_FOUND:
    case STATUS_METHOD_NOT_FOUND:
      return 404;
    default:
      return 500;
  }
}

int RpcStatusOf(int http_status) {
  switch (http_status) {
    case 404:
      return STATUS_METHOD_NOT_FOUND;
    case 405:
    case 415:
    case 417:
    case 501:
    case 505:
      return STATUS_NOT_SUPPORTED;
    case 503:
      return STATUS_OVERLOADED;
    default:
      return STATUS_MALFORMED_DATA;
  }
}

// Whether the first line is an HTTP request with a method we don't know. Other
// protocols may begin with capitals too, so this wants to see the version.
CutResult RecogniseByVersion(const Buffer& in) {
  constexpr std::size_t kMaxLine = 2048;
  constexpr std::string_view kVersion = " HTTP/";
  std::string start = FlattenSlow(in, kMaxLine);
  std::size_t end = start.find('\r');
  std::string_view line = std::string_view(start).substr(0, end);
  bool printable = std::all_of(line.begin(), line.end(),
                               [](char c) { return c >= ' ' && c <= '~'; });
  if (!printable) return CutResult::kNotMine;
  if (end == std::string::npos) {
    return start.size() < kMaxLine ? CutResult::kUnsure : CutResult::kNotMine;
  }
  std::size_t version = line.rfind(kVersion);
  return version != std::string_view::npos &&
                 line.size() == version + kVersion.size() + 3
             ? CutResult::kMessage
             : CutResult::kNotMine;
}

// kMessage if the bytes begin with an HTTP request.
CutResult Recognise(const Buffer& in) {
  constexpr std::size_t kMaxMethod = 24;
  char scratch[kMaxMethod + 1];
  std::string_view start =
      in.Peek(std::min(in.size(), sizeof(scratch)), scratch);
  auto end = std::find_if(start.begin(), start.end(),
                          [](char c) { return c < 'A' || c > 'Z'; });
  std::string_view method = start.substr(0, end - start.begin());
  if (method.size() == start.size() && method.size() <= kMaxMethod) {
    return CutResult::kUnsure;
  }
  if (method.empty() || method.size() > kMaxMethod || *end != ' ') {
    return CutResult::kNotMine;
  }
  if (HttpMethodFromString(method) != HttpMethod::Unspecified) {
    return CutResult::kMessage;
  }
  return RecogniseByVersion(in);
}

class HttpServerProtocol : public ServerProtocol {
 public:
  HttpServerProtocol(const HttpUses& uses, const Limits& limits,
                     ReplySink* sink)
      : ServerProtocol(sink),
        uses_(uses),
        limits_(limits),
        replies_(limits.max_http_pipeline, limits.max_http_reorder_bytes,
                 sink) {}

  std::string_view name() const override { return "http"; }
  ProtocolTraits traits() const override { return {}; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override;
  ParseResult Parse(InboundRequest* request) const override;
  void Write(const ReplyTicket& ticket, OutboundResponse&& response) override;
  void WriteHttp(const ReplyTicket& ticket, HttpResponse&& response) override;

 private:
  CutResult FindHead(Buffer& in, InboundRequest* request);
  CutResult CutChunked(Buffer& in, InboundRequest* request);
  CutResult Finish(const HttpHead& head, InboundRequest* request);
  void FinishCall(const HttpHead& head, InboundRequest* request);
  CutResult Admit(InboundRequest* request);
  bool IsCall(std::string_view target) const;
  std::optional<PayloadFormat> FormatOf(std::string_view content_type) const;
  void FillTicket(const HttpHead& head, ReplyTicket* ticket) const;
  void ContinueIfExpected(const HttpHead& head, const InboundRequest& request);
  void Refuse(int http_status, std::string_view text,
              InboundRequest* request) const;
  // `request` has its ticket if it is known who sent what.
  CutResult RefuseAndStop(const HttpFault& fault, Buffer& in,
                          InboundRequest* request);
  // For requests whose head is no good.
  CutResult RefuseHead(const HttpFault& fault, Buffer& in,
                       InboundRequest* request);

  void WriteRefusal(const ReplyTicket& ticket,
                    const OutboundResponse& response);
  static void AppendConnection(const ReplyTicket& ticket, BufferBuilder* out);
  void Send(const ReplyTicket& ticket, Buffer&& bytes);

  const HttpUses uses_;
  const Limits limits_;
  OrderedReplies replies_;

  // What follows belongs to the reader.
  bool spoken_ = false;         // there was a message before
  bool stopped_ = false;        // what comes is no longer read
  std::size_t scanned_ = 0;     // see FindHeadEnd
  std::size_t head_size_ = 0;   // of the message at hand; 0: not known yet
  std::size_t total_size_ = 0;  // ... with its body, if not chunked
  bool in_chunks_ = false;      // within a chunked body
  bool continued_ = false;      // 100 Continue was sent
  Buffer chunked_head_;
  Buffer chunked_body_;
  ChunkedDecoder chunks_;
};

// --- input -----------------------------------------------------------------

CutResult HttpServerProtocol::Cut(Buffer& in, InboundRequest* request,
                                  std::size_t* need, std::string*) {
  *need = 0;
  if (stopped_ || replies_.closing()) {
    in.Clear();
    return CutResult::kNeedMore;
  }
  if (in_chunks_) return CutChunked(in, request);
  if (head_size_ == 0) {
    if (CutResult result = FindHead(in, request);
        result != CutResult::kMessage || stopped_) {
      return result;
    }
  } else if (in.size() < total_size_) {
    *need = total_size_;
    return CutResult::kNeedMore;
  }
  // After a wait for the body the head is parsed once more: cheaper than
  // keeping the outcome in each connection.
  HttpHead head;
  std::string_view bytes = ContiguousPrefix(in, head_size_, &request->scratch);
  if (HttpFault fault =
          ParseRequestHead(bytes, limits_.max_http_header_fields, &head)) {
    return RefuseHead(fault, in, request);
  }
  FillTicket(head, &request->ticket);
  if (head.content_length > limits_.max_packet_size ||
      head_size_ + head.content_length > limits_.max_packet_size) {
    return RefuseAndStop({413, "the message exceeds the limit on its size"}, in,
                         request);
  }
  if (head.chunked) {
    ContinueIfExpected(head, *request);
    chunked_head_ = in.Cut(head_size_);
    chunks_.Start(limits_.max_packet_size - head_size_,
                  limits_.max_http_header);
    in_chunks_ = true;
    return CutChunked(in, request);
  }
  total_size_ = head_size_ + static_cast<std::size_t>(head.content_length);
  if (in.size() < total_size_) {
    ContinueIfExpected(head, *request);
    request->ticket = ReplyTicket();
    *need = total_size_;
    return CutResult::kNeedMore;
  }
  // Cutting moves no bytes: the views in `head` stay valid.
  request->wire = in.Cut(head_size_);
  request->body = in.Cut(static_cast<std::size_t>(head.content_length));
  request->wire_size = total_size_;
  return Finish(head, request);
}

// kMessage without stopped_: head_size_ is known.
CutResult HttpServerProtocol::FindHead(Buffer& in, InboundRequest* request) {
  if (scanned_ == 0) {
    // Some clients end a body with an empty line that isn't counted.
    while (spoken_ && in.FirstContiguous().starts_with('\r')) {
      char start[2];
      if (in.Peek(2, start) == "\r\n") {
        in.Skip(2);
      } else if (in.size() == 1) {
        return CutResult::kNeedMore;
      } else {
        break;
      }
    }
    if (CutResult result = Recognise(in); result != CutResult::kMessage) {
      return result;
    }
  }
  switch (FindHeadEnd(in, limits_.max_http_header, &scanned_, &head_size_)) {
    case HeadEnd::kFound:
      return CutResult::kMessage;
    case HeadEnd::kIncomplete:
      return CutResult::kNeedMore;
    case HeadEnd::kTooLarge:
      return RefuseHead({431, "the request head is too large"}, in, request);
    case HeadEnd::kBareLf:
      break;
  }
  return RefuseHead({400, "a line ends without CR"}, in, request);
}

CutResult HttpServerProtocol::CutChunked(Buffer& in, InboundRequest* request) {
  ChunkedDecoder::Result result = chunks_.Feed(in, &chunked_body_);
  if (result == ChunkedDecoder::Result::kNeedMore) {
    request->Clear();
    return CutResult::kNeedMore;
  }
  request->wire = std::move(chunked_head_);
  request->body = std::move(chunked_body_);
  request->wire_size = head_size_ + request->body.size();
  HttpHead head;
  // It was accepted before, so it is now.
  static_cast<void>(ParseRequestHead(
      ContiguousPrefix(request->wire, head_size_, &request->scratch),
      limits_.max_http_header_fields, &head));
  FillTicket(head, &request->ticket);
  switch (result) {
    case ChunkedDecoder::Result::kTooLarge:
      return RefuseAndStop({413, "the message exceeds the limit on its size"},
                           in, request);
    case ChunkedDecoder::Result::kError:
      return RefuseAndStop({400, "malformed chunked body"}, in, request);
    default:
      return Finish(head, request);
  }
}

CutResult HttpServerProtocol::Finish(const HttpHead& head,
                                     InboundRequest* request) {
  request->meta_size = static_cast<std::uint32_t>(head_size_);
  spoken_ = true;
  scanned_ = head_size_ = total_size_ = 0;
  in_chunks_ = continued_ = false;
  if (request->ticket.close) stopped_ = true;
  if (request->ticket.rpc) {
    FinishCall(head, request);
  } else if (!uses_.plain) {
    Refuse(404, "there is nothing but /rpc/... here", request);
  } else if (head.method == HttpMethod::Unspecified) {
    Refuse(501, "unknown method", request);
  } else {
    request->is_http = true;
  }
  return Admit(request);
}

void HttpServerProtocol::FinishCall(const HttpHead& head,
                                    InboundRequest* request) {
  std::optional<PayloadFormat> format = FormatOf(head.content_type);
  request->ticket.format = format.value_or(PayloadFormat::kProtobuf);
  if (head.method != HttpMethod::Post) {
    return Refuse(405, "calls are made by POST", request);
  }
  if (head.rpc_seq_no.data() != nullptr &&
      !TryParse<std::uint64_t>(head.rpc_seq_no)) {
    return Refuse(400, "Rpc-SeqNo is no number", request);
  }
  std::uint64_t timeout = 0;
  if (head.rpc_timeout.data() != nullptr) {
    auto value = TryParse<std::uint64_t>(head.rpc_timeout);
    if (!value) return Refuse(400, "Rpc-Timeout is no number", request);
    timeout = std::min<std::uint64_t>(
        *value, std::numeric_limits<std::uint32_t>::max());
  }
  if (!format) {
    std::string text = "the Content-Type must be";
    std::string_view separator = " ";
    for (auto known : {PayloadFormat::kProtobuf, PayloadFormat::kProtobufText,
                       PayloadFormat::kProto3Json}) {
      if (!FormatOf(ContentTypeOf(known))) continue;
      text.append(separator).append(ContentTypeOf(known));
      separator = " or ";
    }
    return Refuse(415, text, request);
  }
  request->head.correlation_id = request->ticket.correlation_id;
  request->head.method = PathOfTarget(head.target).substr(kRpcPrefix.size());
  request->head.timeout_ms = static_cast<std::uint32_t>(timeout);
  request->head.format = *format;
}

// Gives the request its place among the replies.
CutResult HttpServerProtocol::Admit(InboundRequest* request) {
  ReplyTicket& ticket = request->ticket;
  if (!ticket.ordered) {
    replies_.EnterUnordered();
  } else if (auto place = replies_.Enter(/*forced=*/ticket.close)) {
    ticket.order = *place;
  } else {
    Refuse(503, "too many requests wait for an answer on this connection",
           request);
    stopped_ = ticket.close = true;
    ticket.order = *replies_.Enter(/*forced=*/true);
  }
  return CutResult::kMessage;
}

bool HttpServerProtocol::IsCall(std::string_view target) const {
  return (uses_.pb || uses_.text || uses_.json) &&
         (target.starts_with(kRpcPrefix) ||
          PathOfTarget(target).starts_with(kRpcPrefix));
}

std::optional<PayloadFormat> HttpServerProtocol::FormatOf(
    std::string_view content_type) const {
  std::string_view type = Trim(content_type.substr(0, content_type.find(';')));
  auto is = [&](PayloadFormat format) {
    return IEquals(type, ContentTypeOf(format));
  };
  if (uses_.pb && is(PayloadFormat::kProtobuf)) return PayloadFormat::kProtobuf;
  if (uses_.text && is(PayloadFormat::kProtobufText)) {
    return PayloadFormat::kProtobufText;
  }
  if (uses_.json && is(PayloadFormat::kProto3Json)) {
    return PayloadFormat::kProto3Json;
  }
  return std::nullopt;
}

void HttpServerProtocol::FillTicket(const HttpHead& head,
                                    ReplyTicket* ticket) const {
  bool http_11 = head.minor_version != 0;
  ticket->rpc = IsCall(head.target);
  ticket->head_only = head.method == HttpMethod::Head;
  ticket->close = head.close || (!http_11 && !head.keep_alive);
  ticket->keep_alive = !http_11 && !ticket->close;
  std::optional<std::uint64_t> id;
  if (ticket->rpc) id = TryParse<std::uint64_t>(head.rpc_seq_no);
  ticket->has_correlation_id = id.has_value();
  ticket->correlation_id = id.value_or(0);
  ticket->ordered = !id.has_value();
}

void HttpServerProtocol::ContinueIfExpected(const HttpHead& head,
                                            const InboundRequest& request) {
  if (!head.expect_continue || head.minor_version == 0 || continued_) return;
  continued_ = true;
  Buffer bytes = CreateBufferSlow("HTTP/1.1 100 Continue\r\n\r\n");
  if (request.ticket.ordered) {
    replies_.SendInterim(std::move(bytes));
  } else {
    sink()->Write(std::move(bytes));
  }
}

void HttpServerProtocol::Refuse(int http_status, std::string_view text,
                                InboundRequest* request) const {
  request->is_http = false;
  request->ticket.http_status = static_cast<std::uint16_t>(http_status);
  request->reject_status = RpcStatusOf(http_status);
  request->reject_reason = text;
}

CutResult HttpServerProtocol::RefuseAndStop(const HttpFault& fault, Buffer& in,
                                            InboundRequest* request) {
  request->ticket.close = true;
  Refuse(fault.status, fault.text, request);
  stopped_ = true;
  in.Clear();
  return Admit(request);
}

CutResult HttpServerProtocol::RefuseHead(const HttpFault& fault, Buffer& in,
                                         InboundRequest* request) {
  request->ticket.rpc = false;
  request->ticket.has_correlation_id = false;
  request->ticket.ordered = true;
  return RefuseAndStop(fault, in, request);
}

ParseResult HttpServerProtocol::Parse(InboundRequest* request) const {
  if (request->reject_status != STATUS_SUCCESS) return ParseResult::kReject;
  if (!request->is_http) return ParseResult::kOk;
  HttpHead head;
  // Cut has accepted it.
  static_cast<void>(ParseRequestHead(
      ContiguousPrefix(request->wire, request->meta_size, &request->scratch),
      limits_.max_http_header_fields, &head));
  HttpRequest& http = request->http;
  http.set_method(head.method);
  http.set_version(head.minor_version == 0 ? HttpVersion::kHttp10
                                           : HttpVersion::kHttp11);
  http.set_uri(head.target);
  HeaderFieldReader fields(head.fields);
  std::string_view name;
  std::string_view value;
  while (fields.Next(&name, &value)) http.headers()->Append(name, value);
  http.set_body(std::move(request->body));
  return ParseResult::kOk;
}

// --- output ----------------------------------------------------------------

void HttpServerProtocol::Write(const ReplyTicket& ticket,
                               OutboundResponse&& response) {
  if (ticket.http_status != 0) return WriteRefusal(ticket, response);
  bool compressed = response.compression != CompressionAlgorithm::kNone &&
                    response.compression != CompressionAlgorithm::kUnknown;
  if (response.status == STATUS_SUCCESS &&
      (compressed || !response.attachment.empty())) {
    response.status = STATUS_NOT_SUPPORTED;
    response.description =
        "HTTP carries neither attachments nor compressed messages";
  }
  bool ok = response.status == STATUS_SUCCESS;
  BufferBuilder out;
  AppendStatusLine(HttpStatusOf(response.status), &out);
  out.Append("Content-Type: ");
  out.Append(ContentTypeOf(ticket.format));
  out.Append("\r\nRpc-SeqNo: ");
  AppendDecimal(ticket.correlation_id, &out);
  if (!ok) {
    out.Append("\r\nRpc-Error-Code: ");
    AppendDecimal(response.status, &out);
    if (!response.description.empty()) {
      out.Append("\r\nRpc-Error-Reason: ");
      AppendFieldText(response.description, &out);
    }
  }
  out.Append("\r\nContent-Length: ");
  AppendDecimal(ok ? std::uint64_t{response.body.size()} : 0, &out);
  out.Append("\r\n");
  AppendConnection(ticket, &out);
  out.Append("\r\n");
  if (ok && !response.body.empty()) out.Append(std::move(response.body));
  Send(ticket, out.DestructiveGet());
}

void HttpServerProtocol::WriteRefusal(const ReplyTicket& ticket,
                                      const OutboundResponse& response) {
  BufferBuilder out;
  AppendStatusLine(ticket.http_status, &out);
  if (!ticket.rpc) AppendDateField(&out);
  out.Append("Content-Type: text/plain\r\n");
  if (ticket.http_status == 405) out.Append("Allow: POST\r\n");
  if (ticket.rpc) {
    out.Append("Rpc-SeqNo: ");
    AppendDecimal(ticket.correlation_id, &out);
    out.Append("\r\nRpc-Error-Code: ");
    AppendDecimal(response.status, &out);
    out.Append("\r\nRpc-Error-Reason: ");
    AppendFieldText(response.description, &out);
    out.Append("\r\n");
  }
  out.Append("Content-Length: ");
  AppendDecimal(std::uint64_t{response.description.size() + 1}, &out);
  out.Append("\r\n");
  AppendConnection(ticket, &out);
  out.Append("\r\n");
  if (!ticket.head_only) {
    out.Append(response.description);
    out.Append("\n");
  }
  Send(ticket, out.DestructiveGet());
}

void HttpServerProtocol::WriteHttp(const ReplyTicket& request,
                                   HttpResponse&& response) {
  ReplyTicket ticket = request;
  int status = static_cast<int>(response.status());
  // Interim statuses are no replies, and three digits are all there is room
  // for.
  if (status < 200 || status > 999) status = 500;
  bool bodiless = status == 204 || status == 304;
  BufferBuilder out;
  AppendStatusLine(status, &out);
  bool has_date = false;
  for (std::size_t i = 0; i != response.headers()->size(); ++i) {
    auto [name, value] = (*response.headers())[i];
    if (IEquals(name, "Connection")) {
      if (IEquals(value, "close")) ticket.close = true;
      continue;
    }
    if (IEquals(name, "Content-Length") || IEquals(name, "Transfer-Encoding")) {
      continue;
    }
    has_date = has_date || IEquals(name, "Date");
    out.Append(name);
    out.Append(": ");
    out.Append(value);
    out.Append("\r\n");
  }
  if (!has_date) AppendDateField(&out);
  if (!bodiless) {
    out.Append("Content-Length: ");
    AppendDecimal(std::uint64_t{response.body_size()}, &out);
    out.Append("\r\n");
  }
  AppendConnection(ticket, &out);
  out.Append("\r\n");
  if (!bodiless && !ticket.head_only && response.body_size() != 0) {
    out.Append(std::move(*response.noncontiguous_body()));
  }
  Send(ticket, out.DestructiveGet());
}

void HttpServerProtocol::AppendConnection(const ReplyTicket& ticket,
                                          BufferBuilder* out) {
  if (ticket.close) {
    out->Append("Connection: close\r\n");
  } else if (ticket.keep_alive) {
    out->Append("Connection: keep-alive\r\n");
  }
}

void HttpServerProtocol::Send(const ReplyTicket& ticket, Buffer&& bytes) {
  if (ticket.ordered) {
    replies_.Send(ticket.order, std::move(bytes), ticket.close);
  } else {
    replies_.SendUnordered(std::move(bytes), ticket.close);
  }
}

}  // namespace

std::unique_ptr<ServerProtocol> NewHttpServerProtocol(const HttpUses& uses,
                                                      const Limits& limits,
                                                      ReplySink* sink) {
  return std::make_unique<HttpServerProtocol>(uses, limits, sink);
}

std::string_view ContentTypeOf(PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobuf:
      return "application/x-protobuf";
    case PayloadFormat::kProtobufText:
      return "text/x-protobuf";
    case PayloadFormat::kProto3Json:
      return "application/x-proto3-json";
  }
  return {};
}

std::string_view HttpProtocolNameOf(PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobuf:
      return "http+pb";
    case PayloadFormat::kProtobufText:
      return "http+pb-text";
    case PayloadFormat::kProto3Json:
      return "http+proto3-json";
  }
  return {};
}

}  // namespace flare::rpc

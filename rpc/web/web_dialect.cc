#include "flare/rpc/web/web_dialect.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/string.h"
#include "flare/rpc/grpc/grpc_mapping.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http/http_coding.h"
#include "flare/rpc/http/http_metadata.h"
#include "flare/rpc/http/http_replies.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http/http_writer.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/web/connect_error.h"
#include "flare/rpc/wire/framing.h"
#include "flare/rpc/wire/json_scalars.h"

namespace flare::rpc {

namespace {

enum class WebKind : std::uint8_t {
  kConnectGet,
  kConnectUnary,
  kConnectStream,
  kGrpcWeb,
  kGrpcWebText
};

// HttpTicket::type of the n-th is kDialectHttpType + n.
struct WebType {
  std::string_view name;
  WebKind kind;
  PayloadFormat format;
};
constexpr WebType kWebTypes[] = {
    {"application/proto", WebKind::kConnectGet, PayloadFormat::kProtobuf},
    {"application/json", WebKind::kConnectGet, PayloadFormat::kLenientJson},
    {"application/proto", WebKind::kConnectUnary, PayloadFormat::kProtobuf},
    {"application/json", WebKind::kConnectUnary, PayloadFormat::kLenientJson},
    {"application/connect+proto", WebKind::kConnectStream,
     PayloadFormat::kProtobuf},
    {"application/connect+json", WebKind::kConnectStream,
     PayloadFormat::kLenientJson},
    {"application/grpc-web+proto", WebKind::kGrpcWeb, PayloadFormat::kProtobuf},
    {"application/grpc-web", WebKind::kGrpcWeb, PayloadFormat::kProtobuf},
    {"application/grpc-web+json", WebKind::kGrpcWeb,
     PayloadFormat::kLenientJson},
    {"application/grpc-web-text+proto", WebKind::kGrpcWebText,
     PayloadFormat::kProtobuf},
    {"application/grpc-web-text", WebKind::kGrpcWebText,
     PayloadFormat::kProtobuf},
};

constexpr char kConnectEndFlag = 2;
constexpr char kGrpcWebEndFlag = '\x80';

const WebType& WebTypeOf(const HttpTicket& ticket) {
  return kWebTypes[ticket.type - kDialectHttpType];
}

std::optional<std::string_view> FindWebField(std::string_view fields,
                                             std::string_view name) {
  HttpHeaders::const_iterator field(fields);
  for (; field != HttpHeaders::const_iterator({}); ++field) {
    if (IEquals(field->first, name)) return field->second;
  }
  return std::nullopt;
}

bool IsUnary(WebKind kind) {
  return kind == WebKind::kConnectGet || kind == WebKind::kConnectUnary;
}
bool IsConnect(WebKind kind) {
  return IsUnary(kind) || kind == WebKind::kConnectStream;
}

// --- requests --------------------------------------------------------------

// A value of a query, decoded as forms encode it.
std::optional<std::string> FindQueryValue(std::string_view target,
                                          std::string_view name) {
  for (const std::string_view piece : Split(QueryOfTarget(target), '&')) {
    const std::size_t mark = piece.find('=');
    if (mark == std::string_view::npos || piece.substr(0, mark) != name) {
      continue;
    }
    std::string value(piece.substr(mark + 1));
    std::replace(value.begin(), value.end(), '+', ' ');
    return DecodeGrpcMessage(value);  // It has the same '%'s.
  }
  return std::nullopt;
}

// The name of the type of a call by GET; empty if it is none.
std::string ConnectGetType(const HttpUses& uses, const HttpHead& head) {
  if (uses.paths == nullptr || !uses.paths->MayGet(head.path) ||
      FindQueryValue(head.target, "connect") != "v1") {
    return {};
  }
  const auto encoding = FindQueryValue(head.target, "encoding");
  return encoding ? "application/" + *encoding : std::string();
}

// The message of a call by GET, which ReadBody() takes from request->wire.
std::optional<HttpRefusal> ReadConnectQuery(const HttpHead& head,
                                            InboundRequest* request) {
  std::string message =
      FindQueryValue(head.target, "message").value_or(std::string());
  if (FindQueryValue(head.target, "base64") == "1") {
    auto bytes = ParseBase64(message);
    if (!bytes) return HttpRefusal{400, "the query's message isn't base64"};
    message = *std::move(bytes);
  }
  const auto compression = FindQueryValue(head.target, "compression");
  if (compression && !compression->empty()) {
    const auto algorithm = ParseGrpcEncoding(*compression);
    if (!algorithm) {
      return HttpRefusal{415, "compression must be one of " +
                                  std::string(kGrpcAcceptEncoding)};
    }
    request->head.compression = *algorithm;
  }
  request->wire = CreateBufferSlow(message);
  return std::nullopt;
}

std::uint32_t WebTimeout(std::uint64_t ms) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      ms, 1, std::numeric_limits<std::uint32_t>::max()));
}

std::optional<HttpRefusal> ReadConnectFields(const HttpHead& head,
                                             InboundRequest* request) {
  const auto version = FindWebField(head.fields, "Connect-Protocol-Version");
  if (version && *version != "1") {
    return HttpRefusal{400, "Connect-Protocol-Version must be 1, not " +
                                OneLine(version->substr(0, 20))};
  }
  const auto timeout = FindWebField(head.fields, "Connect-Timeout-Ms");
  if (!timeout) return std::nullopt;
  constexpr std::size_t kMostDigits = 10;
  const auto ms = TryParse<std::uint64_t>(*timeout);
  if (!ms || timeout->size() > kMostDigits) {
    return HttpRefusal{
        400, "Connect-Timeout-Ms must be a number of at most ten digits"};
  }
  request->head.timeout_ms = WebTimeout(*ms);
  return std::nullopt;
}

std::optional<HttpRefusal> ReadGrpcWebFields(const HttpHead& head,
                                             InboundRequest* request) {
  const auto timeout = FindWebField(head.fields, "grpc-timeout");
  if (!timeout) return std::nullopt;
  const auto ns = ParseGrpcTimeout(*timeout);
  if (!ns) return HttpRefusal{400, "a malformed grpc-timeout"};
  request->head.timeout_ms = WebTimeout(
      static_cast<std::uint64_t>(*ns / kNsPerMs + (*ns % kNsPerMs != 0)));
  return std::nullopt;
}

// How messages with a prefix are compressed, whose first bytes say whether they
// are. Replies aren't.
std::optional<HttpRefusal> ReadWebCoding(const HttpHead& head,
                                         std::string_view field,
                                         InboundRequest* request) {
  if (head.encoded) {
    return HttpRefusal{415,
                       "the body can't have a Content-Encoding: its "
                       "messages are compressed one by one"};
  }
  TicketOf(request).codings = 0;
  request->head.acceptable_compressions = 0;
  request->head.unasked_compression = CompressionAlgorithm::kNone;
  const auto name = FindWebField(head.fields, field);
  if (!name) return std::nullopt;
  const auto algorithm = ParseGrpcEncoding(*name);
  if (!algorithm) {
    return HttpRefusal{415, std::string(field) + " must be one of " +
                                std::string(kGrpcAcceptEncoding)};
  }
  request->head.compression = *algorithm;
  return std::nullopt;
}

flare::Status BadWebBody(std::string_view text) {
  return flare::Status(StatusFromGrpc(GrpcCode::kInvalidArgument),
                       std::string(text));
}

// The one message in *body, which is replaced by it.
flare::Status TakeWebMessage(const Limits& limits, Buffer* body,
                             CompressionAlgorithm* compression) {
  GrpcMessageCutter cutter(limits.max_packet_size, kServerSizeLimit);
  cutter.Add(std::move(*body));
  GrpcMessage message;
  flare::Status error;
  switch (cutter.Next(&message, &error)) {
    case GrpcMessageCutter::Result::kTooLarge:
    case GrpcMessageCutter::Result::kError:
      return error;
    case GrpcMessageCutter::Result::kNeedMore:
      return BadWebBody(
          "the body has no whole message: five bytes of prefix, and as many "
          "as these say");
    case GrpcMessageCutter::Result::kMessage:
      break;
  }
  if (!cutter.empty()) {
    return BadWebBody("the body has more than one message");
  }
  if (!message.compressed) {
    *compression = CompressionAlgorithm::kNone;
  } else if (!IsCompressed(*compression)) {
    return BadWebBody("a compressed message without the field that says how");
  }
  *body = std::move(message.body);
  return flare::Status();
}

// --- replies ---------------------------------------------------------------

// How a call ended.
struct WebOutcome {
  GrpcCode code = GrpcCode::kOk;
  std::string_view text;
  int status = STATUS_SUCCESS;  // One that gRPC has no code for; or success.
};

// Connect's code for a request that can't be read is invalid_argument; gRPC's
// is INTERNAL. A method may fail with the same status, from a server that it
// has called: that is no fault of the request.
GrpcCode WebCodeOf(WebKind kind, int status, FailureDetail detail) {
  const bool unread =
      detail == FailureDetail::kUnreadRequest &&
      (status == STATUS_MALFORMED_DATA || status == STATUS_PARSE_REQUEST);
  return unread && IsConnect(kind) ? GrpcCode::kInvalidArgument
                                   : GrpcFromStatus(status);
}

WebOutcome WebOutcomeOf(WebKind kind, int status, FailureDetail detail,
                        std::string_view text) {
  return {.code = WebCodeOf(kind, status, detail),
          .text = text,
          .status = IsLostInGrpc(status) ? status : STATUS_SUCCESS};
}

GrpcCode CodeOfRefusal(int http_status) {
  switch (http_status) {
    case 400:
      return GrpcCode::kInvalidArgument;
    case 405:
    case 415:
      return GrpcCode::kUnimplemented;
    case 413:
    case 431:
      return GrpcCode::kResourceExhausted;
    case 503:
      return GrpcCode::kUnavailable;
    default:
      return GrpcCode::kInternal;
  }
}

WebOutcome WebOutcomeOf(const HttpTicket& ticket,
                        const OutboundResponse& response) {
  if (ticket.http_status != 0) {
    return {.code = CodeOfRefusal(ticket.http_status),
            .text = response.description};
  }
  if (response.detail == FailureDetail::kExpired) {
    return {.code = GrpcCode::kDeadlineExceeded,
            .text = "the deadline had passed before the call began"};
  }
  if (response.detail == FailureDetail::kMediaType) {
    return {.code = GrpcCode::kUnimplemented, .text = response.description};
  }
  return WebOutcomeOf(WebTypeOf(ticket).kind, response.status, response.detail,
                      response.description);
}

void AppendWebHead(int status, std::string_view type, const Metadata* metadata,
                   BufferBuilder* out) {
  AppendStatusLine(status, out);
  out->Append("Content-Type: ");
  out->Append(type);
  if (metadata != nullptr) AppendMetadata(*metadata, out);
  out->Append("\r\n");
}

// The status for a method with streams that is called like a unary one: 415,
// and 405 if by GET. The fields say which calls it takes.
int ConnectMediaTypeStatus(const HttpTicket& ticket) {
  return WebTypeOf(ticket).kind == WebKind::kConnectGet ? 405 : 415;
}
std::string_view ConnectMediaTypeField(const HttpTicket& ticket) {
  return WebTypeOf(ticket).kind == WebKind::kConnectGet
             ? "Allow: POST\r\n"
             : "Accept-Post: application/connect+proto, "
               "application/connect+json\r\n";
}

int ConnectFailureStatus(const HttpTicket& ticket, const WebOutcome& outcome,
                         FailureDetail detail) {
  if (ticket.http_status != 0) return ticket.http_status;
  return detail == FailureDetail::kMediaType ? ConnectMediaTypeStatus(ticket)
                                             : ConnectHttpStatus(outcome.code);
}

Buffer FormatConnectFailure(const HttpTicket& ticket, const WebOutcome& outcome,
                            FailureDetail detail, const Metadata* metadata) {
  const std::string body =
      ConnectErrorJson(outcome.code, outcome.text, metadata);
  BufferBuilder out;
  AppendWebHead(ConnectFailureStatus(ticket, outcome, detail),
                "application/json", metadata, &out);
  if (detail == FailureDetail::kMediaType) {
    out.Append(ConnectMediaTypeField(ticket));
  }
  if (outcome.status != STATUS_SUCCESS) {
    out.Append("Rpc-Error-Code: ");
    AppendDecimal(outcome.status, &out);
    out.Append("\r\n");
  }
  AppendLengthAndEnd(ticket, body.size(), &out);
  out.Append(body);
  return out.DestructiveGet();
}

Buffer FormatConnectSuccess(const HttpTicket& ticket,
                            OutboundResponse&& response) {
  BufferBuilder out;
  AppendWebHead(200, WebTypeOf(ticket).name, response.metadata, &out);
  if (response.trailers != nullptr) {
    ForEachGrpcField(*response.trailers,
                     [&out](std::string_view name, std::string_view value) {
                       out.Append("Trailer-");
                       out.Append(name);
                       out.Append(": ");
                       out.Append(value);
                       out.Append("\r\n");
                     });
  }
  // Caches that keep replies to GET mustn't give a packed one to everybody.
  if (WebTypeOf(ticket).kind == WebKind::kConnectGet) {
    out.Append("Vary: Accept-Encoding\r\n");
  }
  // A message of no bytes isn't packed.
  if (IsCompressed(response.compression) && !response.body.empty()) {
    out.Append("Content-Encoding: ");
    out.Append(HttpCodingName(response.compression));
    out.Append("\r\n");
  }
  AppendLengthAndEnd(ticket, response.body.size(), &out);
  std::move(response.body).AppendTo(&out);
  return out.DestructiveGet();
}

// gRPC's trailers, as lines.
std::string GrpcWebTrailers(const WebOutcome& outcome,
                            const Metadata& metadata) {
  std::string lines =
      "grpc-status: " + std::to_string(static_cast<int>(outcome.code)) + "\r\n";
  const auto add = [&lines](std::string_view name, std::string_view value) {
    lines.append(name).append(": ").append(value).append("\r\n");
  };
  if (!outcome.text.empty()) {
    add("grpc-message", EncodeGrpcMessage(outcome.text));
  }
  if (outcome.status != STATUS_SUCCESS) {
    add(kGrpcExactStatusField, std::to_string(outcome.status));
  }
  ForEachGrpcField(metadata, add);
  return lines;
}

// The last frame.
void AppendWebEnd(WebKind kind, const WebOutcome& outcome,
                  const Metadata& metadata, BufferBuilder* out) {
  const bool connect = kind == WebKind::kConnectStream;
  const std::string text =
      connect ? ConnectEndJson(outcome.code, outcome.text, metadata)
              : GrpcWebTrailers(outcome, metadata);
  char prefix[kGrpcPrefixSize] = {connect ? kConnectEndFlag : kGrpcWebEndFlag};
  PutBigEndian32(text.size(), prefix + 1);
  out->Append(std::string_view(prefix, sizeof(prefix)));
  out->Append(text);
}

// Frames as the type has them: whole groups of base64, which clients decode one
// by one.
Buffer EncodeWebFrames(WebKind kind, Buffer&& frames) {
  if (kind != WebKind::kGrpcWebText) return std::move(frames);
  return CreateBufferSlow(EncodeBase64(FlattenSlow(frames), /*padded=*/true));
}

const Metadata& OrNoMetadata(const Metadata* metadata) {
  static const Metadata kNone;
  return metadata != nullptr ? *metadata : kNone;
}

// The reply to a call of a unary method, or a failure, in frames.
Buffer FormatWebFrames(const HttpTicket& ticket, OutboundResponse&& response) {
  const WebType& type = WebTypeOf(ticket);
  WebOutcome outcome = WebOutcomeOf(ticket, response);
  BufferBuilder frames;
  if (outcome.code == GrpcCode::kOk &&
      !AppendGrpcMessage(std::move(response.body), /*compressed=*/false,
                         &frames)) {
    outcome = WebOutcomeOf(type.kind, STATUS_SERIALIZE_RESPONSE,
                           FailureDetail::kNone, "the response exceeds 4 GiB");
  }
  const bool failed = outcome.code != GrpcCode::kOk;
  AppendWebEnd(type.kind, outcome,
               OrNoMetadata(failed ? response.metadata : response.trailers),
               &frames);
  Buffer body = EncodeWebFrames(type.kind, frames.DestructiveGet());
  BufferBuilder out;
  AppendWebHead(200, type.name, failed ? nullptr : response.metadata, &out);
  AppendLengthAndEnd(ticket, body.size(), &out);
  out.Append(std::move(body));
  return out.DestructiveGet();
}

class WebCalls final : public HttpDialect {
 public:
  bool Recognise(const HttpUses& uses, const HttpHead& head,
                 HttpTicket* ticket) const override {
    const bool get = head.method == HttpMethod::Get;
    const std::string query_type =
        get ? ConnectGetType(uses, head) : std::string();
    const std::string_view type =
        get ? query_type
            : Trim(head.content_type.substr(0, head.content_type.find(';')));
    const auto* const found =
        std::find_if(std::begin(kWebTypes), std::end(kWebTypes),
                     [type, get](const WebType& known) {
                       return get == (known.kind == WebKind::kConnectGet) &&
                              IEquals(type, known.name);
                     });
    if (found == std::end(kWebTypes) ||
        !(found->format == PayloadFormat::kProtobuf ? uses.pb : uses.json)) {
      return false;
    }
    // Other frameworks have these types, too.
    if (found->kind == WebKind::kConnectUnary &&
        !FindWebField(head.fields, "Connect-Protocol-Version")) {
      return false;
    }
    ticket->format = found->format;
    ticket->type = static_cast<std::uint8_t>(kDialectHttpType +
                                             (found - std::begin(kWebTypes)));
    return true;
  }

  std::optional<HttpRefusal> ReadFields(
      const HttpHead& head, InboundRequest* request) const override {
    switch (WebTypeOf(TicketOf(request)).kind) {
      case WebKind::kConnectGet:
        if (auto refusal = ReadConnectQuery(head, request)) return refusal;
        return ReadConnectFields(head, request);
      case WebKind::kConnectUnary:
        return ReadConnectFields(head, request);
      case WebKind::kConnectStream:
        if (auto refusal =
                ReadWebCoding(head, "Connect-Content-Encoding", request)) {
          return refusal;
        }
        return ReadConnectFields(head, request);
      case WebKind::kGrpcWeb:
      case WebKind::kGrpcWebText:
        break;
    }
    if (auto refusal = ReadWebCoding(head, "grpc-encoding", request)) {
      return refusal;
    }
    return ReadGrpcWebFields(head, request);
  }

  void ReadBody(const Limits& limits, InboundRequest* request) const override {
    const WebKind kind = WebTypeOf(TicketOf(request)).kind;
    if (kind == WebKind::kConnectGet) request->body = std::move(request->wire);
    if (IsUnary(kind)) return;
    flare::Status status;
    if (kind == WebKind::kGrpcWebText) {
      if (auto bytes = ParseBase64(Trim(FlattenSlow(request->body)))) {
        request->body = CreateBufferSlow(*bytes);
      } else {
        status = BadWebBody("the body isn't base64");
      }
    }
    if (status.ok()) {
      status =
          TakeWebMessage(limits, &request->body, &request->head.compression);
    }
    if (status.ok()) return;
    request->reject_status = status.code();
    request->reject_reason = status.message();
  }

  Buffer FormatReply(const HttpTicket& ticket,
                     OutboundResponse&& response) const override {
    if (!IsUnary(WebTypeOf(ticket).kind)) {
      return FormatWebFrames(ticket, std::move(response));
    }
    const WebOutcome outcome = WebOutcomeOf(ticket, response);
    return outcome.code == GrpcCode::kOk
               ? FormatConnectSuccess(ticket, std::move(response))
               : FormatConnectFailure(ticket, outcome, response.detail,
                                      response.metadata);
  }

  std::string_view WhyNoStream(const HttpTicket& ticket) const override {
    if (!IsUnary(WebTypeOf(ticket).kind)) return "";
    return WebTypeOf(ticket).kind == WebKind::kConnectGet
               ? "streams its replies, which needs POST, with Content-Type "
                 "application/connect+proto or application/connect+json"
               : "streams its replies, which needs Content-Type "
                 "application/connect+proto or application/connect+json";
  }

  bool IsBase64(const HttpTicket& ticket) const override {
    return WebTypeOf(ticket).kind == WebKind::kGrpcWebText;
  }

  Buffer FormatStreamHead(const HttpTicket& ticket,
                          const Metadata& metadata) const override {
    BufferBuilder out;
    AppendWebHead(200, WebTypeOf(ticket).name, &metadata, &out);
    AppendChunkedAndEnd(ticket, &out);
    return out.DestructiveGet();
  }

  Buffer FormatStreamMessage(const HttpTicket& ticket,
                             OutboundBody&& message) const override {
    BufferBuilder out;
    if (!AppendGrpcMessage(std::move(message), /*compressed=*/false, &out)) {
      return Buffer();
    }
    return EncodeWebFrames(WebTypeOf(ticket).kind, out.DestructiveGet());
  }

  Buffer FormatStreamEnd(const HttpTicket& ticket, const flare::Status& status,
                         const Metadata& metadata) const override {
    const WebKind kind = WebTypeOf(ticket).kind;
    const std::string text = status.message();
    // The end of a stream has no detail: its status has to tell.
    const WebOutcome outcome =
        WebOutcomeOf(kind, status.code(), FailureDetail::kUnreadRequest, text);
    BufferBuilder out;
    AppendWebEnd(kind, outcome, metadata, &out);
    return EncodeWebFrames(kind, out.DestructiveGet());
  }
};

}  // namespace

const HttpDialect* WebDialect() {
  static const WebCalls dialect;
  return &dialect;
}

}  // namespace flare::rpc

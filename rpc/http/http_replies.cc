#include "flare/rpc/http/http_replies.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/compression.h"
#include "flare/base/string.h"
#include "flare/rpc/http/http_call.h"
#include "flare/rpc/http/http_coding.h"
#include "flare/rpc/http/http_metadata.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http/http_writer.h"

namespace flare::rpc {

namespace {

constexpr std::string_view kKeepAlive = "Connection: keep-alive\r\n";

void AppendConnection(const HttpTicket& ticket, BufferBuilder* out) {
  if (ticket.close) {
    out->Append("Connection: close\r\n");
  } else if (ticket.keep_alive) {
    out->Append(kKeepAlive);
  }
}

void AppendEndWithoutLength(const HttpTicket& ticket, BufferBuilder* out) {
  AppendConnection(ticket, out);
  out->Append("\r\n");
}

// The last fields, and the end of the head. In one piece, as each reply has it.
void AppendEnd(const HttpTicket& ticket, std::uint64_t content_length,
               BufferBuilder* out) {
  constexpr std::string_view kName = "Content-Length: ";
  constexpr std::string_view kEnd = "\r\n\r\n";
  constexpr std::size_t kMostDigits = 20;
  const bool says_more = ticket.close || ticket.keep_alive;
  char* const begin =
      out->DataWithRoom(kName.size() + kMostDigits + kEnd.size());
  char* at = begin + kName.copy(begin, kName.size());
  at = std::to_chars(at, at + kMostDigits, content_length).ptr;
  kEnd.copy(at, kEnd.size());
  at += says_more ? kEnd.size() / 2 : kEnd.size();
  out->MarkWritten(static_cast<std::size_t>(at - begin));
  if (says_more) AppendEndWithoutLength(ticket, out);
}

// The begin of a success, up to the value of Rpc-SeqNo.
std::string_view SuccessOf(PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobuf:
      return "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
             "Rpc-SeqNo: ";
    case PayloadFormat::kProtobufText:
      return "HTTP/1.1 200 OK\r\nContent-Type: text/x-protobuf\r\n"
             "Rpc-SeqNo: ";
    case PayloadFormat::kProto3Json:
      return "HTTP/1.1 200 OK\r\nContent-Type: application/x-proto3-json\r\n"
             "Rpc-SeqNo: ";
    case PayloadFormat::kLenientJson:
    case PayloadFormat::kVerboseJson:
      break;  // By its foreign name.
  }
  return {};
}

// The fields that all replies to calls begin with.
void AppendCallFields(const HttpTicket& ticket, std::string_view type,
                      const Metadata* metadata, BufferBuilder* out) {
  out->Append("Content-Type: ");
  out->Append(type);
  out->Append("\r\nRpc-SeqNo: ");
  AppendDecimal(ticket.correlation_id, out);
  if (metadata != nullptr) AppendMetadata(*metadata, out);
  out->Append("\r\n");
}

// The success of a call in the words of another framework.
[[gnu::cold, gnu::noinline]] void AppendForeignSuccess(const HttpTicket& ticket,
                                                       const Metadata* metadata,
                                                       BufferBuilder* out) {
  AppendStatusLine(200, out);
  AppendCallFields(ticket, HttpTypeOf(ticket), metadata, out);
}

[[gnu::cold, gnu::noinline]] bool CanCarry(const HttpTicket& ticket,
                                           const OutboundResponse& response) {
  return response.attachment.empty() &&
         (ticket.codings & HttpCodings::BitOf(response.compression)) != 0;
}

[[gnu::cold, gnu::noinline]] void AppendCoding(const OutboundResponse& response,
                                               BufferBuilder* out) {
  if (response.body.empty()) return;
  out->Append("Content-Encoding: ");
  out->Append(HttpCodingName(response.compression));
  out->Append("\r\n");
}

// For programs that know nothing of our fields.
std::string JsonFailure(int code, std::string_view text) {
  std::string body = "{\"code\":" + std::to_string(code) + ",\"message\":";
  AppendJsonString(text, &body);
  return body + "}";
}

void AppendError(int code, std::string_view text, BufferBuilder* out) {
  out->Append("Rpc-Error-Code: ");
  AppendDecimal(code, out);
  if (!text.empty()) {
    out->Append("\r\nRpc-Error-Reason: ");
    AppendFieldText(text, out);
  }
  out->Append("\r\n");
}

Buffer FormatFailure(const HttpTicket& ticket, int http_status, int code,
                     std::string_view text, const Metadata* metadata) {
  const std::string body =
      IsJson(ticket.format) ? JsonFailure(code, text) : std::string();
  BufferBuilder out;
  AppendStatusLine(http_status, &out);
  AppendCallFields(ticket, HttpTypeOf(ticket), metadata, &out);
  // A reply of 401 must have it.
  if (http_status == 401 &&
      (metadata == nullptr || !metadata->Contains("www-authenticate"))) {
    out.Append("WWW-Authenticate: Bearer\r\n");
  }
  AppendError(code, text, &out);
  AppendEnd(ticket, body.size(), &out);
  out.Append(body);
  return out.DestructiveGet();
}

// Which of a handler's fields concern the framing of the reply.
enum class Framing { kNone, kDate, kConnection, kLength, kIgnored };

Framing FramingOf(std::string_view name) {
  switch (name.size()) {
    case 4:
      if (IEquals(name, "Date")) return Framing::kDate;
      break;
    case 10:
      if (IEquals(name, "Connection")) return Framing::kConnection;
      break;
    case 14:
      if (IEquals(name, "Content-Length")) return Framing::kLength;
      break;
    case 17:
      if (IEquals(name, "Transfer-Encoding")) return Framing::kIgnored;
      break;
  }
  return Framing::kNone;
}

// A handler's wish for the end, in Connection, is handled with the other fields
// that frame the reply. The rest goes out, such as the "Upgrade" of a 426.
void TakeConnection(std::string_view options, HttpTicket* ticket,
                    BufferBuilder* out) {
  ForEachListMember(options, [&](std::string_view option) {
    if (IEquals(option, "close")) {
      ticket->close = true;
    } else if (!option.empty() && !IEquals(option, "keep-alive")) {
      out->Append("Connection: ");
      out->Append(option);
      out->Append("\r\n");
    }
  });
}

// The handler's own fields. Returned: its Content-Length, if it gave one.
std::optional<std::uint64_t> AppendFields(const HttpHeaders& headers,
                                          HttpTicket* ticket,
                                          BufferBuilder* out) {
  std::optional<std::uint64_t> length;
  bool has_date = false;
  for (auto field = headers.begin(); field != headers.end(); ++field) {
    switch (FramingOf(field->first)) {
      case Framing::kConnection:
        TakeConnection(field->second, ticket, out);
        continue;
      case Framing::kLength:
        length = TryParse<std::uint64_t>(field->second);
        continue;
      case Framing::kIgnored:
        continue;
      case Framing::kDate:
        has_date = true;
        break;
      case Framing::kNone:
        break;
    }
    out->Append(field.line());
  }
  if (!has_date) AppendDateField(out);
  return length;
}

// Interim statuses are no replies, and three digits are all there is room for.
int FinalStatusOf(const HttpResponse& response) {
  const int status = static_cast<int>(response.status());
  return status < 200 || status > 999 ? 500 : status;
}

// Whatever the handler has made for one.
bool HasNoBody(int status) {
  if (status == 200) [[likely]]
    return false;
  return status == 204 || status == 205 || status == 304;
}

// The end of the head of such a reply. Without a length clients don't know that
// a 205 has no body.
void AppendEndWithoutBody(int status, const HttpTicket& ticket,
                          BufferBuilder* out) {
  if (status == 205) {
    AppendEnd(ticket, 0, out);
  } else {
    AppendEndWithoutLength(ticket, out);
  }
}

// Takes kKeepAlive out of the head of *reply, whose last field it is if it is
// there. A body may have the same text.
void DropKeepAlive(Buffer* reply) {
  constexpr std::size_t kTailSize = 2 + kKeepAlive.size() + 2;  // with CRLFs
  std::size_t scanned = 0;
  std::size_t size = 0;
  if (FindHeadEnd(*reply, reply->size(), &scanned, &size) != HeadEnd::kFound ||
      size < kTailSize) {
    return;
  }
  char bytes[kTailSize];
  reply->CopyTo(bytes, kTailSize, size - kTailSize);
  const std::string_view tail(bytes, kTailSize);
  if (!tail.starts_with("\r\n") || !tail.substr(2).starts_with(kKeepAlive)) {
    return;
  }
  Buffer rest = reply->Cut(size - kTailSize + 2);
  reply->Skip(kKeepAlive.size());
  rest.Append(std::move(*reply));
  *reply = std::move(rest);
}

}  // namespace

int HttpStatusOf(int rpc_status) {
  switch (rpc_status) {
    case STATUS_SUCCESS:
      return 200;
    case STATUS_SERVICE_NOT_FOUND:
    case STATUS_METHOD_NOT_FOUND:
      return 404;
    case STATUS_OUT_OF_SERVICE:
    case STATUS_OVERLOADED:
      return 503;
    case STATUS_UNAUTHENTICATED:
      return 401;
    case STATUS_PERMISSION_DENIED:
      return 403;
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

void AppendLengthAndEnd(const HttpTicket& ticket, std::uint64_t content_length,
                        BufferBuilder* out) {
  AppendEnd(ticket, content_length, out);
}

void AppendChunkedAndEnd(const HttpTicket& ticket, BufferBuilder* out) {
  out->Append("Transfer-Encoding: chunked\r\n");
  AppendEndWithoutLength(ticket, out);
}

Buffer FormatCallReply(const HttpTicket& ticket, OutboundResponse&& response) {
  if (response.status != STATUS_SUCCESS) {
    return FormatFailure(ticket, HttpStatusOf(response.status), response.status,
                         response.description, response.metadata);
  }
  const bool compressed = IsCompressed(response.compression);
  if ((compressed || !response.attachment.empty()) &&
      !CanCarry(ticket, response)) [[unlikely]] {
    return FormatFailure(ticket, HttpStatusOf(STATUS_NOT_SUPPORTED),
                         STATUS_NOT_SUPPORTED,
                         "HTTP carries no attachments, and messages that are "
                         "compressed only as the caller accepts",
                         response.metadata);
  }
  BufferBuilder out;
  if (ticket.type == kOwnHttpType) [[likely]] {
    out.Append(SuccessOf(ticket.format));
    AppendDecimal(ticket.correlation_id, &out);
    if (response.metadata != nullptr) [[unlikely]]
      AppendMetadata(*response.metadata, &out);
    out.Append("\r\n");
  } else {
    AppendForeignSuccess(ticket, response.metadata, &out);
  }
  if (compressed) [[unlikely]]
    AppendCoding(response, &out);
  AppendEnd(ticket, response.body.size(), &out);
  std::move(response.body).AppendTo(&out);
  return out.DestructiveGet();
}

Buffer FormatStreamHead(const HttpTicket& ticket, bool delimited) {
  std::string type(HttpTypeOf(ticket));
  if (delimited && ticket.format == PayloadFormat::kProtobuf) {
    type += "; encoding=delimited";
  }
  BufferBuilder out;
  AppendStatusLine(200, &out);
  AppendCallFields(ticket, type, nullptr, &out);
  out.Append("Transfer-Encoding: chunked\r\nTrailer: Rpc-Error-Code\r\n");
  AppendEndWithoutLength(ticket, &out);
  return out.DestructiveGet();
}

Buffer FormatStreamFailure(const HttpTicket& ticket,
                           const flare::Status& status,
                           const Metadata& challenge) {
  const bool denied = status.code() == STATUS_UNAUTHENTICATED ||
                      status.code() == STATUS_PERMISSION_DENIED;
  return FormatFailure(ticket, denied ? HttpStatusOf(status.code()) : 200,
                       status.code(), status.message(), &challenge);
}

Buffer FormatRefusal(const HttpTicket& ticket,
                     const OutboundResponse& response) {
  const bool json = ticket.is_call && IsJson(ticket.format);
  const std::string body =
      json ? JsonFailure(response.status, response.description)
           : std::string(response.description) + "\n";
  BufferBuilder out;
  AppendStatusLine(ticket.http_status, &out);
  if (!ticket.is_call) AppendDateField(&out);
  out.Append("Content-Type: ");
  out.Append(json ? HttpTypeOf(ticket) : "text/plain");
  out.Append("\r\n");
  if (ticket.http_status == 405) out.Append("Allow: POST\r\n");
  if (ticket.is_call) {
    out.Append("Rpc-SeqNo: ");
    AppendDecimal(ticket.correlation_id, &out);
    out.Append("\r\n");
    AppendError(response.status, response.description, &out);
  }
  AppendEnd(ticket, body.size(), &out);
  if (!ticket.head_only) out.Append(body);
  return out.DestructiveGet();
}

Buffer FormatHttp2Refusal(std::string_view text) {
  // RFC 9113, 4.1, 6.5 and 6.8: length (24 bits), type, flags, stream.
  constexpr std::string_view kSettings("\0\0\0\4\0\0\0\0\0", 9);
  constexpr std::string_view kBehindLength("\7\0\0\0\0\0", 6);
  constexpr std::string_view kNoStreamHttp11("\0\0\0\0\0\0\0\x0d", 8);
  const std::size_t size = kNoStreamHttp11.size() + text.size();
  BufferBuilder out;
  out.Append(kSettings);
  for (int shift : {16, 8, 0}) {
    const char byte = static_cast<char>(size >> shift);
    out.Append(&byte, 1);
  }
  out.Append(kBehindLength);
  out.Append(kNoStreamHttp11);
  out.Append(text);
  return out.DestructiveGet();
}

Buffer FormatHandlerReply(HttpTicket* ticket, HttpResponse&& response) {
  const int status = FinalStatusOf(response);
  BufferBuilder out;
  AppendStatusLine(status, &out);
  const std::optional<std::uint64_t> own_length =
      AppendFields(*response.headers(), ticket, &out);
  if (HasNoBody(status)) {
    AppendEndWithoutBody(status, *ticket, &out);
    return out.DestructiveGet();
  }
  if (ticket->head_only && response.body_size() == 0) {
    // How long the body of a GET would be, only the handler knows; 0 may be
    // false, and no length at all is as good.
    if (own_length) {
      AppendEnd(*ticket, *own_length, &out);
    } else {
      AppendEndWithoutLength(*ticket, &out);
    }
    return out.DestructiveGet();
  }
  AppendEnd(*ticket, response.body_size(), &out);
  if (!ticket->head_only && response.body_size() != 0) {
    out.Append(std::move(*response.noncontiguous_body()));
  }
  return out.DestructiveGet();
}

Buffer FormatHandlerHead(HttpVersion version, const HttpResponse& response,
                         HttpTicket* ticket) {
  const int status = FinalStatusOf(response);
  BufferBuilder out;
  AppendStatusLine(status, &out);
  AppendFields(*response.headers(), ticket, &out);
  if (HasNoBody(status)) {
    ticket->head_only = true;
    AppendEndWithoutBody(status, *ticket, &out);
    return out.DestructiveGet();
  }
  if (version == HttpVersion::kHttp10) {
    ticket->close = true;
  } else {
    ticket->chunked = true;
    out.Append("Transfer-Encoding: chunked\r\n");
  }
  AppendEndWithoutLength(*ticket, &out);
  return out.DestructiveGet();
}

Buffer FormatChunk(Buffer&& bytes) {
  char size[2 * sizeof(std::size_t)];
  const auto end = std::to_chars(size, size + sizeof(size), bytes.size(), 16);
  BufferBuilder out;
  out.Append(std::string_view(size, end.ptr));
  out.Append("\r\n");
  out.Append(std::move(bytes));
  out.Append("\r\n");
  return out.DestructiveGet();
}

Buffer FormatLastChunk() { return CreateBufferSlow("0\r\n\r\n"); }

Buffer InsertFields(std::string_view lines, Buffer&& reply) {
  constexpr std::size_t kMaxStatusLine = 64;
  const std::size_t end = FlattenSlow(reply, kMaxStatusLine).find("\r\n");
  if (end == std::string::npos) return std::move(reply);  // Has no head.
  Buffer with = reply.Cut(end + 2);
  with.Append(lines);
  with.Append(std::move(reply));
  return with;
}

Buffer SayClose(Buffer&& reply) {
  DropKeepAlive(&reply);
  return InsertFields("Connection: close\r\n", std::move(reply));
}

}  // namespace flare::rpc

#include "flare/rpc/http/http_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

#include "flare/base/string.h"
#include "flare/rpc/http/http_coding.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {

namespace {

constexpr char kPrefix[] = "/rpc/";
constexpr std::size_t kPrefixSize = sizeof(kPrefix) - 1;

// In place of starts_with(), which calls memcmp() for these five bytes.
bool HasPrefix(std::string_view path) {
  return path.size() >= kPrefixSize &&
         std::memcmp(path.data(), kPrefix, kPrefixSize) == 0;
}

// By which callers of brpc and tRPC call the formats. HttpTicket::type of the
// n-th is kOwnHttpType + n + 1.
struct ForeignType {
  std::string_view name;
  PayloadFormat format;
};
constexpr ForeignType kForeign[] = {
    {"application/json", PayloadFormat::kVerboseJson},
    {"application/proto", PayloadFormat::kProtobuf},
    {"application/protobuf", PayloadFormat::kProtobuf},
    {"application/pb", PayloadFormat::kProtobuf},
    {"application/octet-stream", PayloadFormat::kProtobuf},
};

bool Speaks(const HttpUses& uses, PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobuf:
      return uses.pb;
    case PayloadFormat::kProtobufText:
      return uses.text;
    case PayloadFormat::kProto3Json:
    case PayloadFormat::kVerboseJson:
      return uses.json;
    case PayloadFormat::kLenientJson:
      break;
  }
  return false;
}

// Names our own types, by which it says which formats are spoken.
HttpRefusal RefuseFormat(const HttpUses& uses, std::string_view content_type) {
  std::string text = "the Content-Type must be";
  std::string_view separator = " ";
  for (auto known : {PayloadFormat::kProtobuf, PayloadFormat::kProtobufText,
                     PayloadFormat::kProto3Json}) {
    if (!Speaks(uses, known)) continue;
    text.append(separator).append(ContentTypeOf(known));
    separator = " or ";
  }
  constexpr std::size_t kShown = 100;
  if (!content_type.empty()) {
    text.append(", not ").append(content_type.substr(0, kShown));
  }
  return {415, text};
}

// Whether calls are made to `path`, by POST, in the way of other frameworks.
bool IsForeignPath(const HttpUses& uses, std::string_view path) {
  return uses.paths != nullptr && uses.paths->Read(path, nullptr);
}

bool IsDialectGet(const HttpUses& uses, const HttpHead& head) {
  HttpTicket ticket;
  return uses.dialect != nullptr &&
         uses.dialect->Recognise(uses, head, &ticket);
}

// Kept out of line, here and below: all calls would pay for the frame.
[[gnu::noinline]] bool IsUnusualCall(const HttpUses& uses,
                                     const HttpHead& head) {
  if (!uses.calls()) return false;
  if (HasPrefix(head.path)) {
    return head.method == HttpMethod::Post || !IsHttpPreflight(uses, head);
  }
  if (head.method == HttpMethod::Get) return IsDialectGet(uses, head);
  return head.method == HttpMethod::Post && IsForeignPath(uses, head.path);
}

[[gnu::noinline]] bool ReadUnusualFormat(const HttpUses& uses,
                                         const HttpHead& head,
                                         HttpTicket* ticket) {
  if (uses.dialect != nullptr && uses.dialect->Recognise(uses, head, ticket)) {
    return true;
  }
  const std::string_view type =
      Trim(head.content_type.substr(0, head.content_type.find(';')));
  for (auto own : {PayloadFormat::kProtobuf, PayloadFormat::kProtobufText,
                   PayloadFormat::kProto3Json}) {
    if (!IEquals(type, ContentTypeOf(own)) || !Speaks(uses, own)) continue;
    ticket->format = own;
    return true;
  }
  for (std::size_t i = 0; i != std::size(kForeign); ++i) {
    const auto& [name, format] = kForeign[i];
    if (!IEquals(type, name) || !Speaks(uses, format)) continue;
    ticket->format = format;
    ticket->type = static_cast<std::uint8_t>(kOwnHttpType + i + 1);
    return true;
  }
  return false;
}

}  // namespace

bool IsHttpCall(const HttpUses& uses, const HttpHead& head) {
  if (HasPrefix(head.path) && head.method == HttpMethod::Post) [[likely]] {
    return uses.calls();
  }
  return IsUnusualCall(uses, head);
}

bool IsHttpPreflight(const HttpUses& uses, const HttpHead& head) {
  return head.method == HttpMethod::Options && uses.cors != nullptr &&
         uses.cors->enabled() && uses.calls() &&
         (HasPrefix(head.path) || IsForeignPath(uses, head.path));
}

bool ReadHttpFormat(const HttpUses& uses, const HttpHead& head,
                    HttpTicket* ticket) {
  // As a rule it is just that.
  ticket->format = PayloadFormat::kProtobuf;
  ticket->type = kOwnHttpType;
  if (uses.pb && head.content_type == ContentTypeOf(PayloadFormat::kProtobuf)) {
    return true;
  }
  return ReadUnusualFormat(uses, head, ticket);
}

std::string_view HttpTypeOf(const HttpTicket& ticket) {
  return ticket.type == kOwnHttpType
             ? ContentTypeOf(ticket.format)
             : kForeign[ticket.type - kOwnHttpType - 1].name;
}

std::optional<HttpRefusal> ReadHttpCall(const HttpUses& uses,
                                        const HttpHead& head,
                                        InboundRequest* request) {
  HttpTicket& ticket = TicketOf(request);
  const bool spoken = ReadHttpFormat(uses, head, &ticket);
  if (head.method != HttpMethod::Post && !IsDialect(ticket)) {
    return HttpRefusal{
        405, "calls are made by POST, not by " + std::string(head.method_name)};
  }
  if (!ticket.has_correlation_id && head.rpc_seq_no) {
    return HttpRefusal{400, "Rpc-SeqNo is no number"};
  }
  if (!head.rpc_timeout.value && head.rpc_timeout) {
    return HttpRefusal{400, "Rpc-Timeout is no number"};
  }
  if (head.encoded) [[unlikely]] {
    if (head.encoding == CompressionAlgorithm::kUnknown) {
      return HttpRefusal{
          415, "the Content-Encoding must be gzip or deflate or identity"};
    }
    request->head.compression = head.encoding;
  }
  if (head.accept_encoding.named()) [[unlikely]] {
    const std::uint8_t usable = head.accept_encoding.usable();
    ticket.codings = usable;
    request->head.acceptable_compressions = usable;
    request->head.unasked_compression = PreferredHttpCoding(usable);
  }
  const std::uint64_t timeout =
      std::min<std::uint64_t>(head.rpc_timeout.value.value_or(0),
                              std::numeric_limits<std::uint32_t>::max());
  if (!spoken) return RefuseFormat(uses, head.content_type);
  if (HasPrefix(head.path)) [[likely]] {
    request->scratch.assign(head.path.substr(kPrefixSize));
  } else {
    uses.paths->Read(head.path, &request->scratch);
  }
  request->head.format = ticket.format;
  request->head.method = request->scratch;
  request->head.timeout_ms = static_cast<std::uint32_t>(timeout);
  if (IsDialect(ticket)) [[unlikely]]
    return uses.dialect->ReadFields(head, request);
  return std::nullopt;
}

}  // namespace flare::rpc

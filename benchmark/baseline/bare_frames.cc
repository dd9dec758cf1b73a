#include "benchmark/baseline/bare_frames.h"

#include <endian.h>
#include <strings.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>

#include "flare/base/string.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/rpc_meta.h"
#include "glog/logging.h"

namespace baseline {

using flare::rpc::RpcMeta;
using Kind = BareMessage::Kind;

namespace {

constexpr std::string_view kMagic = "CPRF";
constexpr std::size_t kFlareHeader = 16;
constexpr std::size_t kMaxMeta = 64 << 10;
constexpr std::size_t kMaxHead = 64 << 10;
constexpr std::size_t kVersionSize = 9;  // " HTTP/1.1", or "HTTP/1.1 ".

constexpr char kRequestTag = 0x0a;   // Field 1, length-delimited.
constexpr char kResponseTag = 0x12;  // Field 2.

std::uint32_t ReadLittleEndian(const char* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return le32toh(value);
}

void AppendLittleEndian(std::uint32_t value, std::string* out) {
  value = htole32(value);
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendNumber(std::uint64_t value, std::string* out) {
  char digits[20];
  out->append(digits, std::to_chars(digits, std::end(digits), value).ptr);
}

Scan ScanFlare(std::string_view in, BareMessage* message, std::size_t* need) {
  if (in.size() < kFlareHeader) {
    *need = kFlareHeader;
    return Scan::kNeedMore;
  }
  const std::size_t meta_size = ReadLittleEndian(in.data() + 4);
  const std::size_t body = ReadLittleEndian(in.data() + 8);
  message->attachment = ReadLittleEndian(in.data() + 12);
  message->kind = Kind::kFlare;
  message->head = kFlareHeader + meta_size;
  message->size = message->head + body + message->attachment;
  if (meta_size > kMaxMeta || message->size > kMaxBareMessage) {
    return Scan::kBad;
  }
  if (in.size() < message->size) {
    *need = message->size;
    return Scan::kNeedMore;
  }
  RpcMeta meta;
  const std::string_view fault =
      DecodeRpcMeta(in.substr(kFlareHeader, meta_size), &meta);
  if (!fault.empty() || !meta.has_correlation_id) return Scan::kBad;
  message->has_id = true;
  message->id = meta.correlation_id;
  message->status = meta.status;
  return Scan::kMessage;
}

// The part of an HTTP head that matters here, far less than flare's own parser
// looks at (rpc/http/http_parser.h): as fast as it goes, not as safe.
struct BareHead {
  std::string_view start;  // The first line.
  std::optional<std::uint64_t> content_length;
  std::optional<std::uint64_t> rpc_seq_no;
  bool close = false;
};

bool IsField(std::string_view name, std::string_view wanted) {
  return name.size() == wanted.size() &&
         ::strncasecmp(name.data(), wanted.data(), wanted.size()) == 0;
}

// False: it can't be understood.
bool ReadField(std::string_view line, BareHead* head) {
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view name = line.substr(0, colon);
  const auto value = [&] { return flare::Trim(line.substr(colon + 1)); };
  if (IsField(name, "Content-Length")) {
    if (head->content_length) return false;
    head->content_length = flare::TryParse<std::uint64_t>(value());
    return head->content_length.has_value();
  }
  if (IsField(name, "Rpc-SeqNo")) {
    head->rpc_seq_no = flare::TryParse<std::uint64_t>(value());
    return head->rpc_seq_no.has_value();
  }
  if (IsField(name, "Connection")) {
    head->close = flare::IEquals(value(), "close");
  }
  return !IsField(name, "Transfer-Encoding");
}

// Up to and with the empty line; *size gets the size of all that.
Scan ReadHead(std::string_view in, BareHead* head, std::size_t* size) {
  for (std::size_t at = 0;;) {
    const std::size_t end = in.find('\n', at);
    if (end == std::string_view::npos) {
      return in.size() > kMaxHead ? Scan::kBad : Scan::kNeedMore;
    }
    if (end == at || in[end - 1] != '\r') return Scan::kBad;
    const std::string_view line = in.substr(at, end - 1 - at);
    at = end + 1;
    if (line.empty()) {
      *size = at;
      return head->start.empty() ? Scan::kBad : Scan::kMessage;
    }
    if (head->start.empty()) {
      head->start = line;
    } else if (!ReadField(line, head)) {
      return Scan::kBad;
    }
  }
}

Scan ScanHttp(std::string_view in, BareMessage* message, BareHead* head,
              std::size_t* need) {
  const Scan result = ReadHead(in, head, &message->head);
  if (result == Scan::kNeedMore) *need = 0;
  if (result != Scan::kMessage) return result;
  const std::uint64_t body = head->content_length.value_or(0);
  if (body > kMaxBareMessage) return Scan::kBad;
  message->size = message->head + static_cast<std::size_t>(body);
  if (in.size() < message->size) {
    *need = message->size;
    return Scan::kNeedMore;
  }
  message->has_id = head->rpc_seq_no.has_value();
  message->id = head->rpc_seq_no.value_or(0);
  message->close = head->close;
  return Scan::kMessage;
}

bool BeginsLikeFlare(std::string_view in) {
  const std::string_view known = in.substr(0, kMagic.size());
  // Two bytes tell it from a request with CONNECT.
  return known.size() >= 2 && kMagic.starts_with(known);
}

}  // namespace

Scan ScanRequest(std::string_view in, BareMessage* message, std::size_t* need) {
  *message = BareMessage();
  if (BeginsLikeFlare(in)) return ScanFlare(in, message, need);
  // HTTP begins with a method's name: other input isn't waited for.
  if (!in.empty() && (in[0] < 'A' || in[0] > 'Z')) return Scan::kBad;
  BareHead head;
  const Scan result = ScanHttp(in, message, &head, need);
  if (result != Scan::kMessage) return result;
  // "METHOD target HTTP/1.x"
  const std::size_t space = head.start.find(' ');
  const std::size_t version = head.start.rfind(" HTTP/1.");
  if (version == std::string_view::npos || version <= space ||
      head.start.size() != version + kVersionSize) {
    return Scan::kBad;
  }
  message->close = message->close || head.start.back() == '0';
  message->kind = head.start.substr(space + 1).starts_with("/rpc/")
                      ? Kind::kHttpCall
                      : Kind::kHttp;
  return result;
}

Scan ScanResponse(std::string_view in, BareMessage* message,
                  std::size_t* need) {
  *message = BareMessage();
  if (BeginsLikeFlare(in)) return ScanFlare(in, message, need);
  BareHead head;
  const Scan result = ScanHttp(in, message, &head, need);
  if (result != Scan::kMessage) return result;
  // "HTTP/1.x 200 reason"
  const auto status = flare::TryParse<int>(
      head.start.substr(std::min(kVersionSize, head.start.size()), 3));
  // Without a length its end would be that of the connection.
  if (!head.start.starts_with("HTTP/1.") || !status || !head.content_length) {
    return Scan::kBad;
  }
  message->kind = head.rpc_seq_no ? Kind::kHttpCall : Kind::kHttp;
  if (*status < 200 || *status > 299) message->status = *status;
  return result;
}

void AppendReplyHead(const BareMessage& request, std::string* out) {
  const std::size_t rest = request.size - request.head;
  if (request.kind != Kind::kFlare) {
    out->append(
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n"
        "Rpc-SeqNo: ");
    AppendNumber(request.id, out);
    out->append("\r\nContent-Length: ");
    AppendNumber(rest, out);
    out->append(request.close ? "\r\nConnection: close\r\n\r\n" : "\r\n\r\n");
    return;
  }
  RpcMeta meta;
  meta.correlation_id = request.id;
  meta.method_type = flare::rpc::kMethodTypeSingle;
  meta.has_response = true;
  meta.status = flare::rpc::STATUS_SUCCESS;
  char encoded[256];
  CHECK_LE(RpcMetaBound(meta), sizeof(encoded));
  const std::string_view head(
      encoded,
      static_cast<std::size_t>(EncodeRpcMeta(meta, encoded) - encoded));
  out->append(kMagic);
  AppendLittleEndian(static_cast<std::uint32_t>(head.size()), out);
  AppendLittleEndian(static_cast<std::uint32_t>(rest - request.attachment),
                     out);
  AppendLittleEndian(static_cast<std::uint32_t>(request.attachment), out);
  out->append(head);
}

void TurnIntoReplyBody(char* body, std::size_t size) {
  if (size != 0 && body[0] == kRequestTag) body[0] = kResponseTag;
}

std::string PlainReply(std::string_view body) {
  std::string reply = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
  reply.append("Content-Length: ");
  AppendNumber(body.size(), &reply);
  return reply.append("\r\n\r\n").append(body);
}

}  // namespace baseline

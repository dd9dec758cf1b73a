#include "benchmark/baseline/bare_frames.h"

#include <charconv>
#include <cstring>

#include "flare/base/string.h"
#include "flare/rpc/protocol/http_parser.h"
#include "flare/rpc/protocol/rpc_meta.h"
#include "flare/rpc/rpc_status.h"

namespace baseline {

using flare::rpc::HttpHead;
using flare::rpc::RpcMeta;
using Kind = BareMessage::Kind;

namespace {

constexpr std::string_view kMagic = "CPRF";
constexpr std::size_t kFlareHeader = 16;
constexpr std::size_t kMaxMeta = 64 << 10;
constexpr std::size_t kMaxHead = 64 << 10;
constexpr std::size_t kMaxFields = 100;

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
  *need = kFlareHeader;
  if (in.size() < kFlareHeader) return Scan::kNeedMore;
  const std::size_t meta_size = ReadLittleEndian(in.data() + 4);
  const std::size_t body = ReadLittleEndian(in.data() + 8);
  message->attachment = ReadLittleEndian(in.data() + 12);
  message->kind = Kind::kFlare;
  message->head = kFlareHeader + meta_size;
  message->size = message->head + body + message->attachment;
  if (meta_size > kMaxMeta || message->size > kMaxBareMessage) {
    return Scan::kBad;
  }
  *need = message->size;
  if (in.size() < message->size) return Scan::kNeedMore;
  RpcMeta meta;
  const std::string_view fault =
      DecodeRpcMeta(in.substr(kFlareHeader, meta_size), &meta);
  if (!fault.empty() || !meta.has_correlation_id) return Scan::kBad;
  message->has_id = true;
  message->id = meta.correlation_id;
  message->status = meta.status;
  return Scan::kMessage;
}

template <class ParseHead>
Scan ScanHttp(std::string_view in, ParseHead&& parse, BareMessage* message,
              HttpHead* head, std::size_t* need) {
  *need = 0;
  const void* const end = ::memmem(in.data(), in.size(), "\r\n\r\n", 4);
  if (end == nullptr) {
    return in.size() > kMaxHead ? Scan::kBad : Scan::kNeedMore;
  }
  message->head =
      static_cast<std::size_t>(static_cast<const char*>(end) - in.data()) + 4;
  if (parse(in.substr(0, message->head), kMaxFields, head)) return Scan::kBad;
  if (head->chunked || head->content_length > kMaxBareMessage) {
    return Scan::kBad;
  }
  message->size =
      message->head + static_cast<std::size_t>(head->content_length);
  *need = message->size;
  if (in.size() < message->size) return Scan::kNeedMore;
  const auto id = flare::TryParse<std::uint64_t>(head->rpc_seq_no);
  message->has_id = id.has_value();
  message->id = id.value_or(0);
  message->close = head->close || head->minor_version == 0;
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
  // HTTP begins with a method's name: no wait for the rest of what doesn't.
  if (!in.empty() && (in[0] < 'A' || in[0] > 'Z')) return Scan::kBad;
  HttpHead head;
  const Scan result =
      ScanHttp(in, flare::rpc::ParseRequestHead, message, &head, need);
  if (result != Scan::kMessage) return result;
  message->kind =
      head.target.starts_with("/rpc/") ? Kind::kHttpCall : Kind::kHttp;
  return result;
}

Scan ScanResponse(std::string_view in, BareMessage* message,
                  std::size_t* need) {
  *message = BareMessage();
  if (BeginsLikeFlare(in)) return ScanFlare(in, message, need);
  HttpHead head;
  const Scan result =
      ScanHttp(in, flare::rpc::ParseResponseHead, message, &head, need);
  if (result != Scan::kMessage) return result;
  // Without a length its end would be that of the connection.
  if (!head.has_content_length) return Scan::kBad;
  message->kind =
      head.rpc_seq_no.data() != nullptr ? Kind::kHttpCall : Kind::kHttp;
  if (head.status < 200 || head.status > 299) message->status = head.status;
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
  const std::size_t meta_size = RpcMetaSize(meta);
  out->append(kMagic);
  AppendLittleEndian(static_cast<std::uint32_t>(meta_size), out);
  AppendLittleEndian(static_cast<std::uint32_t>(rest - request.attachment),
                     out);
  AppendLittleEndian(static_cast<std::uint32_t>(request.attachment), out);
  const std::size_t at = out->size();
  out->resize(at + meta_size);
  EncodeRpcMeta(meta, out->data() + at);
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

#include "flare/rpc/wire/trpc_meta.h"

#include "flare/rpc/wire/protobuf_fields.h"

namespace flare::rpc {

namespace {

using fields::BytesFieldSize;
using fields::FieldReader;
using fields::kLengthDelimited;
using fields::kVarint;
using fields::OptionalBytesFieldSize;
using fields::OptionalVarintFieldSize;
using fields::PutBytesField;
using fields::PutLength;
using fields::PutVarintField;
using fields::SignExtended;
using fields::Tag;

constexpr std::uint32_t kRequestTransInfo = 9;
constexpr std::uint32_t kResponseTransInfo = 8;

// What all numbers take at most, of 32 bits or sign-extended to 64, and what
// stands in front of texts.
constexpr std::size_t kMostTrpcNumbers = 8 * 6 + 2 * 11 + 3 * 6 + 2;

// Sets the parts of meta->func.
void SplitFunc(TrpcRequestMeta* meta) {
  std::string_view func = meta->func;
  std::size_t slash = func.rfind('/');
  if (func.empty() || func[0] != '/' || slash < 2 || slash + 1 == func.size()) {
    return;
  }
  meta->service = func.substr(1, slash - 1);
  meta->method = func.substr(slash + 1);
}

std::size_t FuncSize(const TrpcRequestMeta& meta) {
  return 2 + meta.service.size() + meta.method.size();
}

char* PutText(std::string_view text, char* out) {
  if (!text.empty()) std::memcpy(out, text.data(), text.size());
  return out + text.size();
}

char* PutOptionalVarint(std::uint32_t field, std::uint64_t value, char* out) {
  return value == 0 ? out : PutVarintField(field, value, out);
}

char* PutOptionalBytes(std::uint32_t field, std::string_view bytes, char* out) {
  return bytes.empty() ? out : PutBytesField(field, bytes, out);
}

// Calls f(entry) for each encoded entry of a request's trans_info.
template <class F>
void ForEachTransInfo(std::string_view request, F&& f) {
  FieldReader reader(request);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag != Tag(kRequestTransInfo, kLengthDelimited)) {
      reader.SkipField(tag);
      continue;
    }
    std::string_view entry = reader.Bytes();
    if (reader.error().empty()) f(entry);
  }
}

}  // namespace

std::string_view DecodeTrpcRequest(std::string_view bytes,
                                   TrpcRequestMeta* meta) {
  meta->bytes = bytes;
  FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(1, kVarint):
        meta->version = reader.Uint32();
        break;
      case Tag(2, kVarint):
        meta->call_type = reader.Uint32();
        break;
      case Tag(3, kVarint):
        meta->request_id = reader.Uint32();
        break;
      case Tag(4, kVarint):
        meta->timeout = reader.Uint32();
        break;
      case Tag(5, kLengthDelimited):
        meta->caller = reader.Bytes();
        break;
      case Tag(6, kLengthDelimited):
        meta->callee = reader.Bytes();
        break;
      case Tag(7, kLengthDelimited):
        meta->func = reader.Bytes();
        break;
      case Tag(8, kVarint):
        meta->message_type = reader.Uint32();
        break;
      case Tag(10, kVarint):
        meta->content_type = reader.Uint32();
        break;
      case Tag(11, kVarint):
        meta->content_encoding = reader.Uint32();
        break;
      case Tag(12, kVarint):
        meta->attachment_size = reader.Uint32();
        break;
      case Tag(kRequestTransInfo, kLengthDelimited):
        reader.Bytes();
        meta->has_trans_info = true;
        break;
      default:
        reader.SkipField(tag);
    }
  }
  SplitFunc(meta);
  return reader.error();
}

std::string_view DecodeTrpcResponse(std::string_view bytes,
                                    TrpcResponseMeta* meta) {
  FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(1, kVarint):
        meta->version = reader.Uint32();
        break;
      case Tag(2, kVarint):
        meta->call_type = reader.Uint32();
        break;
      case Tag(3, kVarint):
        meta->request_id = reader.Uint32();
        break;
      case Tag(4, kVarint):
        meta->ret = reader.Int32();
        break;
      case Tag(5, kVarint):
        meta->func_ret = reader.Int32();
        break;
      case Tag(6, kLengthDelimited):
        meta->error_msg = reader.Bytes();
        break;
      case Tag(7, kVarint):
        meta->message_type = reader.Uint32();
        break;
      case Tag(9, kVarint):
        meta->content_type = reader.Uint32();
        break;
      case Tag(10, kVarint):
        meta->content_encoding = reader.Uint32();
        break;
      case Tag(12, kVarint):
        meta->attachment_size = reader.Uint32();
        break;
      default:
        reader.SkipField(tag);
    }
  }
  return reader.error();
}

std::size_t TrpcRequestSize(const TrpcRequestMeta& meta) {
  return OptionalVarintFieldSize(meta.version) +
         OptionalVarintFieldSize(meta.call_type) +
         OptionalVarintFieldSize(meta.request_id) +
         OptionalVarintFieldSize(meta.timeout) +
         OptionalBytesFieldSize(meta.caller) +
         OptionalBytesFieldSize(meta.callee) + BytesFieldSize(FuncSize(meta)) +
         OptionalVarintFieldSize(meta.message_type) +
         OptionalVarintFieldSize(meta.content_type) +
         OptionalVarintFieldSize(meta.content_encoding) +
         OptionalVarintFieldSize(meta.attachment_size);
}

std::size_t TrpcResponseSize(const TrpcResponseMeta& meta) {
  std::size_t size = OptionalVarintFieldSize(meta.version) +
                     OptionalVarintFieldSize(meta.call_type) +
                     OptionalVarintFieldSize(meta.request_id) +
                     OptionalVarintFieldSize(SignExtended(meta.ret)) +
                     OptionalVarintFieldSize(SignExtended(meta.func_ret)) +
                     OptionalBytesFieldSize(meta.error_msg) +
                     OptionalVarintFieldSize(meta.message_type) +
                     OptionalVarintFieldSize(meta.content_type) +
                     OptionalVarintFieldSize(meta.content_encoding) +
                     OptionalVarintFieldSize(meta.attachment_size);
  ForEachTransInfo(meta.request, [&](std::string_view entry) {
    size += BytesFieldSize(entry.size());
  });
  return size;
}

std::size_t TrpcRequestBound(const TrpcRequestMeta& meta) {
  return kMostTrpcNumbers + meta.caller.size() + meta.callee.size() +
         FuncSize(meta);
}

std::size_t TrpcResponseBound(const TrpcResponseMeta& meta) {
  return kMostTrpcNumbers + meta.error_msg.size() + meta.request.size();
}

char* EncodeTrpcRequest(const TrpcRequestMeta& meta, char* out) {
  out = PutOptionalVarint(1, meta.version, out);
  out = PutOptionalVarint(2, meta.call_type, out);
  out = PutOptionalVarint(3, meta.request_id, out);
  out = PutOptionalVarint(4, meta.timeout, out);
  out = PutOptionalBytes(5, meta.caller, out);
  out = PutOptionalBytes(6, meta.callee, out);
  out = PutLength(7, FuncSize(meta), out);
  *out++ = '/';
  out = PutText(meta.service, out);
  *out++ = '/';
  out = PutText(meta.method, out);
  out = PutOptionalVarint(8, meta.message_type, out);
  out = PutOptionalVarint(10, meta.content_type, out);
  out = PutOptionalVarint(11, meta.content_encoding, out);
  return PutOptionalVarint(12, meta.attachment_size, out);
}

char* EncodeTrpcResponse(const TrpcResponseMeta& meta, char* out) {
  out = PutOptionalVarint(1, meta.version, out);
  out = PutOptionalVarint(2, meta.call_type, out);
  out = PutOptionalVarint(3, meta.request_id, out);
  out = PutOptionalVarint(4, SignExtended(meta.ret), out);
  out = PutOptionalVarint(5, SignExtended(meta.func_ret), out);
  out = PutOptionalBytes(6, meta.error_msg, out);
  out = PutOptionalVarint(7, meta.message_type, out);
  ForEachTransInfo(meta.request, [&](std::string_view entry) {
    out = PutBytesField(kResponseTransInfo, entry, out);
  });
  out = PutOptionalVarint(9, meta.content_type, out);
  out = PutOptionalVarint(10, meta.content_encoding, out);
  return PutOptionalVarint(12, meta.attachment_size, out);
}

}  // namespace flare::rpc

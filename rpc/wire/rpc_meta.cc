#include "flare/rpc/wire/rpc_meta.h"

#include <cstring>

#include "flare/rpc/wire/protobuf_fields.h"

namespace flare::rpc {

namespace {

using fields::FieldReader;
using fields::kLengthDelimited;
using fields::kVarint;
using fields::PutBytesField;
using fields::PutVarint;
using fields::PutVarintField;
using fields::SignExtended;
using fields::Tag;
using fields::VarintSize;

std::string_view DecodeRequestMeta(std::string_view bytes, RpcMeta* meta) {
  meta->has_request = true;
  FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(2, kLengthDelimited):
        meta->method_name = reader.Bytes();
        meta->has_method_name = reader.error().empty();
        break;
      case Tag(3, kVarint):
        meta->request_id = static_cast<std::uint32_t>(reader.Varint());
        break;
      case Tag(4, kVarint):
        meta->timeout = static_cast<std::uint32_t>(reader.Varint());
        break;
      case Tag(5, kLengthDelimited):
        meta->tracing_context = reader.Bytes();
        break;
      case Tag(6, kVarint):
        meta->acceptable_compression_algorithms = reader.Varint();
        break;
      default:
        reader.SkipField(tag);
    }
  }
  return reader.error();
}

std::string_view DecodeResponseMeta(std::string_view bytes, RpcMeta* meta) {
  meta->has_response = true;
  FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(1, kVarint):
        meta->status = static_cast<std::int32_t>(reader.Varint());
        meta->has_status = reader.error().empty();
        break;
      case Tag(2, kLengthDelimited):
        meta->description = reader.Bytes();
        break;
      case Tag(3, kVarint):
        meta->trace_forcibly_sampled = reader.Varint() != 0;
        break;
      default:
        reader.SkipField(tag);
    }
  }
  return reader.error();
}

// Of all fields but those of bytes, and of tags and lengths: seven numbers of
// 64 bits, six of 32, three flags, and the lengths of five fields.
constexpr std::size_t kMostNumbers = 7 * 12 + 6 * 7 + 3 * 3 + 5 * 6;

// A submessage whose length is known when it has been written: mostly below
// 128, so that one byte is left for it.
template <class Put>
char* PutSubmessage(std::uint32_t field, Put&& put, char* out) {
  *out++ = static_cast<char>(Tag(field, kLengthDelimited));
  char* const length = out;
  char* const begin = length + 1;
  char* const end = put(begin);
  const auto size = static_cast<std::size_t>(end - begin);
  const std::size_t more = VarintSize(size) - 1;
  if (more != 0) [[unlikely]] {
    std::memmove(begin + more, begin, size);
  }
  PutVarint(size, length);
  return end + more;
}

char* EncodeRequestMeta(const RpcMeta& meta, char* out) {
  out = PutBytesField(2, meta.method_name, out);
  if (meta.request_id != 0) out = PutVarintField(3, meta.request_id, out);
  if (meta.timeout != 0) out = PutVarintField(4, meta.timeout, out);
  if (!meta.tracing_context.empty()) {
    out = PutBytesField(5, meta.tracing_context, out);
  }
  if (meta.acceptable_compression_algorithms != 0) {
    out = PutVarintField(6, meta.acceptable_compression_algorithms, out);
  }
  return out;
}

char* EncodeResponseMeta(const RpcMeta& meta, char* out) {
  out = PutVarintField(1, SignExtended(meta.status), out);
  if (!meta.description.empty()) out = PutBytesField(2, meta.description, out);
  if (meta.trace_forcibly_sampled) out = PutVarintField(3, 1, out);
  return out;
}

// Of numbers above 15.
char* PutWideField(std::uint32_t field, std::uint64_t value, char* out) {
  return PutVarint(value, PutVarint(Tag(field, kVarint), out));
}

// Not inlined: of few messages.
[[gnu::noinline]] char* EncodeExtensions(const RpcMeta& meta, char* out) {
  if (meta.hello) out = PutWideField(1011, 1, out);
  if (meta.window != 0) out = PutWideField(1012, meta.window, out);
  if (meta.credit != 0) out = PutWideField(1013, meta.credit, out);
  if (meta.reset != 0) out = PutWideField(1014, SignExtended(meta.reset), out);
  return out;
}

}  // namespace

std::string_view DecodeRpcMeta(std::string_view bytes, RpcMeta* meta) {
  FieldReader reader(bytes);
  std::uint32_t tag;
  std::string_view nested_error;
  while (nested_error.empty() && reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(1, kVarint):
        meta->correlation_id = reader.Varint();
        meta->has_correlation_id = reader.error().empty();
        break;
      case Tag(5, kLengthDelimited):
        nested_error = DecodeRequestMeta(reader.Bytes(), meta);
        break;
      case Tag(6, kLengthDelimited):
        nested_error = DecodeResponseMeta(reader.Bytes(), meta);
        break;
      case Tag(7, kVarint):
        meta->method_type = static_cast<std::int32_t>(reader.Varint());
        meta->has_method_type = reader.error().empty();
        break;
      case Tag(8, kVarint):
        meta->flags = reader.Varint();
        break;
      case Tag(9, kVarint):
        meta->compression_algorithm =
            static_cast<std::int32_t>(reader.Varint());
        break;
      case Tag(10, kVarint):
        meta->attachment_compressed = reader.Varint() != 0;
        break;
      case Tag(1011, kVarint):
        meta->hello = reader.Varint() != 0;
        break;
      case Tag(1012, kVarint):
        meta->window = static_cast<std::uint32_t>(reader.Varint());
        break;
      case Tag(1013, kVarint):
        meta->credit = static_cast<std::uint32_t>(reader.Varint());
        break;
      case Tag(1014, kVarint):
        meta->reset = static_cast<std::int32_t>(reader.Varint());
        break;
      default:
        reader.SkipField(tag);
    }
  }
  return nested_error.empty() ? reader.error() : nested_error;
}

bool IsStreamMeta(std::string_view bytes) {
  FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag == Tag(7, kVarint)) {
      return reader.Varint() == kMethodTypeStream && reader.error().empty();
    }
    reader.SkipField(tag);
  }
  return false;
}

std::size_t RpcMetaBound(const RpcMeta& meta) {
  return kMostNumbers + meta.method_name.size() + meta.tracing_context.size() +
         meta.description.size();
}

char* EncodeRpcMeta(const RpcMeta& meta, char* out) {
  out = PutVarintField(1, meta.correlation_id, out);
  if (meta.has_request) {
    out = PutSubmessage(
        5, [&](char* at) { return EncodeRequestMeta(meta, at); }, out);
  }
  if (meta.has_response) {
    out = PutSubmessage(
        6, [&](char* at) { return EncodeResponseMeta(meta, at); }, out);
  }
  out = PutVarintField(7, SignExtended(meta.method_type), out);
  if (meta.flags != 0) out = PutVarintField(8, meta.flags, out);
  if (meta.compression_algorithm != 0) {
    out = PutVarintField(9, SignExtended(meta.compression_algorithm), out);
  }
  if (meta.attachment_compressed) out = PutVarintField(10, 1, out);
  if (meta.has_extensions()) [[unlikely]]
    out = EncodeExtensions(meta, out);
  return out;
}

}  // namespace flare::rpc

#include "flare/rpc/protocol/rpc_meta.h"

#include <bit>
#include <cstring>

namespace flare::rpc {

namespace {

// Protobuf's wire types.
constexpr std::uint32_t kVarint = 0;
constexpr std::uint32_t kFixed64 = 1;
constexpr std::uint32_t kLengthDelimited = 2;
constexpr std::uint32_t kFixed32 = 5;

constexpr std::uint32_t Tag(std::uint32_t field, std::uint32_t wire_type) {
  return field << 3 | wire_type;
}

// Protobuf takes no length of 2 GiB or more.
constexpr std::uint64_t kMaxLength = 0x7fffffff - 16;

// Reads one field after the other. After a fault everything reads as zero and
// `error` says what it was.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  std::string_view error() const { return error_; }

  // False at the end and after a fault.
  bool NextTag(std::uint32_t* tag) {
    if (at_ == end_ || !error_.empty()) return false;
    // As protobuf does, the bits of the fifth byte beyond 32 are dropped.
    *tag = static_cast<std::uint32_t>(Varint(5));
    if (error_.empty() && *tag >> 3 == 0) Fail("a field has number 0");
    return error_.empty();
  }

  std::uint64_t Varint(int max_bytes = 10) {
    std::uint64_t value = 0;
    for (int i = 0; i != max_bytes; ++i) {
      if (at_ == end_) return Fail("a number is cut off");
      auto byte = static_cast<std::uint8_t>(*at_++);
      value |= std::uint64_t{byte & 0x7fu} << (7 * i);
      if (byte < 0x80) return value;
    }
    return Fail("a number has too many bytes");
  }

  std::string_view Bytes() {
    std::uint64_t size = Varint();
    if (size > kMaxLength || size > static_cast<std::uint64_t>(end_ - at_)) {
      Fail("a length runs past the end");
      return {};
    }
    std::string_view bytes(at_, size);
    at_ += size;
    return bytes;
  }

  void SkipField(std::uint32_t tag) {
    switch (tag & 7) {
      case kVarint:
        Varint();
        return;
      case kFixed64:
        return SkipBytes(8);
      case kLengthDelimited:
        Bytes();
        return;
      case kFixed32:
        return SkipBytes(4);
      default:
        Fail("a field has an unknown wire type");
    }
  }

  std::uint64_t Fail(std::string_view what) {
    if (error_.empty()) error_ = what;
    at_ = end_;
    return 0;
  }

 private:
  void SkipBytes(std::ptrdiff_t n) {
    if (end_ - at_ < n) {
      Fail("a fixed-size field is cut off");
    } else {
      at_ += n;
    }
  }

  const char* at_;
  const char* const end_;
  std::string_view error_;
};

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

constexpr std::size_t VarintSize(std::uint64_t value) {
  return (std::bit_width(value | 1) + 6) / 7;
}

// A negative int32 is sign-extended to ten bytes, as protobuf does.
constexpr std::uint64_t SignExtended(std::int32_t value) {
  return static_cast<std::uint64_t>(std::int64_t{value});
}

char* PutVarint(std::uint64_t value, char* out) {
  while (value >= 0x80) {
    *out++ = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *out++ = static_cast<char>(value);
  return out;
}

// All tags of the schema fit in one byte.
char* PutVarintField(std::uint32_t field, std::uint64_t value, char* out) {
  *out++ = static_cast<char>(Tag(field, kVarint));
  return PutVarint(value, out);
}

char* PutLength(std::uint32_t field, std::size_t size, char* out) {
  *out++ = static_cast<char>(Tag(field, kLengthDelimited));
  return PutVarint(size, out);
}

char* PutBytesField(std::uint32_t field, std::string_view bytes, char* out) {
  out = PutLength(field, bytes.size(), out);
  if (!bytes.empty()) std::memcpy(out, bytes.data(), bytes.size());
  return out + bytes.size();
}

constexpr std::size_t OptionalVarintFieldSize(std::uint64_t value) {
  return value == 0 ? 0 : 1 + VarintSize(value);
}

constexpr std::size_t BytesFieldSize(std::size_t size) {
  return 1 + VarintSize(size) + size;
}

constexpr std::size_t OptionalBytesFieldSize(std::string_view bytes) {
  return bytes.empty() ? 0 : BytesFieldSize(bytes.size());
}

std::size_t RequestMetaSize(const RpcMeta& meta) {
  return BytesFieldSize(meta.method_name.size()) +
         OptionalVarintFieldSize(meta.request_id) +
         OptionalVarintFieldSize(meta.timeout) +
         OptionalBytesFieldSize(meta.tracing_context) +
         OptionalVarintFieldSize(meta.acceptable_compression_algorithms);
}

std::size_t ResponseMetaSize(const RpcMeta& meta) {
  return 1 + VarintSize(SignExtended(meta.status)) +
         OptionalBytesFieldSize(meta.description) +
         (meta.trace_forcibly_sampled ? 2 : 0);
}

char* EncodeRequestMeta(const RpcMeta& meta, char* out) {
  out = PutLength(5, RequestMetaSize(meta), out);
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
  out = PutLength(6, ResponseMetaSize(meta), out);
  out = PutVarintField(1, SignExtended(meta.status), out);
  if (!meta.description.empty()) out = PutBytesField(2, meta.description, out);
  if (meta.trace_forcibly_sampled) out = PutVarintField(3, 1, out);
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
      default:
        reader.SkipField(tag);
    }
  }
  return nested_error.empty() ? reader.error() : nested_error;
}

std::size_t RpcMetaSize(const RpcMeta& meta) {
  return 1 + VarintSize(meta.correlation_id) +
         (meta.has_request ? BytesFieldSize(RequestMetaSize(meta)) : 0) +
         (meta.has_response ? BytesFieldSize(ResponseMetaSize(meta)) : 0) + 1 +
         VarintSize(SignExtended(meta.method_type)) +
         OptionalVarintFieldSize(meta.flags) +
         OptionalVarintFieldSize(SignExtended(meta.compression_algorithm)) +
         (meta.attachment_compressed ? 2 : 0);
}

char* EncodeRpcMeta(const RpcMeta& meta, char* out) {
  out = PutVarintField(1, meta.correlation_id, out);
  if (meta.has_request) out = EncodeRequestMeta(meta, out);
  if (meta.has_response) out = EncodeResponseMeta(meta, out);
  out = PutVarintField(7, SignExtended(meta.method_type), out);
  if (meta.flags != 0) out = PutVarintField(8, meta.flags, out);
  if (meta.compression_algorithm != 0) {
    out = PutVarintField(9, SignExtended(meta.compression_algorithm), out);
  }
  if (meta.attachment_compressed) out = PutVarintField(10, 1, out);
  return out;
}

}  // namespace flare::rpc

#include "flare/rpc/wire/baidu_std_meta.h"

#include <charconv>

#include "flare/base/string.h"
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
using fields::VarintSize;

std::string_view DecodeRequest(std::string_view bytes, BaiduStdMeta* meta) {
  meta->has_request = true;
  FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        meta->service_name = reader.Bytes();
        meta->has_service_name = reader.error().empty();
        break;
      case Tag(2, kLengthDelimited):
        meta->method_name = reader.Bytes();
        meta->has_method_name = reader.error().empty();
        break;
      case Tag(8, kVarint):
        meta->timeout_ms = reader.Int32();
        break;
      default:
        reader.SkipField(tag);
    }
  }
  return reader.error();
}

std::string_view DecodeResponse(std::string_view bytes, BaiduStdMeta* meta) {
  meta->has_response = true;
  FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(1, kVarint):
        meta->error_code = reader.Int32();
        break;
      case Tag(2, kLengthDelimited):
        meta->error_text = reader.Bytes();
        break;
      default:
        reader.SkipField(tag);
    }
  }
  return reader.error();
}

std::size_t RequestSize(const BaiduStdMeta& meta) {
  return BytesFieldSize(meta.service_name.size()) +
         BytesFieldSize(meta.method_name.size()) +
         OptionalVarintFieldSize(SignExtended(meta.timeout_ms));
}

std::size_t ResponseSize(const BaiduStdMeta& meta) {
  return 1 + VarintSize(SignExtended(meta.error_code)) +
         OptionalBytesFieldSize(meta.error_text);
}

char* EncodeRequest(const BaiduStdMeta& meta, char* out) {
  out = PutLength(1, RequestSize(meta), out);
  out = PutBytesField(1, meta.service_name, out);
  out = PutBytesField(2, meta.method_name, out);
  if (meta.timeout_ms != 0) {
    out = PutVarintField(8, SignExtended(meta.timeout_ms), out);
  }
  return out;
}

char* EncodeResponse(const BaiduStdMeta& meta, char* out) {
  out = PutLength(2, ResponseSize(meta), out);
  out = PutVarintField(1, SignExtended(meta.error_code), out);
  if (!meta.error_text.empty()) out = PutBytesField(2, meta.error_text, out);
  return out;
}

// user_fields are a map of strings; this is the one key that we know.
constexpr std::string_view kOwnErrorCode = "Rpc-Error-Code";

// A fault in it is nobody's business: the entries are the users'.
void DecodeUserField(std::string_view bytes, BaiduStdMeta* meta) {
  std::string_view key;
  std::string_view value;
  FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        key = reader.Bytes();
        break;
      case Tag(2, kLengthDelimited):
        value = reader.Bytes();
        break;
      default:
        reader.SkipField(tag);
    }
  }
  if (key != kOwnErrorCode) return;
  meta->own_error_code = TryParse<std::int32_t>(value).value_or(0);
}

// Those of the own error code as a number.
class CodeText {
 public:
  explicit CodeText(std::int32_t code)
      : size_(static_cast<std::size_t>(
            std::to_chars(digits_, digits_ + sizeof(digits_), code).ptr -
            digits_)) {}
  std::string_view text() const { return {digits_, size_}; }
  std::size_t entry_size() const {
    return BytesFieldSize(kOwnErrorCode.size()) + BytesFieldSize(size_);
  }

 private:
  char digits_[11];
  const std::size_t size_;
};

std::size_t UserFieldSize(const BaiduStdMeta& meta) {
  return meta.own_error_code == 0
             ? 0
             : BytesFieldSize(CodeText(meta.own_error_code).entry_size());
}

char* EncodeUserField(const BaiduStdMeta& meta, char* out) {
  const CodeText code(meta.own_error_code);
  out = PutLength(9, code.entry_size(), out);
  out = PutBytesField(1, kOwnErrorCode, out);
  return PutBytesField(2, code.text(), out);
}

bool WritesCompressType(const BaiduStdMeta& meta) {
  return meta.compress_type != 0 || meta.has_request;
}

}  // namespace

std::string_view DecodeBaiduStdMeta(std::string_view bytes,
                                    BaiduStdMeta* meta) {
  FieldReader reader(bytes);
  std::uint32_t tag;
  std::string_view nested_error;
  while (nested_error.empty() && reader.NextTag(&tag)) {
    switch (tag) {
      case Tag(1, kLengthDelimited):
        nested_error = DecodeRequest(reader.Bytes(), meta);
        break;
      case Tag(2, kLengthDelimited):
        nested_error = DecodeResponse(reader.Bytes(), meta);
        break;
      case Tag(3, kVarint):
        meta->compress_type = reader.Int32();
        break;
      case Tag(4, kVarint):
        meta->correlation_id = reader.Varint();
        meta->has_correlation_id = reader.error().empty();
        break;
      case Tag(5, kVarint):
        meta->attachment_size = reader.Int32();
        break;
      case Tag(8, kLengthDelimited):
        meta->has_stream_settings = true;
        reader.SkipField(tag);
        break;
      case Tag(9, kLengthDelimited):
        DecodeUserField(reader.Bytes(), meta);
        break;
      case Tag(10, kVarint):
        meta->content_type = reader.Int32();
        break;
      case Tag(11, kVarint):
        meta->checksum_type = reader.Int32();
        break;
      case Tag(12, kLengthDelimited):
        meta->checksum_value = reader.Bytes();
        break;
      case Tag(13, kVarint):
        meta->checksum_with_attachment = reader.Varint() != 0;
        break;
      default:
        reader.SkipField(tag);
    }
  }
  return nested_error.empty() ? reader.error() : nested_error;
}

std::size_t BaiduStdMetaSize(const BaiduStdMeta& meta) {
  return (meta.has_request ? BytesFieldSize(RequestSize(meta)) : 0) +
         (meta.has_response ? BytesFieldSize(ResponseSize(meta)) : 0) +
         (WritesCompressType(meta)
              ? 1 + VarintSize(SignExtended(meta.compress_type))
              : 0) +
         1 + VarintSize(meta.correlation_id) +
         OptionalVarintFieldSize(SignExtended(meta.attachment_size)) +
         UserFieldSize(meta) +
         OptionalVarintFieldSize(SignExtended(meta.content_type));
}

char* EncodeBaiduStdMeta(const BaiduStdMeta& meta, char* out) {
  if (meta.has_request) out = EncodeRequest(meta, out);
  if (meta.has_response) out = EncodeResponse(meta, out);
  if (WritesCompressType(meta)) {
    out = PutVarintField(3, SignExtended(meta.compress_type), out);
  }
  out = PutVarintField(4, meta.correlation_id, out);
  if (meta.attachment_size != 0) {
    out = PutVarintField(5, SignExtended(meta.attachment_size), out);
  }
  if (meta.own_error_code != 0) out = EncodeUserField(meta, out);
  if (meta.content_type != 0) {
    out = PutVarintField(10, SignExtended(meta.content_type), out);
  }
  return out;
}

}  // namespace flare::rpc

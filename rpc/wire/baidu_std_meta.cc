#include "flare/rpc/wire/baidu_std_meta.h"

#include <charconv>

#include "flare/base/string.h"
#include "flare/rpc/wire/meta_codec.h"
#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

namespace {

using codec::Field;
using codec::kAlways;
using codec::kNever;
using fields::BytesFieldSize;
using fields::FieldReader;
using fields::kLengthDelimited;
using fields::Tag;

// Those of the own error code as a number.
class CodeText {
 public:
  explicit CodeText(std::int32_t code)
      : size_(static_cast<std::size_t>(
            std::to_chars(digits_, digits_ + sizeof(digits_), code).ptr -
            digits_)) {}
  std::string_view text() const { return {digits_, size_}; }

 private:
  char digits_[11];
  const std::size_t size_;
};

// user_fields, a map of strings: metadata, and in front of it a key of our own.
struct UserFields {
  static constexpr std::uint32_t kNumber = 9;
  static constexpr std::uint32_t kTag = Tag(kNumber, kLengthDelimited);
  [[maybe_unused]] static constexpr std::size_t kMost = 0;
  static constexpr std::string_view kOwnErrorCode = "Rpc-Error-Code";

  // A fault in an entry is nobody's business: they are the users'.
  static void Read(std::string_view message, FieldReader* reader,
                   BaiduStdMeta* meta, std::string_view* /*fault*/) {
    const std::string_view entry = reader->Bytes();
    if (!reader->error().empty()) return;
    const auto [key, value] = DecodeMetadataEntry(entry);
    if (key == kOwnErrorCode) {
      meta->own_error_code = TryParse<std::int32_t>(value).value_or(0);
    } else {
      CountMetadataField(entry, MetadataValues::kText, kTag, message,
                         &meta->metadata);
    }
  }

  static std::size_t Size(const BaiduStdMeta& meta) {
    std::size_t size = 0;
    if (meta.own_error_code != 0) {
      size = BytesFieldSize(EntrySize(CodeText(meta.own_error_code)));
    }
    if (meta.metadata.written != nullptr) [[unlikely]] {
      size += MetadataFieldsSize(*meta.metadata.written, MetadataValues::kText,
                                 kTag);
    }
    return size;
  }
  static std::size_t TextSize(const BaiduStdMeta& meta) { return Size(meta); }

  static char* Put(const BaiduStdMeta& meta, char* out) {
    if (meta.own_error_code != 0) {
      const CodeText code(meta.own_error_code);
      out = fields::PutLength(kNumber, EntrySize(code), out);
      out = fields::PutBytesField(1, kOwnErrorCode, out);
      out = fields::PutBytesField(2, code.text(), out);
    }
    if (meta.metadata.written == nullptr) [[likely]]
      return out;
    return PutMetadataFields(*meta.metadata.written, MetadataValues::kText,
                             kTag, out);
  }

 private:
  static std::size_t EntrySize(const CodeText& code) {
    return BytesFieldSize(kOwnErrorCode.size()) +
           BytesFieldSize(code.text().size());
  }
};

// Written with each request, even if it is 0, as published clients do.
struct CompressTypeField : Field<3, &BaiduStdMeta::compress_type> {
  using Always = Field<3, &BaiduStdMeta::compress_type, kAlways>;

  static std::size_t Size(const BaiduStdMeta& meta) {
    return meta.has_request ? Always::Size(meta) : Field::Size(meta);
  }
  static char* Put(const BaiduStdMeta& meta, char* out) {
    return meta.has_request ? Always::Put(meta, out) : Field::Put(meta, out);
  }
};

using BaiduRequestCodec =
    codec::Message<Field<1, &BaiduStdMeta::service_name, kAlways,
                         &BaiduStdMeta::has_service_name>,
                   Field<2, &BaiduStdMeta::method_name, kAlways,
                         &BaiduStdMeta::has_method_name>,
                   Field<3, &BaiduStdMeta::log_id>,  //
                   Field<8, &BaiduStdMeta::timeout_ms>>;

using BaiduResponseCodec =
    codec::Message<Field<1, &BaiduStdMeta::error_code, kAlways>,
                   Field<2, &BaiduStdMeta::error_text>>;

using StreamSettingsCodec =
    codec::Message<Field<1, &BaiduStdMeta::stream_id, kAlways>,
                   Field<2, &BaiduStdMeta::stream_needs_feedback>,
                   Field<3, &BaiduStdMeta::stream_writable>,
                   Field<1000, &BaiduStdMeta::stream_window>>;

using BaiduMetaCodec = codec::Message<
    codec::Submessage<1, &BaiduStdMeta::has_request, BaiduRequestCodec>,
    codec::Submessage<2, &BaiduStdMeta::has_response, BaiduResponseCodec>,
    CompressTypeField,
    Field<4, &BaiduStdMeta::correlation_id, kAlways,
          &BaiduStdMeta::has_correlation_id>,
    Field<5, &BaiduStdMeta::attachment_size>,  //
    codec::Submessage<8, &BaiduStdMeta::has_stream_settings,
                      StreamSettingsCodec>,
    UserFields,  //
    Field<10, &BaiduStdMeta::content_type>,
    Field<11, &BaiduStdMeta::checksum_type, kNever>,
    Field<12, &BaiduStdMeta::checksum_value, kNever>,
    Field<13, &BaiduStdMeta::checksum_with_attachment, kNever>,
    Field<1000, &BaiduStdMeta::notice>>;

}  // namespace

std::string_view DecodeBaiduStdMeta(std::string_view bytes,
                                    BaiduStdMeta* meta) {
  return BaiduMetaCodec::Decode(bytes, meta);
}

bool HasStreamSettings(std::string_view bytes) {
  return fields::HasField(Tag(8, kLengthDelimited), bytes);
}

bool HasNotice(std::string_view bytes) {
  return fields::HasField(Tag(1000, fields::kVarint), bytes);
}

std::uint64_t CorrelationIdOf(std::string_view bytes) {
  FieldReader reader(bytes);
  std::uint32_t tag;
  std::uint64_t id = 0;
  while (reader.NextTag(&tag)) {
    if (tag == Tag(4, fields::kVarint)) {
      id = reader.Varint();
    } else {
      reader.SkipField(tag);
    }
  }
  return id;
}

std::size_t BaiduStdMetaSize(const BaiduStdMeta& meta) {
  return BaiduMetaCodec::Size(meta);
}

char* EncodeBaiduStdMeta(const BaiduStdMeta& meta, char* out) {
  return BaiduMetaCodec::Encode(meta, out);
}

}  // namespace flare::rpc

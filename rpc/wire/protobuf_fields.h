// Protobuf's binary encoding, field by field: the reader and writer for tables
// of fields (meta_codec.h) and for messages without a table.
//
//   fields::FieldReader reader(bytes);
//   std::uint32_t tag;
//   while (reader.NextTag(&tag)) {
//     switch (tag) {
//       case fields::Tag(1, fields::kVarint):
//         id = reader.Varint();
//         break;
//       default:
//         reader.SkipField(tag);
//     }
//   }
//   if (!reader.error().empty()) { ...malformed... }
//
// Accepts the same input as protobuf's own parser, except that groups are
// errors. Pure functions on memory of the caller: nothing allocates, blocks or
// locks.
#ifndef FLARE_RPC_WIRE_PROTOBUF_FIELDS_H_
#define FLARE_RPC_WIRE_PROTOBUF_FIELDS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace flare::rpc::fields {

// Protobuf's wire types.
inline constexpr std::uint32_t kVarint = 0;
inline constexpr std::uint32_t kFixed64 = 1;
inline constexpr std::uint32_t kLengthDelimited = 2;
inline constexpr std::uint32_t kFixed32 = 5;

constexpr std::uint32_t Tag(std::uint32_t field, std::uint32_t wire_type) {
  return field << 3 | wire_type;
}

// Protobuf takes no length of 2 GiB or more.
inline constexpr std::uint64_t kMaxLength = 0x7fffffff - 16;

// Reads one field after the other. After a fault everything reads as zero and
// `error` names the cause.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  std::string_view error() const { return error_; }

  // False at the end and after a fault.
  bool NextTag(std::uint32_t* tag) {
    if (at_ == end_) return false;
    const auto byte = static_cast<std::uint8_t>(*at_);
    if (byte < 8 || byte >= 0x80) [[unlikely]]
      return NextOddTag(tag);
    ++at_;
    *tag = byte;
    return true;
  }

  std::uint64_t Varint(int max_bytes = 10) {
    // Most tags and numbers have one byte.
    if (at_ != end_ && static_cast<std::uint8_t>(*at_) < 0x80) [[likely]] {
      return static_cast<std::uint8_t>(*at_++);
    }
    return LongVarint(max_bytes);
  }

  // For the types int32 and uint32.
  std::int32_t Int32() { return static_cast<std::int32_t>(Varint()); }
  std::uint32_t Uint32() { return static_cast<std::uint32_t>(Varint()); }

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
  // A tag of more than one byte, or of field 0.
  bool NextOddTag(std::uint32_t* tag) {
    // As protobuf does, the bits of the fifth byte beyond 32 are dropped.
    *tag = static_cast<std::uint32_t>(Varint(5));
    if (error_.empty() && *tag >> 3 == 0) Fail("a field has number 0");
    return error_.empty();
  }

  // Kept out of line, so that Varint() is inlined.
  [[gnu::noinline]] std::uint64_t LongVarint(int max_bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i != max_bytes; ++i) {
      if (at_ == end_) return Fail("a number is cut off");
      auto byte = static_cast<std::uint8_t>(*at_++);
      value |= std::uint64_t{byte & 0x7fu} << (7 * i);
      if (byte < 0x80) return value;
    }
    return Fail("a number has too many bytes");
  }

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

// Whether a message has that field, in front of its first fault.
inline bool HasField(std::uint32_t wanted, std::string_view message) {
  FieldReader reader(message);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag == wanted) return true;
    reader.SkipField(tag);
  }
  return false;
}

// --- writing: sizes in bytes, and functions that return the end ---

// The most bytes of a length: protobuf takes none of 2 GiB.
inline constexpr std::size_t kMostOfLength = 5;

constexpr std::size_t VarintSize(std::uint64_t value) {
  return (std::bit_width(value | 1) + 6) / 7;
}

// A negative int32 is sign-extended to ten bytes, as protobuf does.
constexpr std::uint64_t SignExtended(std::int32_t value) {
  return static_cast<std::uint64_t>(std::int64_t{value});
}

inline char* PutVarint(std::uint64_t value, char* out) {
  while (value >= 0x80) {
    *out++ = static_cast<char>(value | 0x80);
    value >>= 7;
  }
  *out++ = static_cast<char>(value);
  return out;
}

// For fields below 16, whose tags fit in one byte.
inline char* PutVarintField(std::uint32_t field, std::uint64_t value,
                            char* out) {
  *out++ = static_cast<char>(Tag(field, kVarint));
  return PutVarint(value, out);
}

// For any field; the compiler knows `tag`, mostly.
inline char* PutTag(std::uint32_t tag, char* out) {
  if (tag < 0x80) {
    *out++ = static_cast<char>(tag);
    return out;
  }
  return PutVarint(tag, out);
}

// The length, and the bytes.
inline char* PutText(std::string_view text, char* out) {
  out = PutVarint(text.size(), out);
  if (!text.empty()) std::memcpy(out, text.data(), text.size());
  return out + text.size();
}

inline char* PutLength(std::uint32_t field, std::size_t size, char* out) {
  *out++ = static_cast<char>(Tag(field, kLengthDelimited));
  return PutVarint(size, out);
}

inline char* PutBytesField(std::uint32_t field, std::string_view bytes,
                           char* out) {
  *out++ = static_cast<char>(Tag(field, kLengthDelimited));
  return PutText(bytes, out);
}

constexpr std::size_t BytesFieldSize(std::size_t size) {
  return 1 + VarintSize(size) + size;
}

}  // namespace flare::rpc::fields

#endif  // FLARE_RPC_WIRE_PROTOBUF_FIELDS_H_

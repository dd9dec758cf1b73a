// The metas of binary protocols as tables: each lists its fields once, by
// number and member, and reading, writing and sizes follow from that when the
// table is compiled.
//
//   struct PingMeta {
//     std::uint64_t id = 0;
//     bool has_id = false;
//     std::int32_t code = 0;
//     std::string_view text;
//   };
//   using PingCodec = codec::Message<
//       codec::Field<1, &PingMeta::id, codec::kAlways, &PingMeta::has_id>,
//       codec::Field<2, &PingMeta::code>,
//       codec::Field<5, &PingMeta::text>>;
//
//   std::string_view error = PingCodec::Decode(bytes, &meta);
//   char* end = PingCodec::Encode(meta, out);  // At most Bound(meta) bytes.
//
// A field's type of encoding follows from its member's: numbers and bool are
// varints, texts are views into the bytes that were decoded. Negative numbers
// of 32 bits take ten bytes, as protobuf has them. Fields are written in the
// table's order.
//
// A field that encodes something else than its member is a class of its own,
// with the constants and functions of Field; `Message` takes any such classes.
//
// Pure functions on memory of the caller: nothing allocates, blocks or locks.
#ifndef FLARE_RPC_WIRE_META_CODEC_H_
#define FLARE_RPC_WIRE_META_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "flare/rpc/wire/protobuf_fields.h"

namespace flare::rpc::codec {

// When a field is written.
enum Written {
  kIfSet,  // Its member isn't 0, false or empty.
  kAlways,
  kNever,  // It is only read.
};

template <class Member>
struct MemberOf;
template <class M, class V>
struct MemberOf<V M::*> {
  using Meta = M;
  using Value = V;
};

constexpr std::uint64_t ToVarint(std::int32_t value) {
  return fields::SignExtended(value);
}
constexpr std::uint64_t ToVarint(std::uint32_t value) { return value; }
constexpr std::uint64_t ToVarint(std::uint64_t value) { return value; }
constexpr std::uint64_t ToVarint(bool value) { return value ? 1 : 0; }

// Bytes of the largest such number.
template <class Value>
inline constexpr std::size_t kMostOf =
    std::is_same_v<Value, bool>            ? 1
    : std::is_same_v<Value, std::uint32_t> ? 5
                                           : 10;

// One field. `kPresent`, if given, is a bool member that tells that the field
// was read.
template <std::uint32_t kNumber, auto kMember, Written kWritten = kIfSet,
          auto kPresent = nullptr>
struct Field {
  using Meta = typename MemberOf<decltype(kMember)>::Meta;
  using Value = typename MemberOf<decltype(kMember)>::Value;
  static constexpr bool kIsText = std::is_same_v<Value, std::string_view>;
  static constexpr std::uint32_t kTag = fields::Tag(
      kNumber, kIsText ? fields::kLengthDelimited : fields::kVarint);
  // The size of all except a text's bytes.
  static constexpr std::size_t kMost =
      kWritten == kNever
          ? 0
          : fields::VarintSize(kTag) +
                (kIsText ? fields::kMostOfLength : kMostOf<Value>);

  // Reads the field behind its tag. `message` is the message it is in. Sets
  // *fault to the fault inside of it; other faults are `reader`'s.
  static void Read(std::string_view /*message*/, fields::FieldReader* reader,
                   Meta* meta, std::string_view* /*fault*/) {
    if constexpr (kIsText) {
      meta->*kMember = reader->Bytes();
    } else if constexpr (std::is_same_v<Value, bool>) {
      meta->*kMember = reader->Varint() != 0;
    } else {
      meta->*kMember = static_cast<Value>(reader->Varint());
    }
    if constexpr (!std::is_null_pointer_v<decltype(kPresent)>) {
      meta->*kPresent = reader->error().empty();
    }
  }

  static Value ValueOf(const Meta& meta) { return meta.*kMember; }

  static bool IsWritten(const Meta& meta) {
    if constexpr (kWritten == kIfSet) {
      return meta.*kMember != Value();
    } else {
      return kWritten == kAlways;
    }
  }

  static char* Put(const Meta& meta, char* out) {
    if (!IsWritten(meta)) return out;
    out = fields::PutTag(kTag, out);
    if constexpr (kIsText) {
      return fields::PutText(meta.*kMember, out);
    } else {
      return fields::PutVarint(ToVarint(meta.*kMember), out);
    }
  }

  static std::size_t Size(const Meta& meta) {
    if (!IsWritten(meta)) return 0;
    if constexpr (kIsText) {
      const std::size_t size = (meta.*kMember).size();
      return fields::VarintSize(kTag) + fields::VarintSize(size) + size;
    } else {
      return fields::VarintSize(kTag) +
             fields::VarintSize(ToVarint(meta.*kMember));
    }
  }

  // The part that isn't in kMost.
  static std::size_t TextSize(const Meta& meta) {
    if constexpr (kIsText && kWritten != kNever) {
      return (meta.*kMember).size();
    } else {
      return 0;
    }
  }
};

// Fields that few messages have: one test finds that there are none. Their
// members are numbers and bools.
template <class... Fields>
struct Rare {
  static constexpr std::size_t kMost = (0 + ... + Fields::kMost);

  // Whether the tag is one of theirs, which were then read.
  template <class Meta>
  [[gnu::noinline]] static bool TryRead(std::uint32_t tag,
                                        std::string_view message,
                                        fields::FieldReader* reader, Meta* meta,
                                        std::string_view* fault) {
    return ((tag == Fields::kTag &&
             (Fields::Read(message, reader, meta, fault), true)) ||
            ...);
  }

  template <class Meta>
  static char* Put(const Meta& meta, char* out) {
    const std::uint64_t any =
        (0 | ... | static_cast<std::uint64_t>(Fields::ValueOf(meta)));
    if (any == 0) [[likely]]
      return out;
    return PutAll(meta, out);
  }

  template <class Meta>
  static std::size_t Size(const Meta& meta) {
    return (0 + ... + Fields::Size(meta));
  }
  template <class Meta>
  static std::size_t TextSize(const Meta&) {
    return 0;
  }

 private:
  template <class Meta>
  [[gnu::noinline]] static char* PutAll(const Meta& meta, char* out) {
    ((out = Fields::Put(meta, out)), ...);
    return out;
  }
};

// Reads the field, or one of the Rare ones, if the tag says so.
template <class F, class Meta>
[[gnu::always_inline]] inline bool TryRead(std::uint32_t tag,
                                           std::string_view message,
                                           fields::FieldReader* reader,
                                           Meta* meta,
                                           std::string_view* fault) {
  if constexpr (requires { F::kTag; }) {
    if (tag != F::kTag) return false;
    F::Read(message, reader, meta, fault);
    return true;
  } else {
    return F::TryRead(tag, message, reader, meta, fault);
  }
}

// The fields of one message.
template <class... Fields>
struct Message {
  // Decodes `bytes` into *meta, which must be fresh. Returns an empty text or
  // the encoding's fault; *meta then holds the fields in front of the fault.
  // Accepts the same input as protobuf's own parser, except that groups are
  // errors. Unknown fields are skipped.
  template <class Meta>
  [[nodiscard, gnu::always_inline]] static std::string_view Decode(
      std::string_view bytes, Meta* meta) {
    fields::FieldReader reader(bytes);
    std::uint32_t tag;
    std::string_view fault;
    while (fault.empty() && reader.NextTag(&tag)) {
      if (!(TryRead<Fields>(tag, bytes, &reader, meta, &fault) || ...)) {
        reader.SkipField(tag);
      }
    }
    return fault.empty() ? reader.error() : fault;
  }

  // The bytes of the encoding, and no fewer than that; the second is cheaper.
  template <class Meta>
  static std::size_t Size(const Meta& meta) {
    return (0 + ... + Fields::Size(meta));
  }
  template <class Meta>
  static std::size_t Bound(const Meta& meta) {
    return kMost + TextSize(meta);
  }
  static constexpr std::size_t kMost = (0 + ... + Fields::kMost);
  template <class Meta>
  static std::size_t TextSize(const Meta& meta) {
    return (0 + ... + Fields::TextSize(meta));
  }

  // Writes the encoding to `out` and returns its end.
  template <class Meta>
  [[gnu::always_inline]] static char* Encode(const Meta& meta, char* out) {
    ((out = Fields::Put(meta, out)), ...);
    return out;
  }
};

// A message within the message, whose fields are members of the same meta.
// `kPresent` says whether it was there, and whether to write it.
template <std::uint32_t kNumber, auto kPresent, class Inner>
struct Submessage {
  using Meta = typename MemberOf<decltype(kPresent)>::Meta;
  static constexpr std::uint32_t kTag =
      fields::Tag(kNumber, fields::kLengthDelimited);
  static constexpr std::size_t kMost =
      fields::VarintSize(kTag) + fields::kMostOfLength + Inner::kMost;

  static void Read(std::string_view /*message*/, fields::FieldReader* reader,
                   Meta* meta, std::string_view* fault) {
    meta->*kPresent = true;
    *fault = Inner::Decode(reader->Bytes(), meta);
  }

  // Its length is known when it has been written: mostly below 128, so that one
  // byte is left for it.
  [[gnu::always_inline]] static char* Put(const Meta& meta, char* out) {
    if (!(meta.*kPresent)) return out;
    char* const length = fields::PutTag(kTag, out);
    char* const begin = length + 1;
    char* const end = Inner::Encode(meta, begin);
    const auto size = static_cast<std::size_t>(end - begin);
    const std::size_t more = fields::VarintSize(size) - 1;
    if (more != 0) [[unlikely]] {
      std::memmove(begin + more, begin, size);
    }
    fields::PutVarint(size, length);
    return end + more;
  }

  static std::size_t Size(const Meta& meta) {
    if (!(meta.*kPresent)) return 0;
    const std::size_t size = Inner::Size(meta);
    return fields::VarintSize(kTag) + fields::VarintSize(size) + size;
  }
  static std::size_t TextSize(const Meta& meta) {
    return Inner::TextSize(meta);
  }
};

}  // namespace flare::rpc::codec

#endif  // FLARE_RPC_WIRE_META_CODEC_H_

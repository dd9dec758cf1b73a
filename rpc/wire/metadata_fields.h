// Metadata as protocols have it: entries {1: name, 2: value} of a repeated
// field of a binary meta (protobuf's form of a map), and values as text where a
// protocol has only that. There binary values are base64, as in gRPC.
//
// A message from a peer is counted first, by announced sizes, and becomes a
// Metadata if it is within the limits. Pure functions on memory of the caller;
// nothing blocks, and only TakeMetadata() and texts of binary values allocate.
#ifndef FLARE_RPC_WIRE_METADATA_FIELDS_H_
#define FLARE_RPC_WIRE_METADATA_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "flare/rpc/metadata.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/wire/meta_codec.h"
#include "flare/rpc/wire/protobuf_fields.h"

namespace flare::rpc {

// --- limits ---

// The content of a future message; for checks before there is memory for it.
struct MetadataCount {
  std::size_t entries = 0;
  std::size_t bytes = 0;  // Bytes of names and values.

  void Add(std::string_view name, std::size_t value_size) {
    ++entries;
    bytes += name.size() + value_size;
  }
};

// Why that is too much, or an empty text.
std::string CheckMetadata(const MetadataCount& count,
                          const MetadataLimits& limits);

// --- values as text ---

// The value as text; of a binary one that is base64, put into *scratch.
std::string_view MetadataText(Metadata::Entry entry, std::string* scratch);
std::size_t MetadataTextSize(Metadata::Entry entry);
// As IsBinaryMetadata(), but in any case, as names come from a peer.
bool IsBinaryMetadataName(std::string_view name);
// How long the value is of which `text` is the text. At most: without looking.
std::size_t MetadataValueSize(std::string_view name, std::string_view text);
// Like AddReceived(), for a value as text. One that should be base64, and
// isn't, is taken as it is.
bool AddMetadataText(std::string_view name, std::string_view text,
                     Metadata* metadata);

// --- a repeated field of a meta ---

enum class MetadataValues { kBytes, kText };

// A meta's member for it.
struct MetadataFields {
  const Metadata* written = nullptr;  // To be encoded; null: nothing.
  // When decoding: how much there is, and how it is found.
  MetadataCount count;
  std::uint32_t tag = 0;
  MetadataValues values = MetadataValues::kBytes;
  std::string_view message;  // The encoded one in which it is.
};

// Adds the decoded entries to *metadata, which may be null, and remains so if
// there are none. Returns an empty text, or the fault. Entries whose names
// aren't taken by Metadata::AddReceived() are left out.
[[nodiscard]] std::string TakeMetadata(const MetadataFields& fields,
                                       const MetadataLimits& limits,
                                       std::unique_ptr<Metadata>* metadata);

struct MetadataEntry {
  std::string_view name;
  std::string_view value;
};
// The entry with this encoding; without a name if it is malformed.
MetadataEntry DecodeMetadataEntry(std::string_view bytes);

void CountMetadataField(std::string_view entry, MetadataValues values,
                        std::uint32_t tag, std::string_view message,
                        MetadataFields* fields);
std::size_t MetadataFieldsSize(const Metadata& metadata, MetadataValues values,
                               std::uint32_t tag);
char* PutMetadataFields(const Metadata& metadata, MetadataValues values,
                        std::uint32_t tag, char* out);

namespace codec {

// The field in a table; `kMember` is a MetadataFields.
template <std::uint32_t kNumber, auto kMember, MetadataValues kValues>
struct MetadataField {
  using Meta = typename MemberOf<decltype(kMember)>::Meta;
  static constexpr std::uint32_t kTag =
      fields::Tag(kNumber, fields::kLengthDelimited);
  static constexpr std::size_t kMost = 0;

  static void Read(std::string_view message, fields::FieldReader* reader,
                   Meta* meta, std::string_view* /*fault*/) {
    const std::string_view entry = reader->Bytes();
    if (reader->error().empty()) {
      CountMetadataField(entry, kValues, kTag, message, &(meta->*kMember));
    }
  }
  static char* Put(const Meta& meta, char* out) {
    const Metadata* const metadata = (meta.*kMember).written;
    if (metadata == nullptr) [[likely]]
      return out;
    return PutMetadataFields(*metadata, kValues, kTag, out);
  }
  static std::size_t Size(const Meta& meta) {
    const Metadata* const metadata = (meta.*kMember).written;
    if (metadata == nullptr) [[likely]]
      return 0;
    return MetadataFieldsSize(*metadata, kValues, kTag);
  }
  static std::size_t TextSize(const Meta& meta) { return Size(meta); }
};

}  // namespace codec

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_METADATA_FIELDS_H_

#include "flare/rpc/wire/metadata_fields.h"

#include <algorithm>
#include <optional>

#include "flare/base/string.h"
#include "flare/rpc/wire/json_scalars.h"

namespace flare::rpc {

namespace {

using fields::BytesFieldSize;
using fields::VarintSize;

std::size_t WireSizeOf(Metadata::Entry entry, MetadataValues values) {
  return values == MetadataValues::kText ? MetadataTextSize(entry)
                                         : entry.value.size();
}

std::size_t EntrySize(Metadata::Entry entry, MetadataValues values) {
  return BytesFieldSize(entry.name.size()) +
         BytesFieldSize(WireSizeOf(entry, values));
}

}  // namespace

std::string CheckMetadata(const MetadataCount& count,
                          const MetadataLimits& limits) {
  const auto exceeds = [](std::size_t n, std::string_view what,
                          std::size_t limit) {
    return "metadata of " + std::to_string(n) + std::string(what) +
           " exceeds the limit of " + std::to_string(limit);
  };
  if (count.entries > limits.entries) {
    return exceeds(count.entries, " entries", limits.entries);
  }
  if (count.bytes > limits.bytes) {
    return exceeds(count.bytes, " bytes", limits.bytes);
  }
  return {};
}

// --- values as text --------------------------------------------------------

std::size_t MetadataTextSize(Metadata::Entry entry) {
  const std::size_t size = entry.value.size();
  return IsBinaryMetadata(entry.name) ? (size * 4 + 2) / 3 : size;
}

std::string_view MetadataText(Metadata::Entry entry, std::string* scratch) {
  if (!IsBinaryMetadata(entry.name)) return entry.value;
  scratch->clear();
  for (std::string_view rest = entry.value; !rest.empty();
       rest.remove_prefix(std::min<std::size_t>(rest.size(), 3))) {
    const auto digits = Base64Digits(rest);
    scratch->append(digits.data(), digits.size());
  }
  // gRPC's senders leave out the padding of the last group.
  scratch->resize(MetadataTextSize(entry));
  return *scratch;
}

bool IsBinaryMetadataName(std::string_view name) {
  constexpr std::string_view kEnd = "-bin";
  return name.size() >= kEnd.size() &&
         IEquals(name.substr(name.size() - kEnd.size()), kEnd);
}

std::size_t MetadataValueSize(std::string_view name, std::string_view text) {
  if (!IsBinaryMetadataName(name)) return text.size();
  while (text.ends_with('=')) text.remove_suffix(1);
  return text.size() * 3 / 4;
}

bool AddMetadataText(std::string_view name, std::string_view text,
                     Metadata* metadata) {
  if (IsBinaryMetadataName(name)) {
    if (const auto value = ParseBase64(text)) {
      return metadata->AddReceived(name, *value);
    }
  }
  return metadata->AddReceived(name, text);
}

// --- a repeated field of a meta --------------------------------------------

MetadataEntry DecodeMetadataEntry(std::string_view bytes) {
  MetadataEntry entry;
  fields::FieldReader reader(bytes);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    switch (tag) {
      case fields::Tag(1, fields::kLengthDelimited):
        entry.name = reader.Bytes();
        break;
      case fields::Tag(2, fields::kLengthDelimited):
        entry.value = reader.Bytes();
        break;
      default:
        reader.SkipField(tag);
    }
  }
  return reader.error().empty() ? entry : MetadataEntry();
}

void CountMetadataField(std::string_view entry, MetadataValues values,
                        std::uint32_t tag, std::string_view message,
                        MetadataFields* fields) {
  fields->tag = tag;
  fields->values = values;
  fields->message = message;
  const auto [name, value] = DecodeMetadataEntry(entry);
  fields->count.Add(name, values == MetadataValues::kText
                              ? MetadataValueSize(name, value)
                              : value.size());
}

std::string TakeMetadata(const MetadataFields& found,
                         const MetadataLimits& limits,
                         std::unique_ptr<Metadata>* metadata) {
  if (std::string why = CheckMetadata(found.count, limits); !why.empty()) {
    return why;
  }
  std::unique_ptr<Metadata> taken = std::move(*metadata);
  if (taken == nullptr) taken = std::make_unique<Metadata>();
  taken->Reserve(found.count.entries, found.count.bytes);
  fields::FieldReader reader(found.message);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag != found.tag) {
      reader.SkipField(tag);
      continue;
    }
    const auto [name, value] = DecodeMetadataEntry(reader.Bytes());
    if (found.values == MetadataValues::kText) {
      AddMetadataText(name, value, taken.get());
    } else {
      taken->AddReceived(name, value);
    }
  }
  if (!taken->empty()) *metadata = std::move(taken);
  return {};
}

std::size_t MetadataFieldsSize(const Metadata& metadata, MetadataValues values,
                               std::uint32_t tag) {
  std::size_t size = 0;
  for (const Metadata::Entry entry : metadata) {
    const std::size_t entry_size = EntrySize(entry, values);
    size += VarintSize(tag) + VarintSize(entry_size) + entry_size;
  }
  return size;
}

char* PutMetadataFields(const Metadata& metadata, MetadataValues values,
                        std::uint32_t tag, char* out) {
  std::string scratch;
  for (const Metadata::Entry entry : metadata) {
    out = fields::PutTag(tag, out);
    out = fields::PutVarint(EntrySize(entry, values), out);
    out = fields::PutBytesField(1, entry.name, out);
    out = fields::PutBytesField(2,
                                values == MetadataValues::kText
                                    ? MetadataText(entry, &scratch)
                                    : entry.value,
                                out);
  }
  return out;
}

}  // namespace flare::rpc

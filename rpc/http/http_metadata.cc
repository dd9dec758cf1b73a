#include "flare/rpc/http/http_metadata.h"

#include <algorithm>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

namespace {

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = ToLower(c);
  return lower;
}

bool IsControlByte(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
}

}  // namespace

void AppendMetadata(const Metadata& metadata, BufferBuilder* out) {
  std::string scratch;
  for (const Metadata::Entry entry : metadata) {
    out->Append("\r\n");
    out->Append(entry.name);
    out->Append(": ");
    const std::string_view text = MetadataText(entry, &scratch);
    if (std::none_of(text.begin(), text.end(), IsControlByte)) [[likely]] {
      out->Append(text);
    } else {
      std::string clean(text);
      std::replace_if(clean.begin(), clean.end(), IsControlByte, ' ');
      out->Append(clean);
    }
  }
}

std::string ReadMetadata(std::string_view fields, const MetadataLimits& limits,
                         std::unique_ptr<Metadata>* metadata) {
  Metadata taken;
  MetadataCount count;
  const auto add = [&](std::string_view name, std::string_view value) {
    MetadataCount more = count;
    more.Add(name, MetadataValueSize(name, value));
    // Entries beyond the limits aren't added, but counted.
    const bool fits =
        more.entries <= limits.entries && more.bytes <= limits.bytes;
    if (fits ? AddMetadataText(name, value, &taken)
             : !IsReservedMetadata(LowerCase(name))) {
      count = more;
    }
  };
  HttpHeaders::const_iterator field(fields);
  for (; field != HttpHeaders::const_iterator({}); ++field) {
    if (IsBinaryMetadataName(field->first)) {
      ForEachListMember(field->second, [&](std::string_view member) {
        add(field->first, member);
      });
    } else {
      add(field->first, field->second);
    }
  }
  if (std::string why = CheckMetadata(count, limits); !why.empty()) return why;
  if (!taken.empty()) *metadata = std::make_unique<Metadata>(std::move(taken));
  return {};
}

}  // namespace flare::rpc

#include "flare/rpc/metadata.h"

#include <algorithm>
#include <array>

#include "flare/base/string.h"
#include "flare/rpc/rpc_status.h"

namespace flare {

namespace {

constexpr std::array<std::string_view, 16> kReserved{"accept-encoding",
                                                     "connection",
                                                     "content-encoding",
                                                     "content-length",
                                                     "content-type",
                                                     "date",
                                                     "expect",
                                                     "host",
                                                     "keep-alive",
                                                     "proxy-connection",
                                                     "te",
                                                     "trailer",
                                                     "transfer-encoding",
                                                     "upgrade",
                                                     "proxy-authenticate",
                                                     "proxy-authorization"};

constexpr bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool IsPrintable(std::string_view value) {
  return std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~'; });
}

std::string LowerCase(std::string_view name) {
  std::string lower(name);
  for (char& c : lower) c = ToLower(c);
  return lower;
}

// `name` is in lower case.
bool IsName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), IsNameChar);
}

flare::Status Refuse(std::string_view name, std::string_view why) {
  // A name may be anything, and as long.
  constexpr std::size_t kShown = 64;
  std::string text = "metadata \"";
  for (char c : name.substr(0, kShown)) text += c >= ' ' && c <= '~' ? c : '?';
  return flare::Status(rpc::STATUS_NOT_SUPPORTED,
                       text.append("\" can't be sent: ").append(why));
}

}  // namespace

bool IsReservedMetadata(std::string_view name) {
  return name.starts_with("rpc-") ||
         (name.starts_with("grpc-") && name != kGrpcStatusDetails &&
          name != kRetryPushback) ||
         std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end();
}

flare::Status Metadata::Add(std::string_view name, std::string_view value) {
  const std::string lower = LowerCase(name);
  if (!IsName(lower)) {
    return Refuse(name, "a name consists of letters, digits, '-', '_' and '.'");
  }
  if (IsReservedMetadata(lower)) {
    return Refuse(name, "protocols use this name themselves");
  }
  if (!IsBinaryMetadata(lower)) {
    if (!IsPrintable(value)) {
      return Refuse(name,
                    "its value isn't printable ASCII; names of other values "
                    "end in \"-bin\"");
    }
    if (value.starts_with(' ') || value.ends_with(' ')) {
      return Refuse(name, "its value begins or ends with a blank");
    }
  }
  if (entries_.size() >= kMaxEntries) {
    return Refuse(name, "there are " + std::to_string(kMaxEntries) +
                            " entries already, the limit");
  }
  if (value.size() > kMaxBytes ||
      bytes_.size() + lower.size() + value.size() > kMaxBytes) {
    return Refuse(name, "names and values would exceed the limit of " +
                            std::to_string(kMaxBytes) + " bytes");
  }
  Append(lower, value);
  return {};
}

flare::Status Metadata::Set(std::string_view name, std::string_view value) {
  Metadata changed = *this;
  changed.Remove(name);
  flare::Status added = changed.Add(name, value);
  if (added.ok()) *this = std::move(changed);
  return added;
}

std::size_t Metadata::Remove(std::string_view name) {
  const std::string lower = LowerCase(name);
  if (!Contains(lower)) return 0;
  Metadata rest;
  for (const Entry entry : *this) {
    if (entry.name != lower) rest.Append(entry.name, entry.value);
  }
  const std::size_t removed = size() - rest.size();
  *this = std::move(rest);
  return removed;
}

void Metadata::Clear() {
  ClearKeeping(&bytes_);
  entries_.clear();
}

std::optional<std::string_view> Metadata::Get(std::string_view name) const {
  for (const Entry entry : *this) {
    if (IEquals(entry.name, name)) return entry.value;
  }
  return std::nullopt;
}

std::vector<std::string_view> Metadata::GetAll(std::string_view name) const {
  std::vector<std::string_view> values;
  for (const Entry entry : *this) {
    if (IEquals(entry.name, name)) values.push_back(entry.value);
  }
  return values;
}

bool Metadata::AddReceived(std::string_view name, std::string_view value) {
  const std::string lower = LowerCase(name);
  if (!IsName(lower) || IsReservedMetadata(lower)) return false;
  Append(lower, value);
  return true;
}

void Metadata::Reserve(std::size_t entries, std::size_t bytes) {
  entries_.reserve(entries);
  bytes_.reserve(bytes);
}

// Neither points into bytes_.
void Metadata::Append(std::string_view name, std::string_view value) {
  const std::size_t begin = bytes_.size();
  bytes_.append(name).append(value);
  entries_.push_back({static_cast<std::uint32_t>(begin),
                      static_cast<std::uint32_t>(name.size()),
                      static_cast<std::uint32_t>(value.size())});
}

}  // namespace flare

#include "flare/rpc/http2/http2_head.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "flare/rpc/http2/field_text.h"

namespace flare::rpc {
namespace {

bool AreDigits(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool IsConnectionField(std::string_view name) {
  return FieldTextIs(name, "upgrade") || FieldTextIs(name, "connection") ||
         FieldTextIs(name, "keep-alive") ||
         FieldTextIs(name, "proxy-connection") ||
         FieldTextIs(name, "transfer-encoding");
}

bool Http2HeadCheck::Add(const HpackField& field) {
  if (!field.valid || field.name.empty()) return false;
  return field.name.front() == ':' ? AddPseudo(field.name, field.value)
                                   : AddRegular(field.name, field.value);
}

bool Http2HeadCheck::AddPseudo(std::string_view name, std::string_view value) {
  if (kind_ == Kind::kTrailers || (seen_ & kRegular) != 0) return false;
  if (kind_ == Kind::kResponse)
    return FieldTextIs(name, ":status") && AddStatus(value);
  if (value.empty()) return false;
  if (FieldTextIs(name, ":method")) {
    connect_ = FieldTextIs(value, "CONNECT");
    options_ = FieldTextIs(value, "OPTIONS");
    return AddOnce(kMethod);
  }
  if (FieldTextIs(name, ":path")) {
    whole_server_ = FieldTextIs(value, "*");
    return AddOnce(kPath) && (value.front() == '/' || whole_server_);
  }
  if (FieldTextIs(name, ":scheme")) return AddOnce(kScheme);
  return FieldTextIs(name, ":authority") && AddOnce(kAuthority);
}

// There is no 101 in HTTP/2 (8.6).
bool Http2HeadCheck::AddStatus(std::string_view value) {
  if (!AddOnce(kStatus) || value.size() != 3 || !AreDigits(value)) return false;
  std::from_chars(value.data(), value.data() + value.size(), status_);
  return status_ >= 100 && status_ != 101;
}

bool Http2HeadCheck::AddRegular(std::string_view name, std::string_view value) {
  seen_ = static_cast<std::uint8_t>(seen_ | kRegular);
  if (name.size() == 2)
    return !FieldTextIs(name, "te") || FieldTextIs(value, "trailers");
  if (FieldTextIs(name, "content-length")) return AddContentLength(value);
  if (FieldTextIs(name, "host") && !value.empty()) {
    seen_ = static_cast<std::uint8_t>(seen_ | kHost);
  }
  return !IsConnectionField(name);
}

bool Http2HeadCheck::AddContentLength(std::string_view value) {
  if (content_length_ || !AreDigits(value)) return false;
  std::uint64_t length = 0;
  if (std::from_chars(value.data(), value.data() + value.size(), length).ec !=
      std::errc()) {
    return false;  // Too large, or nothing.
  }
  content_length_ = length;
  return true;
}

bool Http2HeadCheck::End() const {
  switch (kind_) {
    case Kind::kTrailers:
      return true;
    case Kind::kResponse:
      return status_ != 0;
    case Kind::kRequest:
      break;
  }
  const bool has_authority = (seen_ & (kAuthority | kHost)) != 0;
  constexpr std::uint8_t kTarget = kScheme | kPath;
  if (connect_) return (seen_ & kTarget) == 0 && has_authority;
  constexpr std::uint8_t kAll = kMethod | kTarget;
  return (seen_ & kAll) == kAll && has_authority &&
         (!whole_server_ || options_);
}

}  // namespace flare::rpc

#include "example/proxy/client_hello.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "flare/base/string.h"

namespace example::proxy {
namespace {

using HelloOutcome = ParsedClientHello::Outcome;

// RFC 8446, 5.1 and 4.
constexpr std::uint8_t kHandshakeRecord = 22;
constexpr char kClientHelloMessage = 1;
constexpr std::size_t kRecordHeader = 5;
constexpr std::size_t kMessageHeader = 4;
constexpr std::size_t kMaxRecord = 1 << 14;
constexpr std::size_t kRandom = 32;
constexpr std::size_t kMaxSessionId = 32;
constexpr std::uint16_t kServerNameExtension = 0;
constexpr std::uint8_t kHostName = 0;
constexpr std::size_t kMaxHostName = 255;

// Takes numbers and vectors off the front of bytes. Once one is missing all
// that follow are, too.
class HelloFields {
 public:
  explicit HelloFields(std::string_view bytes) : bytes_(bytes) {}

  // A number of `size` bytes, the most significant one first.
  std::size_t Number(std::size_t size) {
    const std::string_view bytes = Bytes(size);
    std::size_t number = 0;
    for (const char c : bytes) {
      number = number << 8 | static_cast<std::uint8_t>(c);
    }
    return number;
  }
  std::string_view Bytes(std::size_t size) {
    if (bytes_.size() < size) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  // A length of `length_size` bytes, and as many bytes.
  std::string_view Vector(std::size_t length_size) {
    return Bytes(Number(length_size));
  }

  bool ok() const { return ok_; }
  bool AtEnd() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

bool IsHostChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool IsHost(std::string_view host) {
  return !host.empty() && host.size() <= kMaxHostName &&
         std::all_of(host.begin(), host.end(), IsHostChar) &&
         host.front() != '.' && host.back() != '.';
}

// The host of the extension server_name. Nullopt: it is malformed.
std::optional<std::string> HostOf(std::string_view extension) {
  HelloFields fields(extension);
  HelloFields names(fields.Vector(2));
  if (!fields.ok() || !fields.AtEnd() || names.AtEnd()) return std::nullopt;
  std::optional<std::string> host;
  while (!names.AtEnd()) {
    const std::size_t type = names.Number(1);
    const std::string_view name = names.Vector(2);
    if (!names.ok()) return std::nullopt;
    if (type != kHostName) continue;
    if (host) return std::nullopt;  // At most one of a type.
    host.emplace(name);
    for (char& c : *host) c = flare::ToLower(c);
    if (!IsHost(*host)) return std::nullopt;
  }
  return host.value_or("");
}

ParsedClientHello ParseBody(std::string_view body) {
  HelloFields fields(body);
  const std::size_t version = fields.Number(2);
  fields.Bytes(kRandom);
  const std::string_view session = fields.Vector(1);
  const std::string_view ciphers = fields.Vector(2);
  const std::string_view compressions = fields.Vector(1);
  if (!fields.ok() || version >> 8 != 3 || session.size() > kMaxSessionId ||
      ciphers.empty() || ciphers.size() % 2 != 0 || compressions.empty()) {
    return {};
  }
  ParsedClientHello hello{.outcome = HelloOutcome::kComplete};
  if (fields.AtEnd()) return hello;  // TLS 1.2 without extensions.
  HelloFields extensions(fields.Vector(2));
  if (!fields.ok() || !fields.AtEnd()) return {};
  bool found = false;
  while (!extensions.AtEnd()) {
    const std::size_t type = extensions.Number(2);
    const std::string_view content = extensions.Vector(2);
    if (!extensions.ok()) return {};
    if (type != kServerNameExtension) continue;
    auto host = HostOf(content);
    if (!host || found) return {};
    found = true;
    hello.server_name = std::move(*host);
  }
  return hello;
}

}  // namespace

ParsedClientHello ParseClientHello(std::string_view bytes) {
  const bool all = bytes.size() >= kMaxClientHello;
  const ParsedClientHello more{.outcome = all ? HelloOutcome::kMalformed
                                              : HelloOutcome::kIncomplete};
  std::string message;  // Its records' contents.
  while (!bytes.empty()) {
    if (static_cast<std::uint8_t>(bytes[0]) != kHandshakeRecord) return {};
    if (bytes.size() > 1 && bytes[1] != 3) return {};
    if (bytes.size() < kRecordHeader) return more;
    HelloFields header(bytes.substr(3, 2));
    const std::size_t size = header.Number(2);
    if (size == 0 || size > kMaxRecord) return {};
    bytes.remove_prefix(kRecordHeader);
    message += bytes.substr(0, size);
    bytes.remove_prefix(std::min(size, bytes.size()));
    if (!message.empty() && message[0] != kClientHelloMessage) return {};
    if (message.size() < kMessageHeader) continue;
    HelloFields fields(message);
    fields.Number(1);
    const std::size_t length = fields.Number(3);
    if (length > kMaxClientHello) return {};
    if (message.size() - kMessageHeader < length) continue;
    // A client has nothing to say behind it before it has had an answer, and
    // bytes of TLS 1.3's early data are in records of another type.
    if (message.size() - kMessageHeader != length) return {};
    return ParseBody(std::string_view(message).substr(kMessageHeader));
  }
  return more;
}

bool MatchesHost(std::string_view pattern, std::string_view host) {
  if (!pattern.starts_with("*.")) return pattern == host;
  const std::size_t dot = host.find('.');
  return dot != std::string_view::npos && dot != 0 &&
         host.substr(dot) == pattern.substr(1);
}

bool IsHostPattern(std::string_view pattern) {
  if (pattern.starts_with("*.")) pattern.remove_prefix(2);
  return IsHost(pattern);
}

}  // namespace example::proxy

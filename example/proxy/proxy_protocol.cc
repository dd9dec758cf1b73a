#include "example/proxy/proxy_protocol.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

namespace example::proxy {
namespace {

using flare::Endpoint;
using Outcome = ParsedProxyHeader::Outcome;

constexpr std::string_view kSignatureV1 = "PROXY ";
constexpr std::string_view kSignatureV2("\r\n\r\n\0\r\nQUIT\n", 12);
constexpr std::size_t kMaxV1 = 107;
constexpr std::size_t kFixedV2 = 16;

// Version 2's commands (version in the upper half) and address families
// (protocol in the lower half: stream).
constexpr std::uint8_t kLocal = 0x20;
constexpr std::uint8_t kProxy = 0x21;
constexpr std::uint8_t kUnspecified = 0x00;
constexpr std::uint8_t kTcp4 = 0x11;
constexpr std::uint8_t kTcp6 = 0x21;
constexpr std::uint8_t kUnix = 0x31;
constexpr std::size_t kUnixPath = 108;

ParsedProxyHeader Incomplete() { return {.outcome = Outcome::kIncomplete}; }

// Splits off the text before the next space.
std::string_view NextWord(std::string_view* text) {
  const std::size_t end = text->find(' ');
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(end == text->npos ? text->size() : end + 1);
  return word;
}

// One to five digits without leading zeros, as the specification wants.
std::optional<std::uint16_t> ParsePort(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() ||
      (text.size() > 1 && text.front() == '0')) {
    return std::nullopt;
  }
  return port;
}

Endpoint MakeEndpoint(bool v6, std::string_view host, std::uint16_t port) {
  return v6 ? flare::EndpointFromIpv6(host, port)
            : flare::EndpointFromIpv4(host, port);
}

// `line` is the text between "PROXY " and the line's end.
ParsedProxyHeader ParseLineV1(std::string_view line, std::size_t size) {
  ParsedProxyHeader header{.outcome = Outcome::kComplete, .size = size};
  const std::string_view kind = NextWord(&line);
  if (kind == "UNKNOWN") return header;  // Ignore the rest.
  if (kind != "TCP4" && kind != "TCP6") return {};
  const std::string_view source = NextWord(&line);
  const std::string_view destination = NextWord(&line);
  const auto source_port = ParsePort(NextWord(&line));
  const auto destination_port = ParsePort(line);
  if (!source_port || !destination_port) return {};
  header.source = MakeEndpoint(kind == "TCP6", source, *source_port);
  header.destination =
      MakeEndpoint(kind == "TCP6", destination, *destination_port);
  if (header.source.empty() || header.destination.empty()) return {};
  return header;
}

ParsedProxyHeader ParseV1(std::string_view bytes) {
  const std::string_view start = bytes.substr(0, kMaxV1);
  const std::size_t end = start.find("\r\n");
  if (end == start.npos) {
    return start.size() < kMaxV1 ? Incomplete() : ParsedProxyHeader();
  }
  return ParseLineV1(
      start.substr(kSignatureV1.size(), end - kSignatureV1.size()), end + 2);
}

std::uint16_t ReadBe16(const char* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof(value));
  return ntohs(value);
}

Endpoint ReadInet(const char* address, const char* port) {
  sockaddr_in inet{};
  inet.sin_family = AF_INET;
  std::memcpy(&inet.sin_addr, address, 4);
  std::memcpy(&inet.sin_port, port, 2);
  return Endpoint::FromSockaddr(reinterpret_cast<sockaddr*>(&inet),
                                sizeof(inet));
}

Endpoint ReadInet6(const char* address, const char* port) {
  sockaddr_in6 inet{};
  inet.sin6_family = AF_INET6;
  std::memcpy(&inet.sin6_addr, address, 16);
  std::memcpy(&inet.sin6_port, port, 2);
  return Endpoint::FromSockaddr(reinterpret_cast<sockaddr*>(&inet),
                                sizeof(inet));
}

// Padded with zeros. One that is all zeros has no name.
Endpoint ReadUnix(const char* path) {
  sockaddr_un unix_address{};
  unix_address.sun_family = AF_UNIX;
  std::memcpy(unix_address.sun_path, path, kUnixPath);
  const std::string_view whole(path, kUnixPath);
  // A name in the abstract namespace begins with a zero.
  const std::size_t end = whole.find_last_not_of('\0');
  const std::size_t length = end == whole.npos ? 0 : end + 1;
  return Endpoint::FromSockaddr(
      reinterpret_cast<sockaddr*>(&unix_address),
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
}

ParsedProxyHeader ParseV2(std::string_view bytes) {
  if (bytes.size() < kFixedV2) return Incomplete();
  const auto command = static_cast<std::uint8_t>(bytes[12]);
  const auto family = static_cast<std::uint8_t>(bytes[13]);
  const std::size_t length = ReadBe16(bytes.data() + 14);
  if (command != kLocal && command != kProxy) return {};
  if (kFixedV2 + length > kMaxProxyHeader) return {};
  if (bytes.size() < kFixedV2 + length) return Incomplete();
  ParsedProxyHeader header{.outcome = Outcome::kComplete,
                           .size = kFixedV2 + length};
  if (command == kLocal) return header;
  const char* const at = bytes.data() + kFixedV2;
  switch (family) {
    case kTcp4:
      if (length < 12) return {};
      header.source = ReadInet(at, at + 8);
      header.destination = ReadInet(at + 4, at + 10);
      break;
    case kTcp6:
      if (length < 36) return {};
      header.source = ReadInet6(at, at + 32);
      header.destination = ReadInet6(at + 16, at + 34);
      break;
    case kUnix:
      if (length < 2 * kUnixPath) return {};
      header.source = ReadUnix(at);
      header.destination = ReadUnix(at + kUnixPath);
      break;
    default:  // An unknown kind.
      break;
  }
  return header;
}

void AppendBe16(std::uint16_t value, std::string* out) {
  out->push_back(static_cast<char>(value >> 8));
  out->push_back(static_cast<char>(value & 0xff));
}

// The address alone, as the kernel has it, of its family's full length.
std::string AddressBytes(const Endpoint& endpoint) {
  sockaddr_storage storage{};
  endpoint.ToSockaddr(&storage);
  const auto* const bytes = reinterpret_cast<const char*>(&storage);
  switch (endpoint.family()) {
    case AF_INET:
      return std::string(bytes + offsetof(sockaddr_in, sin_addr), 4);
    case AF_INET6:
      return std::string(bytes + offsetof(sockaddr_in6, sin6_addr), 16);
    default:
      return std::string(bytes + offsetof(sockaddr_un, sun_path), kUnixPath);
  }
}

std::uint8_t FamilyByte(const Endpoint& source, const Endpoint& destination) {
  if (source.family() != destination.family()) return kUnspecified;
  switch (source.family()) {
    case AF_INET:
      return kTcp4;
    case AF_INET6:
      return kTcp6;
    case AF_UNIX:
      return kUnix;
    default:
      return kUnspecified;
  }
}

// Without the scope, which means nothing to another host.
std::string HostV1(const Endpoint& endpoint) {
  const std::string host = endpoint.host();
  return host.substr(0, host.find('%'));
}

}  // namespace

ParsedProxyHeader ParseProxyHeader(std::string_view bytes) {
  if (bytes.substr(0, kSignatureV1.size()) == kSignatureV1) {
    return ParseV1(bytes);
  }
  if (bytes.substr(0, kSignatureV2.size()) == kSignatureV2) {
    return ParseV2(bytes);
  }
  const bool may_become_one = kSignatureV1.substr(0, bytes.size()) == bytes ||
                              kSignatureV2.substr(0, bytes.size()) == bytes;
  return may_become_one ? Incomplete() : ParsedProxyHeader();
}

std::string FormatProxyHeaderV1(const Endpoint& source,
                                const Endpoint& destination) {
  const std::uint8_t family = FamilyByte(source, destination);
  if (family != kTcp4 && family != kTcp6) return "PROXY UNKNOWN\r\n";
  return std::string(family == kTcp4 ? "PROXY TCP4 " : "PROXY TCP6 ") +
         HostV1(source) + " " + HostV1(destination) + " " +
         std::to_string(source.port()) + " " +
         std::to_string(destination.port()) + "\r\n";
}

std::string FormatProxyHeaderV2(const Endpoint& source,
                                const Endpoint& destination) {
  const std::uint8_t family = FamilyByte(source, destination);
  std::string addresses;
  if (family != kUnspecified) {
    addresses = AddressBytes(source) + AddressBytes(destination);
  }
  if (family == kTcp4 || family == kTcp6) {
    AppendBe16(source.port(), &addresses);
    AppendBe16(destination.port(), &addresses);
  }
  std::string header(kSignatureV2);
  header.push_back(static_cast<char>(kProxy));
  header.push_back(static_cast<char>(family));
  AppendBe16(static_cast<std::uint16_t>(addresses.size()), &header);
  return header + addresses;
}

std::string FormatLocalHeaderV2() {
  std::string header(kSignatureV2);
  header.push_back(static_cast<char>(kLocal));
  header.push_back(static_cast<char>(kUnspecified));
  AppendBe16(0, &header);
  return header;
}

}  // namespace example::proxy

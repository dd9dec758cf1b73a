#include "flare/base/endpoint.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <ostream>

#include "flare/base/string.h"

namespace flare {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
// Paths need a terminating zero, which not all programs can do without; names
// in the abstract namespace have none.
constexpr std::size_t kMaxName = sizeof(sockaddr_un{}.sun_path);
constexpr std::size_t kMaxPath = kMaxName - 1;

Status Malformed(std::string_view text, const char* why) {
  std::string message = "malformed address \"";
  message.append(text);
  message += "\": ";
  message += why;
  return Status(EINVAL, std::move(message));
}

// "%eth0" or "%2" behind an IPv6 address.
std::optional<std::uint32_t> ParseScope(std::string_view zone) {
  if (zone.find('\0') != zone.npos) return std::nullopt;
  if (const auto index = TryParse<std::uint32_t>(zone)) return index;
  const unsigned index = if_nametoindex(std::string(zone).c_str());
  if (index == 0) return std::nullopt;
  return index;
}

// Zeroes the bits of an address behind the first `count`.
template <std::size_t N>
void KeepFirstBits(unsigned count, std::uint8_t (&address)[N]) {
  for (std::uint8_t& byte : address) {
    const unsigned kept = std::min(count, 8u);
    byte = static_cast<std::uint8_t>(byte & (0xff00u >> kept));
    count -= kept;
  }
}

}  // namespace

Endpoint EndpointFromIpv4(std::string_view ip, std::uint16_t port) {
  Endpoint endpoint;
  Endpoint::Inet inet{{}, port};
  if (inet_pton(AF_INET, std::string(ip).c_str(), inet.address) == 1 &&
      ip.find('\0') == ip.npos) {
    endpoint.address_ = inet;
  }
  return endpoint;
}

Endpoint EndpointFromIpv6(std::string_view ip, std::uint16_t port) {
  Endpoint endpoint;
  Endpoint::Inet6 inet6{{}, 0, port};
  const std::size_t percent = ip.find('%');
  if (percent != ip.npos) {
    const auto scope = ParseScope(ip.substr(percent + 1));
    if (!scope) return endpoint;
    inet6.scope = *scope;
    ip = ip.substr(0, percent);
  }
  if (inet_pton(AF_INET6, std::string(ip).c_str(), inet6.address) == 1 &&
      ip.find('\0') == ip.npos) {
    endpoint.address_ = inet6;
  }
  return endpoint;
}

Endpoint EndpointFromUnix(std::string_view path) {
  Endpoint endpoint;
  const bool abstract = !path.empty() && (path[0] == '@' || path[0] == '\0');
  if (path.empty() || path.size() > (abstract ? kMaxName : kMaxPath) ||
      (!abstract && path.find('\0') != path.npos)) {
    return endpoint;
  }
  Endpoint::Unix address{std::string(path)};
  if (abstract) address.path[0] = '\0';
  endpoint.address_ = std::move(address);
  return endpoint;
}

Expected<Endpoint> EndpointFromString(std::string_view text) {
  if (text.starts_with(kUnixPrefix)) {
    Endpoint endpoint = EndpointFromUnix(text.substr(kUnixPrefix.size()));
    if (!endpoint.empty()) return endpoint;
    return Malformed(text, "a path of 1 to 107 bytes must follow \"unix:\"");
  }
  const bool v6 = text.starts_with("[");
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || (v6 && (colon == 0 || text[colon - 1] != ']'))) {
    return Malformed(text, "no \":port\" at its end");
  }
  const auto port = TryParse<std::uint16_t>(text.substr(colon + 1));
  if (!port) return Malformed(text, "the port must be a number up to 65535");
  if (v6) {
    Endpoint endpoint = EndpointFromIpv6(text.substr(1, colon - 2), *port);
    if (!endpoint.empty()) return endpoint;
    return Malformed(text, "no IPv6 address between the brackets");
  }
  Endpoint endpoint = EndpointFromIpv4(text.substr(0, colon), *port);
  if (!endpoint.empty()) return endpoint;
  return Malformed(text,
                   "expected 1.2.3.4:port, [ipv6]:port or unix:path (names "
                   "are not resolved here)");
}

Endpoint MustParseEndpoint(std::string_view text) {
  auto endpoint = EndpointFromString(text);
  if (endpoint) return *std::move(endpoint);
  std::fprintf(stderr, "%s\n", endpoint.error().ToString().c_str());
  std::abort();
}

Endpoint Endpoint::FromSockaddr(const sockaddr* address, socklen_t length) {
  Endpoint endpoint;
  constexpr std::size_t kFamilyEnd = offsetof(sockaddr, sa_family) + 2;
  if (length < kFamilyEnd) return endpoint;
  // Copied: the caller's storage need not be aligned for, or as large as, the
  // family's type.
  sockaddr_storage copy{};
  std::memcpy(&copy, address, std::min<std::size_t>(length, sizeof(copy)));
  if (copy.ss_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, &copy, sizeof(in));
    Inet inet{{}, ntohs(in.sin_port)};
    std::memcpy(inet.address, &in.sin_addr, sizeof(inet.address));
    endpoint.address_ = inet;
  } else if (copy.ss_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    sockaddr_in6 in6;
    std::memcpy(&in6, &copy, sizeof(in6));
    Inet6 inet6{{}, in6.sin6_scope_id, ntohs(in6.sin6_port)};
    std::memcpy(inet6.address, &in6.sin6_addr, sizeof(inet6.address));
    endpoint.address_ = inet6;
  } else if (copy.ss_family == AF_UNIX) {
    sockaddr_un un{};
    std::memcpy(&un, &copy, sizeof(un));
    const std::size_t room =
        std::min<std::size_t>(length - kFamilyEnd, sizeof(un.sun_path));
    // A file system path ends at a zero byte, an abstract name at `length`.
    const std::size_t size =
        room > 0 && un.sun_path[0] == '\0' ? room : strnlen(un.sun_path, room);
    endpoint.address_ = Unix{std::string(un.sun_path, size)};
  }
  return endpoint;
}

socklen_t Endpoint::ToSockaddr(sockaddr_storage* address) const {
  std::memset(address, 0, sizeof(*address));
  if (const auto* inet = std::get_if<Inet>(&address_)) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(inet->port);
    std::memcpy(&in.sin_addr, inet->address, sizeof(inet->address));
    std::memcpy(address, &in, sizeof(in));
    return sizeof(in);
  }
  if (const auto* inet6 = std::get_if<Inet6>(&address_)) {
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(inet6->port);
    in6.sin6_scope_id = inet6->scope;
    std::memcpy(&in6.sin6_addr, inet6->address, sizeof(inet6->address));
    std::memcpy(address, &in6, sizeof(in6));
    return sizeof(in6);
  }
  if (const auto* unix_address = std::get_if<Unix>(&address_)) {
    const std::string& path = unix_address->path;
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    path.copy(un.sun_path, kMaxName);
    std::memcpy(address, &un, sizeof(un));
    const bool is_file = !path.empty() && path[0] != '\0';
    // One that the kernel gave us may leave no room for the zero.
    return static_cast<socklen_t>(
        offsetof(sockaddr_un, sun_path) +
        std::min(path.size() + (is_file ? 1 : 0), kMaxName));
  }
  return 0;
}

sa_family_t Endpoint::family() const {
  constexpr sa_family_t kFamilies[] = {AF_UNSPEC, AF_INET, AF_INET6, AF_UNIX};
  return kFamilies[address_.index()];
}

std::uint16_t Endpoint::port() const {
  if (const auto* inet = std::get_if<Inet>(&address_)) return inet->port;
  if (const auto* inet6 = std::get_if<Inet6>(&address_)) return inet6->port;
  return 0;
}

void Endpoint::set_port(std::uint16_t port) {
  if (auto* inet = std::get_if<Inet>(&address_)) inet->port = port;
  if (auto* inet6 = std::get_if<Inet6>(&address_)) inet6->port = port;
}

std::string Endpoint::host() const {
  char text[INET6_ADDRSTRLEN];
  if (const auto* inet = std::get_if<Inet>(&address_)) {
    return inet_ntop(AF_INET, inet->address, text, sizeof(text));
  }
  if (const auto* inet6 = std::get_if<Inet6>(&address_)) {
    std::string host = inet_ntop(AF_INET6, inet6->address, text, sizeof(text));
    if (inet6->scope != 0) host += "%" + std::to_string(inet6->scope);
    return host;
  }
  std::string host(path());
  if (!host.empty() && host[0] == '\0') host[0] = '@';
  return host;
}

std::string_view Endpoint::path() const {
  const auto* unix_address = std::get_if<Unix>(&address_);
  return unix_address != nullptr ? unix_address->path : std::string_view();
}

Endpoint Endpoint::Network(unsigned ipv4_bits, unsigned ipv6_bits) const {
  if (const auto* inet = std::get_if<Inet>(&address_)) {
    Endpoint network;
    Inet& masked = network.address_.emplace<Inet>(*inet);
    masked.port = 0;
    KeepFirstBits(ipv4_bits, masked.address);
    return network;
  }
  const auto* inet6 = std::get_if<Inet6>(&address_);
  if (inet6 == nullptr) return *this;
  Endpoint network;
  if (IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(inet6->address))) {
    Inet& mapped = network.address_.emplace<Inet>();
    std::memcpy(mapped.address, inet6->address + 12, sizeof(mapped.address));
    mapped.port = 0;
    KeepFirstBits(ipv4_bits, mapped.address);
    return network;
  }
  Inet6& masked = network.address_.emplace<Inet6>(*inet6);
  masked.port = 0;
  KeepFirstBits(ipv6_bits, masked.address);
  return network;
}

bool Endpoint::IsLoopback() const {
  if (const auto* inet = std::get_if<Inet>(&address_)) {
    return inet->address[0] == 127;
  }
  if (const auto* inet6 = std::get_if<Inet6>(&address_)) {
    return IN6_IS_ADDR_LOOPBACK(
        reinterpret_cast<const in6_addr*>(inet6->address));
  }
  return family() == AF_UNIX;
}

std::string Endpoint::ToString() const {
  switch (family()) {
    case AF_INET:
      return host() + ":" + std::to_string(port());
    case AF_INET6:
      return "[" + host() + "]:" + std::to_string(port());
    case AF_UNIX:
      return std::string(kUnixPrefix) + host();
    default:
      return "";
  }
}

std::size_t Endpoint::Hash() const {
  // Over the bytes bind would get: equal endpoints have equal ones.
  sockaddr_storage address;
  const socklen_t length = ToSockaddr(&address);
  return std::hash<std::string_view>()(
      std::string_view(reinterpret_cast<const char*>(&address), length));
}

std::ostream& operator<<(std::ostream& out, const Endpoint& endpoint) {
  return out << endpoint.ToString();
}

}  // namespace flare

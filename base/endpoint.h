// A network address: IPv4 or IPv6 with port, or the path of a Unix-domain
// socket. A value: copy it, compare it, use it as a key. Only long Unix paths
// allocate.
//
//   auto endpoint = EndpointFromString("127.0.0.1:5567");
//   if (!endpoint) return endpoint.error();
//   sockaddr_storage address;
//   connect(fd, ..., endpoint->ToSockaddr(&address));
//
// Names are not resolved here; see io/resolver.h.

#ifndef FLARE_BASE_ENDPOINT_H_
#define FLARE_BASE_ENDPOINT_H_

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <variant>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare {

class Endpoint {
 public:
  Endpoint() = default;  // Empty: family AF_UNSPEC.

  // Makes an endpoint of the address that accept, getsockname and the like have
  // filled in. An address of another family gives an empty endpoint; an unnamed
  // Unix socket (a client that did not bind) an AF_UNIX endpoint without path.
  static Endpoint FromSockaddr(const sockaddr* address, socklen_t length);

  // Writes the address for bind or connect and returns its length; 0 for an
  // empty endpoint.
  socklen_t ToSockaddr(sockaddr_storage* address) const;

  bool empty() const { return family() == AF_UNSPEC; }
  // AF_INET, AF_INET6, AF_UNIX or AF_UNSPEC.
  sa_family_t family() const;

  // 0 for those without ports.
  std::uint16_t port() const;
  void set_port(std::uint16_t port);

  // "127.0.0.1", "::1%2", or "/run/x" for Unix.
  std::string host() const;
  // Unix only, otherwise empty. A first byte of 0 means Linux's abstract
  // namespace.
  std::string_view path() const;

  // The network that the address is in, as an endpoint: the first bits of the
  // address (0 to 32 of IPv4, 0 to 128 of IPv6), zeros behind them, and port 0.
  // An IPv4 address in the form of IPv6 (::ffff:1.2.3.4) counts as IPv4.
  // Others, such as Unix, stay as they are.
  Endpoint Network(unsigned ipv4_bits, unsigned ipv6_bits) const;

  // 127.0.0.0/8, ::1 or Unix.
  bool IsLoopback() const;

  // "1.2.3.4:5", "[::1]:5", "[fe80::1%2]:5", "unix:/run/x", "unix:@abstract",
  // "" when empty. EndpointFromString reads it back (except a path of 108
  // bytes, which another program may have bound).
  std::string ToString() const;

  std::size_t Hash() const;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;

 private:
  struct Inet {
    std::uint8_t address[4];
    std::uint16_t port;
    bool operator==(const Inet&) const = default;
  };
  struct Inet6 {
    std::uint8_t address[16];
    std::uint32_t scope;
    std::uint16_t port;
    bool operator==(const Inet6&) const = default;
  };
  struct Unix {
    std::string path;
    bool operator==(const Unix&) const = default;
  };

  friend Endpoint EndpointFromIpv4(std::string_view, std::uint16_t);
  friend Endpoint EndpointFromIpv6(std::string_view, std::uint16_t);
  friend Endpoint EndpointFromUnix(std::string_view);

  std::variant<std::monostate, Inet, Inet6, Unix> address_;
};

std::ostream& operator<<(std::ostream& out, const Endpoint& endpoint);

// These give an empty endpoint if the text is malformed; where it comes from a
// person use EndpointFromString, which names the fault.

// "1.2.3.4", four decimal numbers.
Endpoint EndpointFromIpv4(std::string_view ip, std::uint16_t port);

// "::1", "fe80::1%eth0" or "%2"; without brackets.
Endpoint EndpointFromIpv6(std::string_view ip, std::uint16_t port);

// A file system path of at most 107 bytes, or '@' (or a zero byte) and a name
// of at most 107 in the abstract namespace.
Endpoint EndpointFromUnix(std::string_view path);

// "1.2.3.4:5", "[::1]:5", "unix:/path". Errors (EINVAL) name the text and its
// fault.
Expected<Endpoint> EndpointFromString(std::string_view text);

// Parses an endpoint in literals and tests: ends the process if the text is
// malformed.
Endpoint MustParseEndpoint(std::string_view text);

// The names by which users of the published framework know these.
inline std::string EndpointGetIp(const Endpoint& endpoint) {
  return endpoint.host();
}
inline std::uint16_t EndpointGetPort(const Endpoint& endpoint) {
  return endpoint.port();
}

}  // namespace flare

template <>
struct std::hash<flare::Endpoint> {
  std::size_t operator()(const flare::Endpoint& endpoint) const {
    return endpoint.Hash();
  }
};

#endif  // FLARE_BASE_ENDPOINT_H_

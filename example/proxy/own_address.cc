#include "example/proxy/own_address.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace example::proxy {
namespace {

using flare::Endpoint;

// "::ffff:1.2.3.4" is 1.2.3.4.
Endpoint Unmapped(const Endpoint& address) {
  constexpr std::string_view kMapped = "::ffff:";
  if (address.family() != AF_INET6) return address;
  const std::string host = address.host();
  if (!host.starts_with(kMapped)) return address;
  const Endpoint v4 =
      flare::EndpointFromIpv4(host.substr(kMapped.size()), address.port());
  return v4.empty() ? address : v4;
}

bool IsWildcard(const Endpoint& address) {
  return address.host() == (address.family() == AF_INET ? "0.0.0.0" : "::");
}

// A connection to a wildcard address goes to this machine.
Endpoint Reached(const Endpoint& address) {
  if (!IsWildcard(address)) return address;
  return address.family() == AF_INET
             ? flare::EndpointFromIpv4("127.0.0.1", address.port())
             : flare::EndpointFromIpv6("::1", address.port());
}

bool IsOfThisMachine(const Endpoint& address) {
  if (address.IsLoopback()) return true;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* it = all; it != nullptr && !found; it = it->ifa_next) {
    if (it->ifa_addr == nullptr) continue;
    const int family = it->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Endpoint own = Endpoint::FromSockaddr(
        it->ifa_addr,
        family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    own.set_port(address.port());
    found = own == address;
  }
  ::freeifaddrs(all);
  return found;
}

// The files need not exist yet.
bool IsSameFile(std::string_view a, std::string_view b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::equivalent(a, b, error)) return true;
  const fs::path one = fs::weakly_canonical(fs::absolute(a, error), error);
  return !error && one == fs::weakly_canonical(fs::absolute(b, error), error);
}

}  // namespace

bool LeadsTo(const Endpoint& target, const Endpoint& listener) {
  if (target == listener) return true;
  if (target.family() == AF_UNIX || listener.family() == AF_UNIX) {
    const auto is_file = [](std::string_view path) {
      return !path.empty() && path.front() != '\0';
    };
    return is_file(target.path()) && is_file(listener.path()) &&
           IsSameFile(target.path(), listener.path());
  }
  const Endpoint reached = Reached(Unmapped(target));
  const Endpoint own = Unmapped(listener);
  if (reached == own) return true;
  return reached.family() == own.family() && reached.port() == own.port() &&
         IsWildcard(own) && IsOfThisMachine(reached);
}

}  // namespace example::proxy

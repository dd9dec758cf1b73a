#include "flare/io/resolver.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "flare/base/string.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/scheduler/current_fiber.h"
#include "flare/io/fd.h"

namespace flare::io {
namespace {

struct Name {
  std::string host;
  std::uint16_t port;
};

Status Error(int code, std::string_view name, const std::string& why) {
  return Status(code, "resolve '" + std::string(name) + "': " + why);
}

// Splits "host:port", where host is no literal address.
Expected<Name, Status> ParseName(std::string_view name) {
  if (name.starts_with("unix:")) {  // No literal: too long, or empty.
    return Error(EINVAL, name, "a path of 1 to 107 bytes must follow 'unix:'");
  }
  const std::size_t colon = name.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == name.size()) {
    return Error(EINVAL, name, "there is no port; write host:port");
  }
  if (name.find('/', colon) != std::string_view::npos) {
    return Error(EINVAL, name, "nothing may follow the port, no '/' either");
  }
  if (name.starts_with('[') || name.find(':') != colon) {
    return Error(EINVAL, name,
                 "if it is an IPv6 address with a port, write [::1]:80");
  }
  const std::string_view host = name.substr(0, colon);
  if (host.empty()) return Error(EINVAL, name, "there is no host before ':'");
  if (host.find_first_of("[]/ \t") != std::string_view::npos) {
    return Error(EINVAL, name, "'" + std::string(host) + "' is no host name");
  }
  const auto port = TryParse<std::uint16_t>(name.substr(colon + 1));
  if (!port) return Error(EINVAL, name, "the port is not in 0..65535");
  return Name{std::string(host), *port};
}

std::vector<Endpoint> ToEndpoints(const addrinfo* list, std::uint16_t port) {
  std::vector<Endpoint> endpoints;
  for (; list != nullptr; list = list->ai_next) {
    Endpoint endpoint = Endpoint::FromSockaddr(list->ai_addr, list->ai_addrlen);
    if (endpoint.empty()) continue;
    endpoint.set_port(port);
    if (std::find(endpoints.begin(), endpoints.end(), endpoint) ==
        endpoints.end()) {
      endpoints.push_back(std::move(endpoint));
    }
  }
  return endpoints;
}

// Blocks the thread.
Expected<std::vector<Endpoint>, Status> AskSystem(std::string_view text,
                                                  const Name& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;  // One entry per address, not three.
  addrinfo* list = nullptr;
  const int result = ::getaddrinfo(name.host.c_str(), nullptr, &hints, &list);
  const int error = errno;
  if (result == EAI_SYSTEM) {
    return Error(error, text, std::system_category().message(error));
  }
  if (result != 0) return Error(EHOSTUNREACH, text, ::gai_strerror(result));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(
      list, &::freeaddrinfo);
  std::vector<Endpoint> endpoints = ToEndpoints(list, name.port);
  if (endpoints.empty()) {
    return Error(EHOSTUNREACH, text, "the host has no usable address");
  }
  return endpoints;
}

// A worker is too precious to sit in getaddrinfo, and the stack of a fiber may
// be too small for it. For within a blocking region, whose end the runtime's
// end waits for.
Expected<std::vector<Endpoint>, Status> AskOnAThread(std::string_view text,
                                                     const Name& name) {
  std::optional<Expected<std::vector<Endpoint>, Status>> answer;
  try {
    std::thread([&] { answer.emplace(AskSystem(text, name)); }).join();
  } catch (const std::system_error& error) {
    return Error(EAGAIN, text, std::string("no thread: ") + error.what());
  }
  return std::move(*answer);
}

// Connecting a datagram socket sends nothing.
bool HasRoute(const Endpoint& endpoint) {
  const UniqueFd fd(::socket(endpoint.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno != EAFNOSUPPORT;
  sockaddr_storage address;
  const socklen_t length = endpoint.ToSockaddr(&address);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                length) == 0) {
    return true;
  }
  switch (errno) {
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EHOSTUNREACH:
    case EINVAL:  // A link-local address without a zone.
    case ENETUNREACH:
      return false;
    default:
      return true;
  }
}

}  // namespace

std::vector<Endpoint> WithRoute(std::vector<Endpoint> endpoints) {
  if (endpoints.size() < 2) return endpoints;
  const auto reachable =
      std::stable_partition(endpoints.begin(), endpoints.end(), HasRoute);
  if (reachable != endpoints.begin()) {
    endpoints.erase(reachable, endpoints.end());
  }
  return endpoints;
}

Expected<std::vector<Endpoint>, Status> Resolve(std::string_view name) {
  if (auto literal = EndpointFromString(name)) {
    return std::vector<Endpoint>{std::move(*literal)};
  }
  const auto parsed = ParseName(name);
  if (!parsed) return parsed.error();

  if (fiber::CurrentFiber() == nullptr) return AskSystem(name, *parsed);
  return fiber::RunBlocking([&] { return AskOnAThread(name, *parsed); });
}

}  // namespace flare::io

#include "flare/rpc/http_client/http_proxies.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "flare/base/percent.h"
#include "flare/base/string.h"
#include "flare/io/secrets.h"

namespace flare {
namespace rpc {
namespace {

flare::Status BadProxy(std::string_view why) {
  // It isn't shown: it may have a password.
  return flare::Status(
      ERROR_INVALID_URI_ADDRESS,
      "a proxy's URL: " + std::string(why) +
          "; it is like http://proxy.example.com:3128, with user:password@ "
          "before the host if the proxy asks for them");
}

Expected<std::string, flare::Status> AuthorizationOf(std::string_view user) {
  const std::size_t colon = user.find(':');
  if (colon == user.npos) {
    return BadProxy("before '@' there must be user:password");
  }
  const auto name = UnescapePercent(user.substr(0, colon));
  const auto password = UnescapePercent(user.substr(colon + 1));
  if (!name || !password) {
    return BadProxy("a '%' isn't followed by two hex digits");
  }
  return "Proxy-Authorization: Basic " +
         io::EncodeBase64(*name + ':' + *password) + "\r\n";
}

Expected<std::optional<HttpProxy>, flare::Status> ParseProxy(
    std::string_view text) {
  if (text.empty()) return std::optional<HttpProxy>();
  constexpr std::string_view kScheme = "http://";
  if (const std::size_t end = text.find("://"); end == text.npos) {
    // As programs take it from the environment.
  } else if (IEquals(text.substr(0, end + 3), kScheme)) {
    text.remove_prefix(kScheme.size());
  } else {
    return BadProxy("only proxies that speak plain HTTP are known");
  }
  HttpProxy proxy;
  // Passwords may have an '@'.
  const std::size_t at = text.substr(0, text.find('/')).rfind('@');
  if (at != text.npos) {
    auto lines = AuthorizationOf(text.substr(0, at));
    if (!lines) return lines.error();
    proxy.lines = *std::move(lines);
    text.remove_prefix(at + 1);
  }
  const auto url = ParseHttpUrl(std::string(kScheme) + std::string(text));
  if (!url) return BadProxy("it has no good host and port");
  if (url->target != "/") return BadProxy("it must end behind the port");
  proxy.address = url->address;
  if (proxy.address.starts_with("unix:")) {
    return BadProxy("a Unix socket isn't one");
  }
  return std::optional(std::move(proxy));
}

bool IsWithin(std::string_view host, std::string_view domain) {
  return host.size() > domain.size() && host.ends_with(domain) &&
         host[host.size() - domain.size() - 1] == '.';
}

std::string_view WithoutPort(std::string_view address) {
  return address.substr(0, address.rfind(':'));
}

// A variable is named in lower case, or else in upper case.
std::string EnvironmentOf(const char* name, const char* upper_name) {
  const char* value = std::getenv(name);
  if (value == nullptr && upper_name != nullptr) {
    value = std::getenv(upper_name);
  }
  return value == nullptr ? "" : value;
}

}  // namespace

Expected<HttpProxies, flare::Status> HttpProxies::Create(
    const HttpProxyOptions& options) {
  auto http = ParseProxy(options.http);
  if (!http) return http.error();
  auto https = ParseProxy(options.https);
  if (!https) return https.error();
  HttpProxies proxies;
  proxies.http_ = *std::move(http);
  proxies.https_ = *std::move(https);
  for (const std::string& host : options.except) {
    std::string_view name = Trim(host);
    if (auto network = ParseNetwork(name)) {
      proxies.except_networks_.push_back(*std::move(network));
      continue;
    }
    if (name.starts_with("*.")) name.remove_prefix(1);
    if (name.starts_with('.')) name.remove_prefix(1);
    if (!name.empty()) proxies.except_.push_back(ToLower(name));
  }
  return proxies;
}

const HttpProxy* HttpProxies::For(const HttpUrl& url) const {
  const std::optional<HttpProxy>& proxy = url.tls ? https_ : http_;
  return proxy && !IsExcepted(url.address) ? &*proxy : nullptr;
}

bool HttpProxies::Network::Has(const Endpoint& address) const {
  return address.Network(ipv4_bits, ipv6_bits) == first;
}

std::optional<HttpProxies::Network> HttpProxies::ParseNetwork(
    std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == text.npos) return std::nullopt;
  const unsigned bits =
      TryParse<std::uint8_t>(text.substr(slash + 1)).value_or(255);
  std::string_view ip = text.substr(0, slash);
  if (ip.starts_with('[') && ip.ends_with(']')) {
    ip = ip.substr(1, ip.size() - 2);
  }
  Network network;
  if (network.first = EndpointFromIpv4(ip, 0); !network.first.empty()) {
    network.ipv4_bits = bits;
  } else if (network.first = EndpointFromIpv6(ip, 0); !network.first.empty()) {
    network.ipv6_bits = bits;
    // Addresses in ::ffff:0:0/96 count as IPv4, so no network is larger.
    constexpr unsigned kMapped = 96;
    if (network.first.Network(32, 128).family() == AF_INET) {
      network.ipv4_bits = bits < kMapped ? 255 : bits - kMapped;
    }
  }
  if (network.first.empty() || network.ipv4_bits > 32 ||
      network.ipv6_bits > 128) {
    return std::nullopt;
  }
  network.first = network.first.Network(network.ipv4_bits, network.ipv6_bits);
  return network;
}

// `address`, here and below: with its port.
bool HttpProxies::IsInNetwork(std::string_view address) const {
  if (except_networks_.empty()) return false;
  const auto endpoint = EndpointFromString(address);
  return endpoint &&
         std::any_of(except_networks_.begin(), except_networks_.end(),
                     [&](const Network& n) { return n.Has(*endpoint); });
}

bool HttpProxies::IsExcepted(std::string_view address) const {
  const std::string_view host = WithoutPort(address);
  for (const std::string_view name : except_) {
    if (name == "*" || name == address || name == host) return true;
    if (host.starts_with('[') && host.substr(1, host.size() - 2) == name) {
      return true;  // An IPv6 address without its brackets.
    }
    if (IsWithin(host, name) || IsWithin(address, name)) return true;
  }
  return IsInNetwork(address);
}

}  // namespace rpc

HttpProxyOptions HttpProxyOptions::FromEnvironment() {
  HttpProxyOptions options;
  // HTTP_PROXY isn't looked at: to CGI programs it is a field of the request.
  options.http = rpc::EnvironmentOf("http_proxy", nullptr);
  options.https = rpc::EnvironmentOf("https_proxy", "HTTPS_PROXY");
  const std::string all = rpc::EnvironmentOf("all_proxy", "ALL_PROXY");
  if (options.http.empty()) options.http = all;
  if (options.https.empty()) options.https = all;
  const std::string except = rpc::EnvironmentOf("no_proxy", "NO_PROXY");
  for (const std::string_view hosts : Split(except, ',')) {
    for (const std::string_view host : Split(hosts, ' ')) {
      options.except.emplace_back(Trim(host));
    }
  }
  return options;
}

}  // namespace flare

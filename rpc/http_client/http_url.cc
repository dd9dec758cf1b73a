#include "flare/rpc/http_client/http_url.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http_client_options.h"

namespace flare::rpc {
namespace {

// Scheme and host of a URL, a malformed one too: the rest may be secret.
std::string NameOf(std::string_view url) {
  std::string_view scheme;
  const std::size_t end = std::min(url.find_first_of("/?#"), url.size());
  if (url.substr(0, end).ends_with(':') && url.substr(end).starts_with("//")) {
    scheme = url.substr(0, end + 2);
    url.remove_prefix(scheme.size());
  }
  std::string_view host = url.substr(0, url.find_first_of("/?#"));
  host.remove_prefix(host.rfind('@') + 1);  // npos + 1 is 0.
  // No port: it may be the begin of a password that has a slash.
  host = host.substr(
      0, host.starts_with('[') ? host.find(']') + 1 : host.find(':'));
  return OneLine(scheme) + OneLine(host);
}

flare::Status BadUrl(std::string_view url, std::string_view why) {
  return flare::Status(ERROR_INVALID_URI_ADDRESS,
                       "a URL of \"" + NameOf(url) + "\": " + std::string(why));
}

// As names of DNS (RFC 1035, 2.3.4), which have no more; so labels of metrics
// and peers of spans are bounded.
constexpr std::size_t kMaxHostBytes = 255;

// Fills in host and address. Returns the fault.
std::string_view ReadAuthority(std::string_view authority, HttpUrl* out) {
  if (authority.find('@') != authority.npos) {
    return "a name and a password belong to the field Authorization";
  }
  // Behind the brackets of an IPv6 address, if it is one.
  const std::size_t bracket = authority.find(']');
  const std::size_t colon =
      authority.find(':', bracket == authority.npos ? 0 : bracket);
  const std::string host = ToLower(authority.substr(0, colon));
  if (host.empty() || !MayBeHttpHost(authority)) return "there is no good host";
  if (host.size() > kMaxHostBytes) return "the host is over 255 bytes long";
  const std::uint16_t usual = out->tls ? 443 : 80;
  std::optional<std::uint16_t> port = usual;
  if (colon != authority.npos && colon + 1 != authority.size()) {
    port = TryParse<std::uint16_t>(authority.substr(colon + 1));
  }
  if (!port || *port == 0) return "the port is not in 1..65535";
  out->address = host + ':' + std::to_string(*port);
  out->host = *port == usual ? host : out->address;
  return {};
}

std::string_view WithoutFragment(std::string_view text) {
  return text.substr(0, text.find('#'));
}

// RFC 3986, 5.2.4, for a path that begins with a slash.
std::string RemoveDotSegments(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/', 1), path.size());
    const std::string_view segment = path.substr(0, end);
    path.remove_prefix(end);
    const bool up = segment == "/..";
    if (up) out.resize(out.empty() ? 0 : out.rfind('/'));
    if (up || segment == "/.") {
      if (path.empty()) out += '/';
    } else {
      out += segment;
    }
  }
  return out;
}

// "scheme:..."
bool HasScheme(std::string_view reference) {
  const std::size_t end = reference.find_first_of(":/?#");
  return end != reference.npos && end != 0 && reference[end] == ':';
}

}  // namespace

Expected<HttpUrl, flare::Status> ParseHttpUrl(std::string_view text) {
  HttpUrl url;
  const std::size_t scheme = text.find("://");
  if (scheme == text.npos) {
    return BadUrl(text, "it must begin with http:// or https://");
  }
  url.tls = IEquals(text.substr(0, scheme), "https");
  if (!url.tls && !IEquals(text.substr(0, scheme), "http")) {
    return flare::Status(
        ERROR_PROTOCOL_NOT_SUPPORTED,
        BadUrl(text, "the protocol is neither http nor https").message());
  }
  const std::string_view rest = text.substr(scheme + 3);
  const std::size_t end = std::min(rest.find_first_of("/?#"), rest.size());
  if (auto fault = ReadAuthority(rest.substr(0, end), &url); !fault.empty()) {
    return BadUrl(text, fault);
  }
  const std::string_view target = WithoutFragment(rest.substr(end));
  if (!target.starts_with('/')) url.target = "/";
  url.target += target;
  if (!std::all_of(target.begin(), target.end(),
                   [](char c) { return c > ' ' && c <= '~'; })) {
    return BadUrl(text,
                  "it has characters that must be escaped, as a space by %20");
  }
  return url;
}

Expected<HttpUrl, flare::Status> ResolveHttpUrl(const HttpUrl& base,
                                                std::string_view reference) {
  if (HasScheme(reference)) return ParseHttpUrl(reference);
  if (reference.starts_with("//")) {
    return ParseHttpUrl((base.tls ? "https:" : "http:") +
                        std::string(reference));
  }
  reference = WithoutFragment(reference);
  const std::string_view path = PathOfTarget(base.target);
  if (reference.empty()) return base;
  if (reference.starts_with('?')) {
    return ParseHttpUrl(base.origin() + std::string(path) +
                        std::string(reference));
  }
  const std::size_t query = std::min(reference.find('?'), reference.size());
  std::string merged;
  if (!reference.starts_with('/')) {
    merged = path.substr(0, path.rfind('/') + 1);
  }
  merged += reference.substr(0, query);
  return ParseHttpUrl(base.origin() + RemoveDotSegments(merged) +
                      std::string(reference.substr(query)));
}

}  // namespace flare::rpc

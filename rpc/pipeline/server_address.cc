#include "flare/rpc/pipeline/server_address.h"

#include <cstddef>
#include <optional>

#include "flare/base/string.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxBytesOfHost = 255;

}  // namespace

std::string_view ReadServerAddress(std::string_view text,
                                   std::uint16_t default_port,
                                   std::string* address) {
  const std::size_t bracket = text.find(']');
  const std::size_t colon = text.find(':', bracket == text.npos ? 0 : bracket);
  const std::string_view host = text.substr(0, colon);
  if (host.empty() || host == "[]") return "there is no host";
  if (host.size() > kMaxBytesOfHost) return "the host is over 255 bytes long";
  for (char c : host) {
    if (c <= ' ' || c > '~' || c == '/' || c == '?' || c == '#' || c == '%' ||
        c == ',') {
      return "the host has other characters than names and addresses";
    }
  }
  std::optional<std::uint16_t> port = default_port;
  if (colon != text.npos) {
    port = TryParse<std::uint16_t>(text.substr(colon + 1));
  }
  if (!port || *port == 0) return "the port is not in 1..65535";
  *address = ToLower(host) + ':' + std::to_string(*port);
  return {};
}

}  // namespace flare::rpc

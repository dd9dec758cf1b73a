#include "flare/rpc/redis/redis_uri.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "flare/base/string.h"
#include "flare/rpc/redis_client_options.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxRedisHostBytes = 255;

flare::Status BadRedisUri(std::string_view why) {
  return flare::Status(
      REDIS_INVALID_URI,
      "a URI of Redis: " + std::string(why) +
          "; it is like redis://user:password@host:6379/0, rediss://host or "
          "unix:/path?db=0");
}

// Nothing: an escape is malformed.
std::optional<std::string> UnescapeUserInfo(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i != text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const auto byte = TryParse<std::uint8_t>(text.substr(i + 1, 2), 16);
    if (!byte || text.size() - i < 3) return std::nullopt;
    out += static_cast<char>(*byte);
    i += 2;
  }
  return out;
}

// Each of these functions returns the fault.
std::string_view ReadUserInfo(std::string_view text, RedisUri* out) {
  const std::size_t colon = text.find(':');
  if (colon == text.npos) {
    return "before '@' there must be user:password, or :password";
  }
  const auto user = UnescapeUserInfo(text.substr(0, colon));
  const auto password = UnescapeUserInfo(text.substr(colon + 1));
  if (!user || !password) return "a '%' isn't followed by two hex digits";
  out->user = *user;
  out->password = *password;
  return {};
}

std::string_view ReadDatabase(std::string_view text, RedisUri* out) {
  if (text.empty()) return {};
  const auto database = TryParse<std::uint16_t>(text);
  if (!database) return "the database isn't a number up to 65535";
  out->database = *database;
  return {};
}

std::string_view ReadRedisHost(std::string_view text, RedisUri* out) {
  const std::size_t bracket = text.find(']');
  const std::size_t colon = text.find(':', bracket == text.npos ? 0 : bracket);
  const std::string_view host = text.substr(0, colon);
  if (host.empty() || host == "[]") return "there is no host";
  if (host.size() > kMaxRedisHostBytes)
    return "the host is over 255 bytes long";
  for (char c : host) {
    if (c <= ' ' || c > '~' || c == '/' || c == '?' || c == '#' || c == '%') {
      return "the host has other characters than names and addresses";
    }
  }
  std::optional<std::uint16_t> port = 6379;
  if (colon != text.npos) {
    port = TryParse<std::uint16_t>(text.substr(colon + 1));
  }
  if (!port || *port == 0) return "the port is not in 1..65535";
  out->address = ToLower(host) + ':' + std::to_string(*port);
  return {};
}

std::string_view ReadUnixUri(std::string_view path, RedisUri* out) {
  if (path.starts_with("//")) path.remove_prefix(2);
  const std::size_t query = path.find('?');
  out->address = "unix:" + std::string(path.substr(0, query));
  if (out->address.size() == 5) return "there is no path";
  if (query == path.npos) return {};
  if (!path.substr(query).starts_with("?db=")) {
    return "behind the path only ?db= is known";
  }
  return ReadDatabase(path.substr(query + 4), out);
}

std::string_view ReadTcpUri(std::string_view rest, RedisUri* out) {
  // Passwords may have a slash.
  const std::size_t at = rest.rfind('@');
  if (at != rest.npos) {
    if (auto fault = ReadUserInfo(rest.substr(0, at), out); !fault.empty()) {
      return fault;
    }
    rest.remove_prefix(at + 1);
  }
  const std::size_t slash = rest.find('/');
  if (auto fault = ReadRedisHost(rest.substr(0, slash), out); !fault.empty()) {
    return fault;
  }
  return slash == rest.npos ? std::string_view()
                            : ReadDatabase(rest.substr(slash + 1), out);
}

}  // namespace

std::string RedisUri::ToString() const {
  const std::string db = std::to_string(database);
  if (address.starts_with("unix:")) return address + "?db=" + db;
  return (tls ? "rediss://" : "redis://") + address + '/' + db;
}

Expected<RedisUri, flare::Status> ParseRedisUri(std::string_view text) {
  RedisUri uri;
  std::string_view fault;
  if (text.starts_with("unix:")) {
    fault = ReadUnixUri(text.substr(5), &uri);
  } else if (text.starts_with("redis://")) {
    fault = ReadTcpUri(text.substr(8), &uri);
  } else if (text.starts_with("rediss://")) {
    uri.tls = true;
    fault = ReadTcpUri(text.substr(9), &uri);
  } else {
    fault = "it begins with neither redis://, rediss:// nor unix:";
  }
  if (!fault.empty()) return BadRedisUri(fault);
  return uri;
}

}  // namespace flare::rpc

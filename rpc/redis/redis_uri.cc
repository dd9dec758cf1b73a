#include "flare/rpc/redis/redis_uri.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "flare/base/percent.h"
#include "flare/base/string.h"
#include "flare/rpc/pipeline/server_address.h"
#include "flare/rpc/redis_client_options.h"

namespace flare::rpc {
namespace {

flare::Status BadRedisUri(std::string_view why) {
  return flare::Status(
      REDIS_INVALID_URI,
      "a URI of Redis: " + std::string(why) +
          "; it is like redis://user:password@host:6379/0, rediss://host, "
          "unix:/path?db=0, redis-cluster://host:6379,host:6379 or "
          "redis-sentinel://host:26379,host:26379/0#mymaster");
}

// Each of these functions returns the fault.
std::string_view ReadUserInfo(std::string_view text, RedisUri* out) {
  const std::size_t colon = text.find(':');
  if (colon == text.npos) {
    return "before '@' there must be user:password, or :password";
  }
  const auto user = UnescapePercent(text.substr(0, colon));
  const auto password = UnescapePercent(text.substr(colon + 1));
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
  if (text.find(',') != text.npos) {
    return "there are several hosts, as redis-cluster:// has them";
  }
  return ReadServerAddress(
      text, out->kind == RedisUri::Kind::kSentinel ? 26379 : 6379,
      &out->addresses.emplace_back());
}

std::string_view ReadRedisHosts(std::string_view text, RedisUri* out) {
  if (out->kind == RedisUri::Kind::kServer) return ReadRedisHost(text, out);
  for (std::string_view host : Split(text, ',', /*keep_empty=*/true)) {
    if (auto fault = ReadRedisHost(host, out); !fault.empty()) return fault;
  }
  return {};
}

std::string_view ReadUnixUri(std::string_view path, RedisUri* out) {
  if (path.starts_with("//")) path.remove_prefix(2);
  const std::size_t query = path.find('?');
  if (path.substr(0, query).empty()) return "there is no path";
  out->addresses = {"unix:" + std::string(path.substr(0, query))};
  if (query == path.npos) return {};
  if (!path.substr(query).starts_with("?db=")) {
    return "behind the path only ?db= is known";
  }
  return ReadDatabase(path.substr(query + 4), out);
}

[[nodiscard]] bool ReadRedisScheme(std::string_view scheme, RedisUri* out) {
  const std::size_t dash = std::min(scheme.find('-'), scheme.size());
  const std::string_view security = scheme.substr(0, dash);
  const std::string_view kind = scheme.substr(dash);
  out->tls = security == "rediss";
  if (kind == "-cluster") out->kind = RedisUri::Kind::kCluster;
  if (kind == "-sentinel") out->kind = RedisUri::Kind::kSentinel;
  return (out->tls || security == "redis") &&
         (kind.empty() || out->kind != RedisUri::Kind::kServer);
}

// Takes "#mymaster" off the end.
std::string_view ReadMasterName(std::string_view* rest, RedisUri* out) {
  const std::size_t hash = std::min(rest->find('#'), rest->size());
  out->master = rest->substr(std::min(hash + 1, rest->size()));
  *rest = rest->substr(0, hash);
  if (out->master.empty()) {
    return "there is no name of the master, as #mymaster at the end";
  }
  for (char c : out->master) {
    if (c <= ' ' || c > '~') return "the master's name has odd characters";
  }
  return {};
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
  if (out->kind == RedisUri::Kind::kSentinel) {
    if (auto fault = ReadMasterName(&rest, out); !fault.empty()) return fault;
  }
  const std::size_t slash = rest.find('/');
  if (auto fault = ReadRedisHosts(rest.substr(0, slash), out); !fault.empty()) {
    return fault;
  }
  if (slash == rest.npos) return {};
  if (auto fault = ReadDatabase(rest.substr(slash + 1), out); !fault.empty()) {
    return fault;
  }
  return out->kind == RedisUri::Kind::kCluster && out->database != 0
             ? "a cluster has database 0 only"
             : std::string_view();
}

}  // namespace

std::string RedisUri::ToString() const {
  const std::string db = std::to_string(database);
  if (addresses.front().starts_with("unix:")) {
    return addresses.front() + "?db=" + db;
  }
  std::string text = tls ? "rediss" : "redis";
  text += kind == Kind::kCluster    ? "-cluster://"
          : kind == Kind::kSentinel ? "-sentinel://"
                                    : "://";
  for (const std::string& address : addresses) {
    text += (&address == &addresses.front() ? "" : ",") + address;
  }
  if (kind == Kind::kCluster) return text;
  return text + '/' + db + (master.empty() ? "" : '#' + master);
}

Expected<RedisUri, flare::Status> ParseRedisUri(std::string_view text) {
  RedisUri uri;
  if (text.starts_with("unix:")) {
    const std::string_view fault = ReadUnixUri(text.substr(5), &uri);
    return fault.empty()
               ? uri
               : Expected<RedisUri, flare::Status>(BadRedisUri(fault));
  }
  const std::size_t end = text.find("://");
  if (end == text.npos || !ReadRedisScheme(text.substr(0, end), &uri)) {
    return BadRedisUri("it begins with no scheme of Redis");
  }
  const std::string_view fault = ReadTcpUri(text.substr(end + 3), &uri);
  if (!fault.empty()) return BadRedisUri(fault);
  return uri;
}

}  // namespace flare::rpc

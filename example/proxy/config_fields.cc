#include "example/proxy/config_fields.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "example/proxy/client_hello.h"
#include "example/proxy/config_value.h"
#include "flare/base/string.h"
#include "flare/io/resolver.h"

namespace example::proxy {
namespace {

using flare::Endpoint;
using flare::Expected;
using flare::Status;
using std::chrono::nanoseconds;
using namespace std::literals;

constexpr nanoseconds kDay = 24h;

Status OutOfRange(std::string_view text, const std::string& low,
                  const std::string& high) {
  return Status(EINVAL, "'" + std::string(text) + "' is out of range; it may " +
                            "be from " + low + " to " + high);
}

Status SetDuration(std::string_view text, nanoseconds low, nanoseconds high,
                   nanoseconds* out) {
  const auto value = ParseDuration(text);
  if (!value) return value.error();
  if (*value < low || *value > high) {
    return OutOfRange(text, FormatDuration(low), FormatDuration(high));
  }
  *out = *value;
  return Status();
}

// Sets a duration where 0 has a meaning of its own.
Status SetOptionalDuration(std::string_view text, nanoseconds low,
                           nanoseconds high, nanoseconds* out) {
  const auto value = ParseDuration(text);
  if (value && *value == 0ns) {
    *out = 0ns;
    return Status();
  }
  Status status = SetDuration(text, low, high, out);
  if (status.ok() || !value) return status;
  return Status(EINVAL, status.message() + ", or 0");
}

template <class T>
Status SetInteger(std::string_view text, std::int64_t low, std::int64_t high,
                  T* out) {
  const auto value = ParseInteger(text);
  if (!value) return value.error();
  if (*value < low || *value > high) {
    return OutOfRange(text, std::to_string(low), std::to_string(high));
  }
  *out = static_cast<T>(*value);
  return Status();
}

Status SetBytes(std::string_view text, std::uint64_t low, std::size_t* out) {
  constexpr std::uint64_t kHigh = 1 << 30;
  const auto value = ParseByteCount(text);
  if (!value) return value.error();
  if (*value < low || *value > kHigh) {
    return OutOfRange(text, std::to_string(low), "1GiB");
  }
  *out = *value;
  return Status();
}

Status SetBool(std::string_view text, bool* out) {
  const auto value = flare::TryParse<bool>(text);
  if (!value) return NoSuchChoice(text, {"true", "false"});
  *out = *value;
  return Status();
}

template <class T>
Status SetChoice(std::string_view text,
                 std::initializer_list<std::pair<std::string_view, T>> choices,
                 T* out) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : choices) {
    if (name == text) {
      *out = value;
      return Status();
    }
    names.push_back(name);
  }
  return NoSuchChoice(text, names);
}

// Sets a text for a request's head.
Status SetToken(std::string_view text, std::string_view first,
                std::string* out) {
  const bool clean = std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != '\x7f';
  });
  if (!clean) {
    return Status(EINVAL, "'" + std::string(text) +
                              "' has white space or control characters in it");
  }
  if (!text.starts_with(first)) {
    return Status(EINVAL, "'" + std::string(text) + "' doesn't begin with '" +
                              std::string(first) + "'");
  }
  *out = text;
  return Status();
}

Expected<std::vector<Endpoint>> ResolveAll(const std::string& text) {
  if (text.empty()) {
    return Status(EINVAL, "it is empty; write host:port or unix:/path");
  }
  auto addresses = flare::io::Resolve(text);
  if (addresses) return addresses;
  const Status& why = addresses.error();
  return Status(EINVAL,
                "can't " + why.message() +
                    (why.code() == EINVAL
                         ? " (as in 10.0.0.1:80, [::1]:80, unix:/run/x.sock)"
                         : "; check the name, or write the address"));
}

// To listen on. The first one; IPv4 before IPv6, which "localhost" often means,
// too, where there is none.
Expected<Endpoint> ResolveOne(const std::string& text) {
  auto addresses = ResolveAll(text);
  if (!addresses) return addresses.error();
  const auto v4 =
      std::find_if(addresses->begin(), addresses->end(),
                   [](const Endpoint& e) { return e.family() == AF_INET; });
  return v4 == addresses->end() ? addresses->front() : *v4;
}

Status AddListener(const PlacedText& value, ProxyConfig* config) {
  auto address = ResolveOne(value.text);
  if (!address) return address.error();
  for (const ListenerConfig& other : config->listeners) {
    // Port 0 is another one each time.
    if (other.address == *address &&
        (address->port() != 0 || address->family() == AF_UNIX)) {
      return Status(EINVAL, "'" + value.text + "' is the same address as in " +
                                other.where + "; leave one out");
    }
  }
  config->listeners.push_back({std::move(*address), value.where});
  return Status();
}

// Adds the servers at `text`, or finds those that are there already. `use` sets
// the purpose of each, and returns false if it was that before.
template <class Use>
Status AddServers(const std::string& text, const std::string& where,
                  const Use& use, ProxyConfig* config) {
  const auto addresses = ResolveAll(text);
  if (!addresses) return addresses.error();
  // The label of a name's address doesn't depend on the others: a reload that
  // finds more or fewer of them knows those that stay.
  const bool is_name = !flare::EndpointFromString(text);
  for (const Endpoint& address : *addresses) {
    if (address.family() != AF_UNIX && address.port() == 0) {
      return Status(EINVAL, "'" + text +
                                "' has port 0, which nobody can be connected "
                                "to; write the server's port");
    }
    auto it = std::find_if(
        config->upstreams.begin(), config->upstreams.end(),
        [&](const UpstreamConfig& u) { return u.address == address; });
    if (it == config->upstreams.end()) {
      it = config->upstreams.insert(
          it, {is_name ? text + "@" + address.ToString() : text,
               address,
               where,
               {},
               /*is_default=*/false});
    }
    if (!use(&*it)) {
      return Status(EINVAL, "'" + text + "' is the same server as in " +
                                it->where + "; leave one out");
    }
  }
  return Status();
}

Status AddUpstream(const PlacedText& value, ProxyConfig* config) {
  return AddServers(
      value.text, value.where,
      [](UpstreamConfig* u) { return !std::exchange(u->is_default, true); },
      config);
}

// "host=address"
Status AddSniRoute(const PlacedText& value, ProxyConfig* config) {
  if (value.text.empty()) return Status();  // A flag that takes them away.
  const std::size_t equals = value.text.find('=');
  const std::string host =
      flare::ToLower(std::string_view(value.text).substr(0, equals));
  if (equals == std::string::npos || !IsHostPattern(host)) {
    return Status(EINVAL, "'" + value.text +
                              "' is no route; write host=address, as in "
                              "www.example.org=10.0.0.1:443 or "
                              "*.example.org=10.0.0.1:443");
  }
  config->routes_by_host = true;
  return AddServers(
      value.text.substr(equals + 1), value.where,
      [&host](UpstreamConfig* u) {
        if (std::find(u->hosts.begin(), u->hosts.end(), host) !=
            u->hosts.end()) {
          return false;
        }
        u->hosts.push_back(host);
        return true;
      },
      config);
}

// An element of a list of files.
Status AddFile(const PlacedText& value, std::vector<std::string>* files) {
  if (!value.text.empty()) files->push_back(value.text);
  return Status();
}

// An element of a list of protocols' names (ALPN).
Status AddProtocol(const PlacedText& value, std::vector<std::string>* names) {
  constexpr std::size_t kLongest = 255;  // RFC 7301.
  if (value.text.size() > kLongest) {
    return Status(EINVAL, "'" + value.text +
                              "' is too long; a protocol's name "
                              "has up to 255 bytes, such as h2 or http/1.1");
  }
  return AddFile(value, names);
}

Status SetText(std::string_view text, std::string* out) {
  *out = text;
  return Status();
}

Status SetAdmin(const PlacedText& value, ProxyConfig* config) {
  if (value.text.empty()) {
    config->admin = Endpoint();
    return Status();
  }
  auto address = ResolveOne(value.text);
  if (!address) return address.error();
  config->admin = std::move(*address);
  return Status();
}

// A field that is one value: `set` is given its text.
template <auto kSet>
constexpr Field Single(std::string_view name, std::string_view flag) {
  return {name, flag, /*is_list=*/false,
          [](const PlacedText& value, ProxyConfig* config) {
            return kSet(value.text, config);
          }};
}
template <auto kSet>
constexpr Field Single(std::string_view name) {
  return Single<kSet>(name, name);
}

using Text = std::string_view;
using Config = ProxyConfig;
using HealthType = HealthCheckConfig::Type;

constexpr Field kFields[] = {
    {"listen", "listen", true, AddListener},
    {"upstreams", "upstreams", true, AddUpstream},
    {"sni_routes", "sni_routes", true, AddSniRoute},
    Single<[](Text text, Config* c) {
      return SetChoice<LoadBalancing>(
          text,
          {{"round_robin", LoadBalancing::kRoundRobin},
           {"least_connections", LoadBalancing::kLeastConnections},
           {"source_hash", LoadBalancing::kSourceHash}},
          &c->lb);
    }>("lb"),
    Single<[](Text text, Config* c) {
      return SetDuration(text, 1ms, 1h, &c->connect_timeout);
    }>("connect_timeout"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 1, 100, &c->connect_attempts);
    }>("connect_attempts"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 0, 1'000'000, &c->max_failures);
    }>("max_failures"),
    Single<[](Text text, Config* c) {
      return SetDuration(text, 1ms, kDay, &c->failure_pause);
    }>("failure_pause"),
    Single<[](Text text, Config* c) {
      return SetOptionalDuration(text, 1ms, 365 * kDay, &c->idle_timeout);
    }>("idle_timeout"),
    Single<[](Text text, Config* c) {
      return SetOptionalDuration(text, 1ms, kDay, &c->tcp_user_timeout);
    }>("tcp_user_timeout"),
    Single<[](Text text, Config* c) {
      return SetOptionalDuration(text, 1s, 9h, &c->tcp_keepalive);
    }>("tcp_keepalive"),
    Single<[](Text text, Config* c) {
      return SetDuration(text, 1s, 9h, &c->tcp_keepalive_interval);
    }>("tcp_keepalive_interval"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 1, 10'000'000, &c->max_connections);
    }>("max_connections"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 0, 10'000'000, &c->max_connections_per_upstream);
    }>("max_connections_per_upstream"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 1, 65535, &c->backlog);
    }>("backlog"),
    Single<[](Text text, Config* c) {
      return SetBytes(text, 4096, &c->high_watermark);
    }>("high_watermark"),
    Single<[](Text text, Config* c) {
      return SetBytes(text, 0, &c->low_watermark);
    }>("low_watermark"),
    Single<[](Text text, Config* c) {
      return SetChoice<CopyMode>(text,
                                 {{"auto", CopyMode::kAuto},
                                  {"copy", CopyMode::kCopy},
                                  {"splice", CopyMode::kSplice}},
                                 &c->copy_mode);
    }>("copy_mode"),
    Single<[](Text text, Config* c) {
      return SetBool(text, &c->accept_proxy_protocol);
    }>("accept_proxy_protocol"),
    Single<[](Text text, Config* c) {
      return SetChoice<ProxyProtocol>(text,
                                      {{"none", ProxyProtocol::kNone},
                                       {"v1", ProxyProtocol::kV1},
                                       {"v2", ProxyProtocol::kV2}},
                                      &c->send_proxy_protocol);
    }>("send_proxy_protocol"),
    {"tls_certificate", "tls_certificate", true,
     [](const PlacedText& value, Config* c) {
       return AddFile(value, &c->tls_files.certificates);
     }},
    {"tls_key", "tls_key", true,
     [](const PlacedText& value, Config* c) {
       return AddFile(value, &c->tls_files.keys);
     }},
    Single<[](Text text, Config* c) {
      return SetText(text, &c->tls_files.client_ca);
    }>("tls_client_ca"),
    Single<[](Text text, Config* c) {
      return SetText(text, &c->tls_files.crl);
    }>("tls_crl"),
    Single<[](Text text, Config* c) {
      return SetChoice<flare::TlsVersion>(
          text,
          {{"1.2", flare::TlsVersion::k1_2}, {"1.3", flare::TlsVersion::k1_3}},
          &c->tls_files.min_version);
    }>("tls_min_version"),
    Single<[](Text text, Config* c) {
      return SetDuration(text, 1ms, 1h, &c->tls_files.handshake_timeout);
    }>("tls_handshake_timeout"),
    {"tls_alpn", "tls_alpn", true,
     [](const PlacedText& value, Config* c) {
       return AddProtocol(value, &c->tls_files.alpn);
     }},
    Single<[](Text text, Config* c) {
      return SetBool(text, &c->tls_files.to_upstreams);
    }>("upstream_tls"),
    Single<[](Text text, Config* c) {
      return SetText(text, &c->tls_files.upstream.ca);
    }>("upstream_tls_ca"),
    Single<[](Text text, Config* c) {
      return SetText(text, &c->tls_files.upstream.certificate);
    }>("upstream_tls_certificate"),
    Single<[](Text text, Config* c) {
      return SetText(text, &c->tls_files.upstream.key);
    }>("upstream_tls_key"),
    Single<[](Text text, Config* c) {
      return SetText(text, &c->tls_files.upstream.server_name);
    }>("upstream_tls_server_name"),
    {"upstream_tls_alpn", "upstream_tls_alpn", true,
     [](const PlacedText& value, Config* c) {
       return AddProtocol(value, &c->tls_files.upstream_alpn);
     }},
    Single<[](Text text, Config* c) {
      return SetBool(text, &c->tls_files.upstream.insecure_skip_verify);
    }>("upstream_tls_insecure_skip_verify"),
    Single<[](Text text, Config* c) {
      return SetChoice<HealthType>(text,
                                   {{"none", HealthType::kNone},
                                    {"tcp", HealthType::kTcp},
                                    {"http", HealthType::kHttp}},
                                   &c->health_check.type);
    }>("health_check.type", "health_check"),
    Single<[](Text text, Config* c) {
      return SetDuration(text, 10ms, kDay, &c->health_check.interval);
    }>("health_check.interval", "health_check_interval"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 0, 90, &c->health_check.jitter);
    }>("health_check.jitter", "health_check_jitter"),
    Single<[](Text text, Config* c) {
      return SetDuration(text, 1ms, 1h, &c->health_check.timeout);
    }>("health_check.timeout", "health_check_timeout"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 1, 1000, &c->health_check.rise);
    }>("health_check.rise", "health_check_rise"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 1, 1000, &c->health_check.fall);
    }>("health_check.fall", "health_check_fall"),
    Single<[](Text text, Config* c) {
      return SetToken(text, "/", &c->health_check.path);
    }>("health_check.path", "health_check_path"),
    Single<[](Text text, Config* c) {
      return SetToken(text, "", &c->health_check.host);
    }>("health_check.host", "health_check_host"),
    Single<[](Text text, Config* c) {
      return SetInteger(text, 100, 599, &c->health_check.status);
    }>("health_check.status", "health_check_status"),
    Single<[](Text text, Config* c) {
      return SetBool(text, &c->health_check.cut_sessions);
    }>("health_check.cut_sessions", "health_check_cut_sessions"),
    Single<[](Text text, Config* c) {
      c->access_log = text;
      return Status();
    }>("access_log"),
    Single<[](Text text, Config* c) {
      return SetOptionalDuration(text, 10ms, kDay, &c->statistics_interval);
    }>("statistics_interval"),
    {"admin", "admin", false, SetAdmin},
    Single<[](Text text, Config* c) {
      return SetDuration(text, 0s, kDay, &c->drain_deadline);
    }>("drain_deadline"),
};

}  // namespace

std::span<const Field> Fields() { return kFields; }

const Field* FindField(std::string_view name) {
  for (const Field& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

}  // namespace example::proxy

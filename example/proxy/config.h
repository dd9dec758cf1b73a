// The settings of tcp_proxy: their meanings, and how they are read from the
// command line and from a YAML file. docs/proxy.md describes each for users.
//
//   auto config = LoadConfig(ConfigSourceFromFlags());
//   if (!config) {
//     LOG(ERROR) << config.error().message();
//     return 2;
//   }
//
// A ProxyConfig is a value and is valid as LoadConfig() returns it: those who
// read one need no checks of their own. A running proxy shares one as
// shared_ptr<const ProxyConfig>; a reload makes a new one, and connections keep
// the one they began with.

#ifndef EXAMPLE_PROXY_CONFIG_H_
#define EXAMPLE_PROXY_CONFIG_H_

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/tls_context.h"
#include "flare/io/tls_options.h"

namespace example::proxy {

enum class LoadBalancing { kRoundRobin, kLeastConnections, kSourceHash };

// The header that an upstream is sent in front of the client's bytes.
enum class ProxyProtocol { kNone, kV1, kV2 };

// How bytes get from one socket to the other. kAuto: as measurements suggest.
enum class CopyMode { kAuto, kCopy, kSplice };

struct ListenerConfig {
  flare::Endpoint address;  // Port 0: the system picks one.
  // Where it was written: "proxy.yaml:3: listen[0]", "--listen". For messages.
  std::string where;

  bool operator==(const ListenerConfig&) const = default;
};

struct UpstreamConfig {
  // As written: "10.0.0.7:8080"; of a host's name each address is an upstream,
  // also if it is the only one: "backend-1:8080@10.0.0.7:8080". No two are the
  // same.
  std::string name;
  flare::Endpoint address;
  std::string where;
  // Hosts whose clients go there (`sni_routes`): "a.example", "*.a.example".
  std::vector<std::string> hosts = {};
  // Clients of other hosts do, too (`upstreams`).
  bool is_default = true;

  bool operator==(const UpstreamConfig&) const = default;
};

struct HealthCheckConfig {
  enum class Type { kNone, kTcp, kHttp };
  Type type = Type::kNone;
  // Between the end of one check and the begin of the next; each time longer
  // or shorter by up to `jitter` percent of it.
  std::chrono::nanoseconds interval = std::chrono::seconds(5);
  int jitter = 20;
  // To connect, and for kHttp to have read the status line.
  std::chrono::nanoseconds timeout = std::chrono::seconds(1);
  // So many checks in a row change the verdict.
  int rise = 2;
  int fall = 3;
  // kHttp: the requested path, the Host, and the healthy status.
  std::string path = "/";
  std::string host = "";  // Empty: the upstream's name.
  int status = 200;
  // A session through which no byte passes is cut, once its upstream is
  // unhealthy as no check had an answer (timed out, or no route).
  bool cut_sessions = true;

  bool operator==(const HealthCheckConfig&) const = default;
};

// The settings of TLS, with the files' names.
struct TlsConfig {
  // For clients. No certificate: they speak as upstreams do.
  std::vector<std::string> certificates = {};
  std::vector<std::string> keys = {};  // As many.
  std::string client_ca = "";          // If set, clients must show one, too.
  std::string crl = "";
  flare::TlsVersion min_version = flare::TlsVersion::k1_2;
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(10);
  std::vector<std::string> alpn = {};  // Accepted of clients.
  // For upstreams, if `to_upstreams`.
  bool to_upstreams = false;
  std::vector<std::string> upstream_alpn = {};  // Offered to upstreams.
  flare::TlsClientOptions upstream = {};

  bool operator==(const TlsConfig&) const = default;
};

struct ProxyConfig {
  // At least one of each; no address is listed twice.
  std::vector<ListenerConfig> listeners;
  std::vector<UpstreamConfig> upstreams;
  LoadBalancing lb = LoadBalancing::kRoundRobin;
  // An upstream has hosts: clients begin with a ClientHello of TLS, which says
  // where they go, and those that don't are closed.
  bool routes_by_host = false;

  // Connecting. A client is given up after `connect_attempts` upstreams in turn
  // (fewer if there are no more) each failed or took longer than the time-out.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds(1);
  int connect_attempts = 3;
  // So many failures to connect in a row keep an upstream from being chosen for
  // `failure_pause`, unless no other is left. 0: never.
  int max_failures = 3;
  std::chrono::nanoseconds failure_pause = std::chrono::seconds(10);

  // A pair of connections without a byte in either direction for so long is
  // closed. 0: never.
  std::chrono::nanoseconds idle_timeout = std::chrono::minutes(5);
  // A peer that doesn't acknowledge data for so long, or takes none of the
  // output that waits for it, breaks its connection (TCP_USER_TIMEOUT). 0: the
  // system's default for the former (about 15 minutes), never for the latter.
  std::chrono::nanoseconds tcp_user_timeout = std::chrono::minutes(1);
  // The system asks a peer that was silent for `tcp_keepalive`, and then every
  // `tcp_keepalive_interval`, whether it is still there; one that doesn't
  // answer three times, or for `tcp_user_timeout`, breaks its connection. In
  // whole seconds. 0: never.
  std::chrono::nanoseconds tcp_keepalive = std::chrono::seconds(30);
  std::chrono::nanoseconds tcp_keepalive_interval = std::chrono::seconds(10);

  // Clients at a time; more are closed at once. At least 1.
  std::size_t max_connections = 10000;
  // Connections to one upstream at a time; one that is full isn't chosen. 0: no
  // limit.
  std::size_t max_connections_per_upstream = 0;
  // Connections that the kernel completes ahead.
  int backlog = 1024;

  // For each direction of a pair: with `high_watermark` bytes read and not yet
  // written no more are read, until `low_watermark` are left. low < high.
  std::size_t high_watermark = 256 << 10;
  std::size_t low_watermark = 64 << 10;
  CopyMode copy_mode = CopyMode::kAuto;

  // Clients begin with a PROXY header (v1 or v2), which is taken off and names
  // the source; one without is closed.
  bool accept_proxy_protocol = false;
  ProxyProtocol send_proxy_protocol = ProxyProtocol::kNone;

  TlsConfig tls_files;
  // Made of that. Null: clients, or upstreams, are spoken to in the clear.
  std::shared_ptr<flare::io::TlsServerContext> tls = nullptr;
  std::shared_ptr<flare::io::TlsClientContext> upstream_tls = nullptr;

  HealthCheckConfig health_check;

  // A line for each connection that ended. Empty: none; "-": stdout.
  std::string access_log = "";
  // Between two lines of statistics in the log. 0: none.
  std::chrono::nanoseconds statistics_interval = std::chrono::seconds(10);
  // Where the pages /, /stats, /stats.json, /ready and /inspect are. Empty:
  // nowhere. A reload doesn't change it.
  flare::Endpoint admin;

  // On SIGTERM: how long connections may go on before they are cut.
  std::chrono::nanoseconds drain_deadline = std::chrono::seconds(30);

  // Where each setting that was given was written, for messages:
  // {"access_log", "proxy.yaml:9: access_log"}.
  std::map<std::string, std::string> where;

  bool operator==(const ProxyConfig&) const = default;
};

// Where settings come from. Those of the command line win over the file's.
struct ConfigSource {
  std::string file;  // Empty: none.
  // Only the given ones: {"connect_timeout", "250ms"}, without dashes.
  std::map<std::string, std::string> flags;
};

// The source that the program's flags describe, for use inside flare::Start().
ConfigSource ConfigSourceFromFlags();

// Reads, checks and completes the settings. Suspends the fiber, or blocks the
// thread, for as long as the file and the system's resolver take. Thread-safe.
// On a fiber it also ends when `stop` is requested (ECANCELED): a file may be a
// FIFO that nobody writes to. A thread that waits there is left behind.
//
// The error is for people: it names the place ("proxy.yaml:7:
// health_check.interval" or "--connect_timeout"), the fault and a right form.
// Only the first problem is reported. EINVAL: the settings are wrong; EAGAIN:
// there is no thread to read them; others: the file can't be read.
flare::Expected<ProxyConfig> LoadConfig(const ConfigSource& source,
                                        const std::stop_token& stop = {});

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_CONFIG_H_

// The flags of tcp_proxy. All are texts, except those that may come without a
// value: their meanings and faults are decided at one place for flags and files
// (config_fields.cc). The defaults here only serve --help: config.h has those
// that count, and a test compares them.

#include <gflags/gflags.h>

#include <string>

#include "example/proxy/config.h"
#include "example/proxy/config_fields.h"

DEFINE_string(config, "",
              "YAML file with settings, read again on SIGHUP. Flags win over "
              "it.");
DEFINE_string(listen, "",
              "Addresses to accept clients at, separated by commas: host:port, "
              "[IPv6]:port, unix:/path. Port 0: one that is free.");
DEFINE_string(upstreams, "",
              "Servers to pass connections to: host:port,unix:/path,...");
DEFINE_string(sni_routes, "",
              "Servers for clients of TLS by the host that they name: "
              "host=host:port,*.example.org=unix:/path,...");
DEFINE_string(lb, "round_robin",
              "How an upstream is chosen: round_robin, least_connections, or "
              "source_hash (the same for the same client address).");
DEFINE_string(connect_timeout, "1s", "For one attempt to connect.");
DEFINE_string(connect_attempts, "3",
              "How many upstreams are tried for a client.");
DEFINE_string(max_failures, "3",
              "So many failures to connect in a row keep an upstream from "
              "being chosen for --failure_pause; 0: never.");
DEFINE_string(failure_pause, "10s", "See --max_failures.");
DEFINE_string(idle_timeout, "5m",
              "Connections without a byte either way for so long are closed; "
              "0: never.");
DEFINE_string(tcp_user_timeout, "1m",
              "A peer that doesn't acknowledge data for so long, or takes none "
              "of its waiting data, breaks its connection; 0: as the system "
              "does it.");
DEFINE_string(tcp_keepalive, "30s",
              "A peer that was silent for so long is asked (TCP keep-alive) "
              "whether it is still there; three questions without an answer "
              "break its connection; 0: never.");
DEFINE_string(tcp_keepalive_interval, "10s", "Between two such questions.");
DEFINE_string(max_connections, "10000",
              "Clients at a time; more are closed at once.");
DEFINE_string(max_connections_per_upstream, "0",
              "Connections to one upstream at a time; 0: no limit.");
DEFINE_string(backlog, "1024", "Connections that the kernel completes ahead.");
DEFINE_string(high_watermark, "256KiB",
              "With so many bytes read but not written, one side isn't read "
              "any more,");
DEFINE_string(low_watermark, "64KiB", "until so many are left.");
DEFINE_string(copy_mode, "auto", "auto, copy or splice.");
DEFINE_bool(accept_proxy_protocol, false,
            "Clients begin with a PROXY header, v1 or v2.");
DEFINE_string(send_proxy_protocol, "none",
              "Begin with a PROXY header: none, v1 or v2.");
DEFINE_string(tls_certificate, "",
              "Clients speak TLS, which ends here, with the certificate and "
              "its chain from this PEM file. Several, separated by commas: "
              "clients choose by the host that they name (SNI).");
DEFINE_string(tls_key, "",
              "The private key to --tls_certificate, in PEM. As many.");
DEFINE_string(tls_client_ca, "",
              "Clients must show a certificate that a root in this PEM file "
              "vouches for.");
DEFINE_string(tls_crl, "", "Revoked certificates of clients, as PEM CRLs.");
DEFINE_string(tls_min_version, "1.2",
              "The oldest TLS version of clients: 1.2 or 1.3.");
DEFINE_string(tls_handshake_timeout, "10s", "For a client's TLS handshake.");
DEFINE_string(tls_alpn, "",
              "Names of protocols that clients may choose from (ALPN), the "
              "best one first, such as h2,http/1.1: what upstreams speak.");
DEFINE_bool(upstream_tls, false, "Speak TLS to upstreams, and verify them.");
DEFINE_string(upstream_tls_ca, "",
              "Roots that vouch for upstreams, in PEM; empty: the system's.");
DEFINE_string(upstream_tls_certificate, "",
              "Shown to upstreams that ask for a certificate, in PEM.");
DEFINE_string(upstream_tls_key, "", "Its private key, in PEM.");
DEFINE_string(upstream_tls_server_name, "",
              "The name that upstreams' certificates must be for; empty: the "
              "host in --upstreams.");
DEFINE_string(upstream_tls_alpn, "",
              "Names of protocols that upstreams may choose from (ALPN), the "
              "best one first: what clients speak.");
DEFINE_bool(upstream_tls_insecure_skip_verify, false,
            "Take any certificate of an upstream, an attacker's, too.");
DEFINE_string(health_check, "none",
              "How upstreams are checked: none, tcp (connect) or http (GET).");
DEFINE_string(health_check_interval, "5s", "Between two checks.");
DEFINE_string(health_check_jitter, "20",
              "By how many percent the interval varies.");
DEFINE_string(health_check_timeout, "1s", "For one check.");
DEFINE_string(health_check_rise, "2",
              "So many good checks in a row make an upstream healthy.");
DEFINE_string(health_check_fall, "3",
              "So many bad checks in a row make an upstream unhealthy.");
DEFINE_string(health_check_path, "/", "The path that http checks request.");
DEFINE_string(health_check_host, "",
              "The Host of http checks; empty: the upstream's name.");
DEFINE_string(health_check_status, "200", "The status of a good http check.");
DEFINE_bool(health_check_cut_sessions, true,
            "Cut sessions without a byte once their upstream is unhealthy as "
            "checks had no answer.");
DEFINE_string(access_log, "",
              "File for a line per connection that ended, opened again on "
              "SIGHUP; -: stdout.");
DEFINE_string(statistics_interval, "10s",
              "Between two lines of statistics in the log; 0: none.");
DEFINE_string(admin, "",
              "Address of the pages with statistics, such as 127.0.0.1:9090.");
DEFINE_string(drain_deadline, "30s",
              "How long connections may go on after SIGTERM.");

namespace example::proxy {

ConfigSource ConfigSourceFromFlags() {
  ConfigSource source;
  source.file = FLAGS_config;
  for (const Field& field : Fields()) {
    const std::string flag(field.flag);
    const auto info = gflags::GetCommandLineFlagInfoOrDie(flag.c_str());
    if (!info.is_default) source.flags[flag] = info.current_value;
  }
  return source;
}

}  // namespace example::proxy

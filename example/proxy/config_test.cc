#include "example/proxy/config.h"

#include <fcntl.h>
#include <gflags/gflags.h>
#include <netdb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "example/proxy/config_fields.h"
#include "example/proxy/config_file.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/io/resolver.h"
#include "flare/io/testing/hosts.h"
#include "gtest/gtest.h"

using namespace std::literals;

extern "C" int getaddrinfo(const char* name, const char* service,
                           const addrinfo* hints, addrinfo** result) {
  if (name == "both.test"sv) {
    return flare::io::testing::LookUp({"::1", "127.0.0.1"}, hints, result);
  }
  return flare::io::testing::SystemLookUp(name, service, hints, result);
}

namespace example::proxy {
namespace {

// A file that lives as long as this.
class TestFile {
 public:
  explicit TestFile(const std::string& text)
      : path_(testing::TempDir() + "/proxy_config_test.yaml") {
    std::ofstream(path_) << text;
  }
  ~TestFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

flare::Expected<ProxyConfig> LoadFile(const std::string& text) {
  const TestFile file(text);
  return LoadConfig({file.path(), {}});
}

// The error, with the file called "F"; "" if there is none.
std::string FileError(const std::string& text) {
  const auto config = LoadFile(text);
  if (config) return "";
  EXPECT_EQ(config.error().code(), EINVAL);
  const std::string path = testing::TempDir() + "/proxy_config_test.yaml";
  std::string message = config.error().message();
  for (std::size_t at; (at = message.find(path)) != std::string::npos;) {
    message.replace(at, path.size(), "F");
  }
  return message;
}

std::string FlagError(const std::map<std::string, std::string>& flags) {
  const auto config = LoadConfig({"", flags});
  return config ? "" : config.error().message();
}

// Enough for a valid configuration.
constexpr char kMinimal[] =
    "listen: 127.0.0.1:1\n"
    "upstreams: 127.0.0.1:2\n";

TEST(ConfigTest, EveryFieldOfAFile) {
  const auto config = LoadFile(R"(# All there is.
listen:
  - 127.0.0.1:8080
  - "[::1]:8080"
  - unix:/run/proxy.sock
upstreams: [127.0.0.1:1, unix:/run/app.sock]
lb: source_hash
connect_timeout: 250ms
connect_attempts: 2
max_failures: 5
failure_pause: 1m
idle_timeout: 0
tcp_user_timeout: 3s
tcp_keepalive: 20s
tcp_keepalive_interval: 7s
max_connections: 7
max_connections_per_upstream: 3
backlog: 100
high_watermark: 1MiB
low_watermark: 4096
copy_mode: splice
accept_proxy_protocol: yes
send_proxy_protocol: v2
health_check:
  type: http
  interval: 2s
  jitter: 0
  timeout: 100ms
  rise: 1
  fall: 4
  path: /health?deep=1
  host: example.org
  status: 204
  cut_sessions: no
access_log: /tmp/access.log
statistics_interval: 1h
admin: 127.0.0.1:9090
drain_deadline: 5s
sni_routes: [a.example=127.0.0.1:1]
# They go neither with routes nor without files: see e2e/tls_e2e_test.py.
tls_certificate: []
tls_key: []
tls_client_ca: ""
tls_crl: ""
tls_min_version: 1.3
tls_handshake_timeout: 2s
tls_alpn: []
upstream_tls: no
upstream_tls_ca: ""
upstream_tls_certificate: ""
upstream_tls_key: ""
upstream_tls_server_name: ""
upstream_tls_alpn: []
upstream_tls_insecure_skip_verify: no
)");
  ASSERT_TRUE(config) << config.error();
  EXPECT_EQ(config->where.size(), Fields().size()) << "not all are above";
  ASSERT_EQ(config->listeners.size(), 3u);
  EXPECT_EQ(config->listeners[1].address.ToString(), "[::1]:8080");
  EXPECT_EQ(config->listeners[2].address.path(), "/run/proxy.sock");
  EXPECT_TRUE(config->listeners[2].where.ends_with(":5: listen[2]"));
  ASSERT_EQ(config->upstreams.size(), 2u);
  EXPECT_EQ(config->upstreams[0].name, "127.0.0.1:1");
  EXPECT_EQ(config->upstreams[1].address.path(), "/run/app.sock");
  EXPECT_EQ(config->lb, LoadBalancing::kSourceHash);
  EXPECT_EQ(config->connect_timeout, 250ms);
  EXPECT_EQ(config->connect_attempts, 2);
  EXPECT_EQ(config->max_failures, 5);
  EXPECT_EQ(config->failure_pause, 1min);
  EXPECT_EQ(config->idle_timeout, 0ns);
  EXPECT_EQ(config->tcp_user_timeout, 3s);
  EXPECT_EQ(config->tcp_keepalive, 20s);
  EXPECT_EQ(config->tcp_keepalive_interval, 7s);
  EXPECT_EQ(config->max_connections, 7u);
  EXPECT_EQ(config->max_connections_per_upstream, 3u);
  EXPECT_EQ(config->backlog, 100);
  EXPECT_EQ(config->high_watermark, 1u << 20);
  EXPECT_EQ(config->low_watermark, 4096u);
  EXPECT_EQ(config->copy_mode, CopyMode::kSplice);
  EXPECT_TRUE(config->accept_proxy_protocol);
  EXPECT_EQ(config->send_proxy_protocol, ProxyProtocol::kV2);
  EXPECT_EQ(config->health_check.type, HealthCheckConfig::Type::kHttp);
  EXPECT_EQ(config->health_check.interval, 2s);
  EXPECT_EQ(config->health_check.jitter, 0);
  EXPECT_EQ(config->health_check.timeout, 100ms);
  EXPECT_EQ(config->health_check.rise, 1);
  EXPECT_EQ(config->health_check.fall, 4);
  EXPECT_EQ(config->health_check.path, "/health?deep=1");
  EXPECT_EQ(config->health_check.host, "example.org");
  EXPECT_EQ(config->health_check.status, 204);
  EXPECT_FALSE(config->health_check.cut_sessions);
  EXPECT_EQ(config->access_log, "/tmp/access.log");
  EXPECT_EQ(config->statistics_interval, 1h);
  EXPECT_EQ(config->admin.port(), 9090);
  EXPECT_EQ(config->drain_deadline, 5s);
  EXPECT_EQ(config->tls_files.min_version, flare::TlsVersion::k1_3);
  EXPECT_EQ(config->tls_files.handshake_timeout, 2s);
  EXPECT_EQ(config->tls, nullptr);
  EXPECT_EQ(config->upstream_tls, nullptr);
  EXPECT_TRUE(config->where.at("admin").ends_with(":37: admin"));
}

TEST(ConfigTest, MistakesInFiles) {
  struct Case {
    std::string text;
    std::string error;
  };
  const std::string u = "upstreams: 127.0.0.1:2\n";
  const std::vector<Case> cases = {
      {kMinimal, ""},
      // Neither one nor the other.
      {"",
       "F: listen: there is no address to listen on; write 'listen: "
       "[0.0.0.0:8080]'"},
      {"# Nothing\n",
       "F: listen: there is no address to listen on; write "
       "'listen: [0.0.0.0:8080]'"},
      {"listen: 127.0.0.1:1\nupstreams: []\n",
       "F: upstreams: there is no server to pass connections to; write "
       "'upstreams: [10.0.0.1:80]'"},
      // The shape.
      {"just a text\n",
       "F:1: settings (`name: value`) were expected, not a single value"},
      {"- 1\n- 2\n", "F:1: settings (`name: value`) were expected, not a list"},
      {"? [a]\n: b\n", "F:1: a name was expected, not a list"},
      {u + "listen: [1\n",
       "F:3: this is no YAML: end of sequence flow not "
       "found (column 1)"},
      {u + "\tlisten: 1\n",
       "F:2: this is no YAML: illegal tab when looking for indentation (column "
       "1)"},
      {kMinimal + "---\nlisten: 1\n"s,
       "F:4: a second document; write one file for each proxy"},
      {kMinimal + "connect_timeout:\n"s,
       "F:3: connect_timeout: a single value was expected, not nothing"},
      {kMinimal + "connect_timeout: [1s, 2s]\n"s,
       "F:3: connect_timeout: a single value was expected, not a list"},
      {"listen: {a: b}\n", "F:1: listen: a list was expected, not a map"},
      {u + "listen:\n  - 127.0.0.1:1\n  - a: b\n",
       "F:4: listen[1]: a single value was expected, not a map"},
      {"health_check: tcp\n",
       "F:1: health_check: a map of settings was expected, not a single "
       "value"},
      // Names.
      {"conect_timeout: 1s\n",
       "F:1: conect_timeout: there is no such setting: 'conect_timeout' is "
       "not known; there are listen, upstreams, sni_routes, lb, "
       "connect_timeout, "
       "connect_attempts, max_failures, failure_pause, idle_timeout, "
       "tcp_user_timeout, tcp_keepalive, tcp_keepalive_interval, "
       "max_connections, max_connections_per_upstream, "
       "backlog, high_watermark, low_watermark, copy_mode, "
       "accept_proxy_protocol, send_proxy_protocol, tls_certificate, "
       "tls_key, tls_client_ca, tls_crl, tls_min_version, "
       "tls_handshake_timeout, tls_alpn, upstream_tls, upstream_tls_ca, "
       "upstream_tls_certificate, upstream_tls_key, upstream_tls_server_name, "
       "upstream_tls_alpn, upstream_tls_insecure_skip_verify, health_check, "
       "access_log, "
       "statistics_interval, admin and drain_deadline"},
      {"health_check:\n  type: tcp\n  every: 5s\n",
       "F:3: health_check.every: there is no such setting: 'every' is not "
       "known; there are type, interval, jitter, timeout, rise, fall, path, "
       "host, status and cut_sessions"},
      {"lb: round_robin\n\nlb: source_hash\n",
       "F:3: lb: given twice; the first time is in line 1"},
      {"health_check: {rise: 1, rise: 2}\n",
       "F:1: health_check.rise: given twice; the first time is in line 1"},
      // Values.
      {"connect_timeout: 5\n",
       "F:1: connect_timeout: '5' has no unit; write "
       "250ms, 5s, 2m, 1h or the like"},
      {"connect_timeout: soon\n",
       "F:1: connect_timeout: 'soon' is not a duration; write a number and a "
       "unit: 250ms, 5s, 2m"},
      {"connect_timeout: 5parsec\n",
       "F:1: connect_timeout: '5parsec' has no known unit; there are ns, us, "
       "ms, s, m, h and d"},
      {"connect_timeout: 2h\n",
       "F:1: connect_timeout: '2h' is out of range; "
       "it may be from 1ms to 1h"},
      {"idle_timeout: 1us\n",
       "F:1: idle_timeout: '1us' is out of range; it "
       "may be from 1ms to 365d, or 0"},
      {"max_connections: 0\n",
       "F:1: max_connections: '0' is out of range; it "
       "may be from 1 to 10000000"},
      {"max_connections: -1\n",
       "F:1: max_connections: '-1' is out of range; "
       "it may be from 1 to 10000000"},
      {"max_connections: many\n",
       "F:1: max_connections: 'many' is not a whole number"},
      {"high_watermark: 1\n",
       "F:1: high_watermark: '1' is out of range; it "
       "may be from 4096 to 1GiB"},
      {"high_watermark: 1Q\n",
       "F:1: high_watermark: '1Q' is not a size; write a number of bytes, or "
       "one with a unit: 65536, 64KiB, 1MiB"},
      {"accept_proxy_protocol: maybe\n",
       "F:1: accept_proxy_protocol: 'maybe' is not known; there are true and "
       "false"},
      {"lb: random\n",
       "F:1: lb: 'random' is not known; there are "
       "round_robin, least_connections and source_hash"},
      {"health_check:\n  status: 99\n",
       "F:2: health_check.status: '99' is out of range; it may be from 100 to "
       "599"},
      {"health_check:\n  path: health\n",
       "F:2: health_check.path: 'health' doesn't begin with '/'"},
      {"health_check:\n  host: \"a\\r\\nb\"\n",
       "F:2: health_check.host: 'a\r\nb' has white space or control "
       "characters in it"},
      // Addresses.
      {u + "listen: ''\n",
       "F:2: listen: it is empty; write host:port or unix:/path"},
      {u + "listen: 8080\n",
       "F:2: listen: can't resolve '8080': there is no port; write host:port "
       "(as in 10.0.0.1:80, [::1]:80, unix:/run/x.sock)"},
      {u + "listen: 127.0.0.1:99999\n",
       "F:2: listen: can't resolve '127.0.0.1:99999': the port is not in "
       "0..65535 (as in 10.0.0.1:80, [::1]:80, unix:/run/x.sock)"},
      {u + "listen:\n  - 127.0.0.1:1\n  - 127.0.0.1:1\n",
       "F:4: listen[1]: '127.0.0.1:1' is the same address as in F:3: "
       "listen[0]; leave one out"},
      {u + "listen: [unix:/run/x, unix:/run/x]\n",
       "F:2: listen[1]: 'unix:/run/x' is the same address as in F:2: "
       "listen[0]; leave one out"},
      {"listen: 127.0.0.1:1\nupstreams: [127.0.0.1:2, 127.0.0.1:2]\n",
       "F:2: upstreams[1]: '127.0.0.1:2' is the same server as in F:2: "
       "upstreams[0]; leave one out"},
      {"upstreams: [127.0.0.1:0]\n",
       "F:1: upstreams[0]: '127.0.0.1:0' has port 0, which nobody can be "
       "connected to; write the server's port"},
      {u + "listen: 127.0.0.1:1\nsni_routes: [a.example]\n",
       "F:3: sni_routes[0]: 'a.example' is no route; write host=address, as in "
       "www.example.org=10.0.0.1:443 or *.example.org=10.0.0.1:443"},
      {u + "listen: 127.0.0.1:1\nsni_routes: ['a.*=127.0.0.1:2']\n",
       "F:3: sni_routes[0]: 'a.*=127.0.0.1:2' is no route; write host=address, "
       "as in www.example.org=10.0.0.1:443 or *.example.org=10.0.0.1:443"},
      {u + "sni_routes: [a.example=127.0.0.1:2, A.example=127.0.0.1:2]\n",
       "F:2: sni_routes[1]: '127.0.0.1:2' is the same server as in F:1: "
       "upstreams; leave one out"},
      // Together.
      {kMinimal + "low_watermark: 256KiB\n"s,
       "F:3: low_watermark: low_watermark (262144) must be less than "
       "high_watermark (262144)"},
      {kMinimal + "high_watermark: 64KiB\n"s,
       "F:3: high_watermark: low_watermark (65536) must be less than "
       "high_watermark (65536)"},
      {"listen: 127.0.0.1:1\nupstreams: [127.0.0.1:1]\n",
       "F:2: upstreams[0]: '127.0.0.1:1' is an address that the proxy listens "
       "on itself (F:1: listen): it would connect to itself for ever"},
      {"listen: ['[::]:1', 0.0.0.0:1]\nupstreams: ['[::ffff:127.0.0.2]:1']\n",
       "F:2: upstreams[0]: '[::ffff:127.0.0.2]:1' is an address that the proxy "
       "listens on itself (F:1: listen[1]): it would connect to itself for "
       "ever"},
  };
  for (const Case& c : cases) EXPECT_EQ(FileError(c.text), c.error) << c.text;
}

TEST(ConfigTest, ServersByHost) {
  const auto config = LoadFile(
      "listen: 127.0.0.1:1\n"
      "sni_routes:\n"
      "  - A.example=127.0.0.1:2\n"
      "  - '*.b.example=127.0.0.1:3'\n"
      "  - c.example=127.0.0.1:2\n"
      "upstreams: 127.0.0.1:3\n");
  ASSERT_TRUE(config) << config.error();
  EXPECT_TRUE(config->routes_by_host);
  ASSERT_EQ(config->upstreams.size(), 2u);
  using Hosts = std::vector<std::string>;
  EXPECT_EQ(config->upstreams[0].name, "127.0.0.1:2");
  EXPECT_EQ(config->upstreams[0].hosts, (Hosts{"a.example", "c.example"}));
  EXPECT_FALSE(config->upstreams[0].is_default);
  EXPECT_EQ(config->upstreams[1].hosts, Hosts{"*.b.example"});
  EXPECT_TRUE(config->upstreams[1].is_default);

  // No others are needed, and by default nothing is routed.
  const auto alone =
      LoadFile("listen: 127.0.0.1:1\nsni_routes: a.example=127.0.0.1:2\n");
  EXPECT_TRUE(alone) << alone.error();
  const auto none = LoadFile(kMinimal);
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->routes_by_host);
  EXPECT_TRUE(none->upstreams[0].is_default);
}

TEST(ConfigTest, UnknownHosts) {
  const std::string error =
      FileError("upstreams:\n  - no-such-host.invalid:80\n");
  EXPECT_TRUE(
      error.starts_with("F:2: upstreams[0]: can't resolve "
                        "'no-such-host.invalid:80': "))
      << error;
}

// Each address of a name is an upstream; listening takes one.
TEST(ConfigTest, NamesWithSeveralAddresses) {
  const auto all = flare::io::Resolve("both.test:80");
  ASSERT_TRUE(all) << all.error();
  ASSERT_EQ(all->size(), 2U);
  const auto config = LoadConfig(
      {"", {{"listen", "both.test:0"}, {"upstreams", "both.test:80"}}});
  ASSERT_TRUE(config) << config.error();
  ASSERT_EQ(config->listeners.size(), 1u);
  // IPv4 before IPv6.
  EXPECT_EQ(config->listeners[0].address,
            flare::MustParseEndpoint("127.0.0.1:0"));
  ASSERT_EQ(config->upstreams.size(), 2u);
  for (std::size_t i = 0; i != 2; ++i) {
    EXPECT_EQ(config->upstreams[i].address, (*all)[i]);
    EXPECT_EQ(config->upstreams[i].name,
              "both.test:80@" + (*all)[i].ToString());
  }
}

// It is called as it would be if there were more, and is the same upstream when
// there are.
TEST(ConfigTest, NamesWithOneAddress) {
  // No literal, but a name that the system's resolver needs nobody for.
  const std::string name = "127.1:80";
  ASSERT_FALSE(flare::EndpointFromString(name));
  const auto config =
      LoadConfig({"", {{"listen", "127.0.0.1:0"}, {"upstreams", name}}});
  ASSERT_TRUE(config) << config.error();
  ASSERT_EQ(config->upstreams.size(), 1u);
  EXPECT_EQ(config->upstreams[0].address,
            flare::MustParseEndpoint("127.0.0.1:80"));
  EXPECT_EQ(config->upstreams[0].name, "127.1:80@127.0.0.1:80");
}

TEST(ConfigTest, FilesThatCantBeRead) {
  const auto none = LoadConfig({"/no/such/file.yaml", {}});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ENOENT);
  EXPECT_EQ(none.error().message(),
            "--config: can't read '/no/such/file.yaml': No such file or "
            "directory");
  const std::string folder = LoadConfig({"/tmp", {}}).error().message();
  EXPECT_TRUE(folder.starts_with("--config: can't read '/tmp'")) << folder;
  const auto large = LoadFile(std::string((1 << 20) + 1, '#'));
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code(), EFBIG);
  EXPECT_NE(large.error().message().find("more than 1024 KiB"),
            std::string::npos)
      << large.error();
}

// Whatever is in a file, there is an answer: settings or an error.
TEST(ConfigTest, MangledFiles) {
  const std::string deep(20'000, '[');
  EXPECT_NE(FileError(deep), "");
  EXPECT_NE(FileError("a: " + deep), "");
  EXPECT_NE(FileError("a: &x [*x]\n"), "");
  EXPECT_NE(FileError("\x80\xff\x01"), "");
  const std::string whole = kMinimal + "health_check: {rise: 1, fall: 2}\n"s;
  for (std::size_t i = 0; i != whole.size(); ++i) {
    (void)ParseSettings(whole.substr(0, i), "F");
    std::string changed = whole;
    for (const char c : {'\0', '{', ']', ':', '\n', '&', '\x80'}) {
      changed[i] = c;
      (void)ParseSettings(changed, "F");
    }
  }
}

TEST(ConfigTest, Flags) {
  const auto config = LoadConfig({"",
                                  {{"listen", "127.0.0.1:1, unix:/run/x"},
                                   {"upstreams", "127.0.0.1:2,127.0.0.1:3"},
                                   {"health_check", "tcp"},
                                   {"health_check_interval", "50ms"}}});
  ASSERT_TRUE(config) << config.error();
  EXPECT_EQ(config->listeners.size(), 2u);
  EXPECT_EQ(config->listeners[1].where, "--listen");
  EXPECT_EQ(config->upstreams.size(), 2u);
  EXPECT_EQ(config->health_check.type, HealthCheckConfig::Type::kTcp);
  EXPECT_EQ(config->health_check.interval, 50ms);
}

TEST(ConfigTest, MistakesInFlags) {
  EXPECT_EQ(FlagError({}),
            "--listen: there is no address to listen on; give "
            "--listen=0.0.0.0:8080, or --config=FILE");
  EXPECT_EQ(FlagError({{"listen", "127.0.0.1:1"}}),
            "--upstreams: there is no server to pass connections to; give "
            "--upstreams=10.0.0.1:80, or --config=FILE");
  EXPECT_EQ(FlagError({{"upstreams", "127.0.0.1:2,"}}),
            "--upstreams: it is empty; write host:port or unix:/path");
  EXPECT_EQ(FlagError({{"health_check_rise", "0"}}),
            "--health_check_rise: '0' is out of range; it may be from 1 to "
            "1000");
  EXPECT_EQ(FlagError({{"color", "red"}}), "--color: there is no such setting");
}

TEST(ConfigTest, FlagsWinOverTheFile) {
  const TestFile file("listen: 127.0.0.1:1\nupstreams: what nobody reads\n");
  const auto config = LoadConfig({file.path(), {{"upstreams", "127.0.0.1:2"}}});
  ASSERT_TRUE(config) << config.error();
  EXPECT_EQ(config->upstreams[0].where, "--upstreams");
}

// --help shows the settings of a program without flags.
TEST(ConfigTest, DefaultsOfTheFlags) {
  ConfigSource shown;
  for (const Field& field : Fields()) {
    const std::string flag(field.flag);
    const auto info = gflags::GetCommandLineFlagInfoOrDie(flag.c_str());
    if (!field.is_list) shown.flags[flag] = info.default_value;
  }
  EXPECT_TRUE(ConfigSourceFromFlags().flags.empty());
  const std::map<std::string, std::string> addresses = {
      {"listen", "127.0.0.1:1"}, {"upstreams", "127.0.0.1:2"}};
  shown.flags.insert(addresses.begin(), addresses.end());
  auto config = LoadConfig(shown);
  auto defaults = LoadConfig({"", addresses});
  ASSERT_TRUE(config) << config.error();
  ASSERT_TRUE(defaults) << defaults.error();
  config->where = defaults->where;
  EXPECT_EQ(*config, *defaults);
}

// The parser doesn't run on the small stack of a fiber.
TEST(ConfigTest, LoadsOnFibers) {
  const flare::Status started = flare::fiber::StartRuntime({});
  ASSERT_TRUE(started.ok()) << started;
  flare::Fiber([] {
    EXPECT_EQ(FileError(kMinimal), "");
    EXPECT_NE(FileError(std::string(400, '[')), "");
  }).join();
  flare::fiber::TerminateRuntime();
}

// A FIFO without a writer has nothing to read and no end.
TEST(ConfigTest, ReadingCanBeBrokenOff) {
  const std::string fifo = testing::TempDir() + "/proxy_config_test.fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const flare::Status started = flare::fiber::StartRuntime({});
  ASSERT_TRUE(started.ok()) << started;
  std::stop_source stop;
  int writer = -1;
  std::thread stopper([&] {
    writer = ::open(fifo.c_str(), O_WRONLY | O_CLOEXEC);  // Waits for a reader.
    stop.request_stop();
  });
  flare::Fiber([&] {
    const auto config = LoadConfig({fifo, {}}, stop.get_token());
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().code(), ECANCELED) << config.error();
  }).join();
  stopper.join();
  flare::fiber::TerminateRuntime();
  // It stays open: the thread that was left behind would run while this process
  // ends.
  EXPECT_GE(writer, 0);
  ::unlink(fifo.c_str());
}

}  // namespace
}  // namespace example::proxy

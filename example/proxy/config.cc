#include "example/proxy/config.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "example/proxy/config_fields.h"
#include "example/proxy/config_file.h"
#include "example/proxy/own_address.h"
#include "flare/base/string.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/io/tls_context.h"
#include "flare/io/tls_options.h"

namespace example::proxy {
namespace {

using flare::Expected;
using flare::Status;

Expected<Setting> SettingFromFlag(const std::string& flag,
                                  const std::string& text) {
  const std::string where = "--" + flag;
  for (const Field& field : Fields()) {
    if (field.flag != flag) continue;
    Setting setting{std::string(field.name), {}, where};
    if (!field.is_list) {
      setting.values.push_back({text, where});
      return setting;
    }
    for (std::string_view value :
         flare::Split(text, ',', /*keep_empty=*/true)) {
      setting.values.push_back({std::string(flare::Trim(value)), where});
    }
    return setting;
  }
  return Status(EINVAL, where + ": there is no such setting");
}

// The file's settings without those given by flags, and then the flags'.
Expected<std::vector<Setting>> GatherSettings(const ConfigSource& source) {
  std::vector<Setting> settings;
  if (!source.file.empty()) {
    auto from_file = ReadSettingsFile(source.file);
    if (!from_file) return from_file.error();
    for (Setting& setting : *from_file) {
      const Field* const field = FindField(setting.field);
      if (source.flags.contains(std::string(field->flag))) continue;
      settings.push_back(std::move(setting));
    }
  }
  for (const auto& [flag, text] : source.flags) {
    auto setting = SettingFromFlag(flag, text);
    if (!setting) return setting.error();
    settings.push_back(std::move(*setting));
  }
  return settings;
}

Status Apply(const Setting& setting, ProxyConfig* config) {
  config->where[setting.field] = setting.where;
  const Field* const field = FindField(setting.field);
  for (const PlacedText& value : setting.values) {
    const Status status = field->set(value, config);
    if (!status.ok()) {
      return Status(EINVAL, value.where + ": " + status.message());
    }
  }
  return Status();
}

Status NotGiven(const ConfigSource& source, const std::string& name,
                const std::string& example, const std::string& what) {
  if (source.file.empty()) {
    return Status(EINVAL, "--" + name + ": " + what + "; give --" + name + "=" +
                              example + ", or --config=FILE");
  }
  return Status(EINVAL, source.file + ": " + name + ": " + what + "; write '" +
                            name + ": [" + example + "]'");
}

// Finds faults between values that are right one by one.
Status CheckTogether(const ConfigSource& source, const ProxyConfig& config) {
  if (config.listeners.empty()) {
    return NotGiven(source, "listen", "0.0.0.0:8080",
                    "there is no address to listen on");
  }
  if (config.upstreams.empty()) {
    return NotGiven(source, "upstreams", "10.0.0.1:80",
                    "there is no server to pass connections to");
  }
  if (config.low_watermark >= config.high_watermark) {
    const auto low = config.where.find("low_watermark");
    const auto& [field, where] =
        low != config.where.end() ? *low : *config.where.find("high_watermark");
    return Status(EINVAL, where + ": low_watermark (" +
                              std::to_string(config.low_watermark) +
                              ") must be less than high_watermark (" +
                              std::to_string(config.high_watermark) + ")");
  }
  for (const ListenerConfig& listener : config.listeners) {
    for (const UpstreamConfig& upstream : config.upstreams) {
      if (LeadsTo(upstream.address, listener.address)) {
        return Status(EINVAL, upstream.where + ": '" + upstream.name +
                                  "' is an address that the proxy listens on "
                                  "itself (" +
                                  listener.where +
                                  "): it would connect to itself for ever");
      }
    }
  }
  return Status();
}

// --- TLS

Status BadTls(const ProxyConfig& config, const std::string& field,
              const std::string& what) {
  const auto where = config.where.find(field);
  return Status(EINVAL, (where == config.where.end() ? field : where->second) +
                            ": " + what);
}

// Settings that would do nothing, since another one is missing.
Status CheckUnusedTls(const ProxyConfig& config) {
  const TlsConfig& files = config.tls_files;
  if (files.certificates.empty()) {
    const char* const unused = !files.client_ca.empty() ? "tls_client_ca"
                               : !files.crl.empty()     ? "tls_crl"
                               : !files.alpn.empty()    ? "tls_alpn"
                                                        : nullptr;
    if (unused != nullptr) {
      return BadTls(config, unused,
                    "it goes with tls_certificate and tls_key only");
    }
  }
  if (files.to_upstreams || (files.upstream == flare::TlsClientOptions() &&
                             files.upstream_alpn.empty())) {
    return Status();
  }
  for (const auto& [field, where] : config.where) {
    if (!field.starts_with("upstream_tls_")) continue;
    return Status(EINVAL, where +
                              ": it goes with upstream_tls only; write "
                              "'upstream_tls: true', or give "
                              "--upstream_tls");
  }
  return Status();
}

Status UseClientTls(ProxyConfig* config) {
  const TlsConfig& files = config->tls_files;
  if (files.certificates.size() != files.keys.size()) {
    return BadTls(*config, files.keys.empty() ? "tls_certificate" : "tls_key",
                  "tls_certificate and tls_key must name as many files");
  }
  if (files.certificates.empty()) return Status();
  if (config->routes_by_host) {
    return BadTls(*config, "tls_certificate",
                  "sni_routes pass TLS through, and this ends it; give either");
  }
  if (!files.crl.empty() && files.client_ca.empty()) {
    return BadTls(*config, "tls_crl", "it goes with tls_client_ca only");
  }
  flare::TlsServerOptions options{
      .client_ca = files.client_ca,
      .crl = files.crl,
      .client_certificates = files.client_ca.empty()
                                 ? flare::ClientCertificates::kIgnore
                                 : flare::ClientCertificates::kRequire,
      .min_version = files.min_version,
      .alpn = files.alpn,
      .handshake_timeout = files.handshake_timeout};
  for (std::size_t i = 0; i != files.keys.size(); ++i) {
    options.certificates.push_back({files.certificates[i], files.keys[i]});
  }
  auto context = flare::io::TlsServerContext::Create(options);
  if (!context) {
    return BadTls(*config, "tls_certificate", context.error().message());
  }
  config->tls = std::move(*context);
  return Status();
}

Status UseUpstreamTls(ProxyConfig* config) {
  const TlsConfig& files = config->tls_files;
  if (!files.to_upstreams) return Status();
  if (config->routes_by_host) {
    return BadTls(*config, "upstream_tls",
                  "sni_routes pass TLS through, and this would put it into "
                  "TLS again; give either");
  }
  if (config->health_check.type == HealthCheckConfig::Type::kHttp) {
    return BadTls(*config, "health_check.type",
                  "http checks speak no TLS, which upstream_tls asks for; "
                  "write tcp");
  }
  for (const UpstreamConfig& upstream : config->upstreams) {
    if (upstream.address.family() != AF_UNIX ||
        !files.upstream.server_name.empty() ||
        files.upstream.insecure_skip_verify) {
      continue;
    }
    return Status(EINVAL, upstream.where + ": '" + upstream.name +
                              "' has no host that its certificate could be "
                              "for; give upstream_tls_server_name");
  }
  auto context =
      flare::io::TlsClientContext::Get(files.upstream, files.upstream_alpn);
  if (!context) {
    return BadTls(*config, "upstream_tls", context.error().message());
  }
  config->upstream_tls = std::move(*context);
  return Status();
}

Status UseTls(ProxyConfig* config) {
  if (Status status = CheckUnusedTls(*config); !status.ok()) return status;
  if (Status status = UseClientTls(config); !status.ok()) return status;
  return UseUpstreamTls(config);
}

// On a plain thread.
Expected<ProxyConfig> Load(const ConfigSource& source) {
  const auto settings = GatherSettings(source);
  if (!settings) return settings.error();
  ProxyConfig config;
  for (const Setting& setting : *settings) {
    if (Status status = Apply(setting, &config); !status.ok()) return status;
  }
  if (Status status = CheckTogether(source, config); !status.ok()) {
    return status;
  }
  if (Status status = UseTls(&config); !status.ok()) return status;
  return config;
}

}  // namespace

Expected<ProxyConfig> LoadConfig(const ConfigSource& source,
                                 const std::stop_token& stop) {
  if (!flare::fiber::IsFiberWorker()) return Load(source);

  // Reading files and asking the resolver would hold a worker up, and the YAML
  // parser wants more stack than a fiber has.
  struct Loading {
    ConfigSource source;
    std::optional<Expected<ProxyConfig>> config;
    flare::fiber::Event loaded;
  };
  // The thread's, too: it may be left behind.
  const auto loading = std::make_shared<Loading>();
  loading->source = source;
  try {
    std::thread([loading] {
      loading->config.emplace(Load(loading->source));
      loading->loaded.Set();
    }).detach();
  } catch (const std::system_error& error) {
    return Status(EAGAIN, std::string("can't start a thread to read the "
                                      "configuration: ") +
                              error.what() +
                              "; raise the limit of threads (ulimit -u, the "
                              "cgroup's pids.max) or of memory");
  }
  if (!loading->loaded.Wait(stop)) {
    return Status(ECANCELED, "the settings weren't read to their end");
  }
  return std::move(*loading->config);
}

}  // namespace example::proxy

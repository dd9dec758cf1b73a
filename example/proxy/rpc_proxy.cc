// Takes calls in any of our protocols and passes each on, by the name of its
// method, in whatever protocol its server speaks.
//
//   protoc --include_imports --descriptor_set_out=echo.pb echo_service.proto
//   rpc_proxy --descriptors=echo.pb --routes='*=trpc://10.0.0.1:5567'
//
// docs/proxy.md describes the flags.

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "example/proxy/forwarding_service.h"
#include "example/proxy/rpc_routes.h"
#include "example/rpc/flag_errors.h"
#include "example/rpc/health_check_flags.h"
#include "example/rpc/serving.h"
#include "example/rpc/tls_server_flags.h"
#include "flare/base/string.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/health_check_options.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/server.h"
#include "flare/rpc/tls_names.h"
#include "glog/logging.h"

DEFINE_string(ip, "127.0.0.1", "Address to listen on.");
DEFINE_int32(port, 5568, "Port to listen on; 0: one that is free.");
DEFINE_string(protocols,
              "flare,http+pb,http+proto3-json,http+pb-text,baidu-std,trpc,bolt,"
              "grpc",
              "The protocols that callers may speak.");
DEFINE_string(routes, "",
              "Where calls go: pattern=protocol://address;... A pattern is "
              "package.Service.Method, package.Service or *; the most precise "
              "one decides.");
DEFINE_string(descriptors, "",
              "The services: a file that protoc --include_imports "
              "--descriptor_set_out has written. Without it each route must "
              "name a method, and JSON and text can't be spoken.");
DEFINE_string(
    override_nslb, "",
    "Name resolver and load balancer of all routes, such as list+rr.");

DEFINE_string(backend_tls_ca, "",
              "Routes to tls+protocol://...: the roots that vouch for servers, "
              "in PEM; empty: the system's.");
DEFINE_string(backend_tls_certificate, "",
              "Routes to tls+protocol://...: the certificate to show to "
              "servers, in PEM.");
DEFINE_string(backend_tls_key, "",
              "The private key to --backend_tls_certificate, in PEM.");
DEFINE_string(backend_tls_server_name, "",
              "Routes to tls+protocol://...: the host that certificates must "
              "be for; empty: that of the route.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace example::proxy {
namespace {

// Calls that a stopped server has abandoned may still count themselves.
RequestCounter calls;

int RefuseFlags(const std::string& reason) {
  LOG(ERROR) << reason;
  return kBadFlags;
}

// JSON and text name fields, which opaque messages don't know.
bool NeedsDescriptors(std::string_view protocol_or_uri) {
  if (protocol_or_uri.starts_with(flare::rpc::kTlsPrefix)) {
    protocol_or_uri.remove_prefix(flare::rpc::kTlsPrefix.size());
  }
  return protocol_or_uri.starts_with("http+proto3-json") ||
         protocol_or_uri.starts_with("http+pb-text");
}

std::vector<std::string> ProtocolsFromFlags() {
  // By default callers may speak every protocol that can be passed on.
  const bool leave_out =
      FLAGS_descriptors.empty() &&
      gflags::GetCommandLineFlagInfoOrDie("protocols").is_default;
  std::vector<std::string> protocols;
  for (std::string_view name : flare::Split(FLAGS_protocols, ',')) {
    name = flare::Trim(name);
    if (!(leave_out && NeedsDescriptors(name))) protocols.emplace_back(name);
  }
  return protocols;
}

// The methods without descriptors: they are methods with messages of any bytes.
flare::Expected<RoutedMethods, flare::Status> OpaqueMethods(
    const RpcRoutes& routes, std::vector<std::string> spoken) {
  for (const auto& [pattern, uri] : routes) spoken.push_back(uri);
  for (const std::string& one : spoken) {
    if (NeedsDescriptors(one)) {
      return flare::Status(EINVAL, one +
                                       " can't be spoken without "
                                       "--descriptors, as it names fields");
    }
  }
  const auto set = DeclareOpaqueMethods(routes);
  if (!set) return set.error();
  return RoutedMethods::Build(*set, routes);
}

flare::Expected<RoutedMethods, flare::Status> MethodsFromFlags(
    const RpcRoutes& routes, const std::vector<std::string>& protocols) {
  if (FLAGS_descriptors.empty()) return OpaqueMethods(routes, protocols);
  const auto set = ReadDescriptorSet(FLAGS_descriptors);
  if (!set) return set.error();
  return RoutedMethods::Build(*set, routes);
}

std::optional<flare::TlsClientOptions> TlsOfBackend(const std::string& uri) {
  if (!uri.starts_with(flare::rpc::kTlsPrefix)) return std::nullopt;
  flare::TlsClientOptions tls;
  tls.ca = FLAGS_backend_tls_ca;
  tls.certificate = FLAGS_backend_tls_certificate;
  tls.key = FLAGS_backend_tls_key;
  tls.server_name = FLAGS_backend_tls_server_name;
  return tls;
}

// One for each URI, also those that no method needs: each is checked. Empty if
// one can't be opened, which has been logged.
using ChannelsByUri = std::map<std::string, std::shared_ptr<flare::RpcChannel>>;
ChannelsByUri OpenChannels(const RpcRoutes& routes,
                           const flare::HealthCheckOptions& health_check) {
  ChannelsByUri channels;
  for (const auto& [pattern, uri] : routes) {
    auto& channel = channels[uri];
    if (channel) continue;
    channel = std::make_shared<flare::RpcChannel>();
    if (!channel->Open(uri, {.override_nslb = FLAGS_override_nslb,
                             .tls = TlsOfBackend(uri),
                             .health_check = health_check})) {
      return {};
    }
  }
  return channels;
}

// Whether calls to such a server can have the metadata of their callers.
bool CarriesMetadata(std::string_view uri) {
  if (uri.starts_with(flare::rpc::kTlsPrefix)) {
    uri.remove_prefix(flare::rpc::kTlsPrefix.size());
  }
  const auto protocol = flare::rpc::NewClientProtocol(
      uri.substr(0, uri.find("://")), flare::rpc::Limits(), "");
  return protocol && (*protocol)->traits().metadata;
}

void AddServices(const RoutedMethods& routed, const ChannelsByUri& channels,
                 flare::Server* server) {
  for (const auto& [service, methods] : routed.services()) {
    ForwardingService::Channels to;
    for (const auto& [method, uri] : methods) {
      if (uri.empty()) continue;
      to.emplace(method, ForwardingService::Target(channels.at(uri),
                                                   CarriesMetadata(uri)));
      LOG(INFO) << "Calls of " << method->full_name() << " go to " << uri
                << ".";
    }
    server->AddService(std::make_unique<ForwardingService>(
        routed.pool(), service, std::move(to), [] { calls.Add(); }));
  }
}

int Entry(int argc, char** argv) {
  if (!HasOnlyFlags(argc, argv)) return kBadFlags;
  const auto address = ParseListenAddress(FLAGS_ip, FLAGS_port);
  if (!address) {
    return RefuseFlags("Bad --ip or --port: " + address.error().message());
  }
  const auto routes = ParseRpcRoutes(FLAGS_routes);
  if (!routes) return RefuseFlags("Bad --routes: " + routes.error().message());
  const std::vector<std::string> protocols = ProtocolsFromFlags();
  const auto routed = MethodsFromFlags(*routes, protocols);
  if (!routed) {
    return RefuseFlags("Bad --routes or --descriptors: " +
                       routed.error().message());
  }
  const auto health_check = HealthCheckFromFlags();
  if (!health_check) {
    return RefuseFlags("Bad " + health_check.error().message());
  }
  const ChannelsByUri channels = OpenChannels(*routes, *health_check);
  if (channels.empty()) return kBadFlags;

  if (protocols.empty()) return RefuseFlags("Bad --protocols: there is none.");
  auto tls = TlsFromServerFlags();
  if (!tls) return RefuseFlags(tls.error().message());
  flare::Server::Options options;
  options.tls = *std::move(tls);
  // Callers may speak the announced protocols, and see the inside only with
  // "http".
  if (std::find(protocols.begin(), protocols.end(), "http") ==
      protocols.end()) {
    options.no_builtin_pages = true;
  }
  flare::Server server(options);
  if (!server.AddProtocols(protocols)) return kBadFlags;  // It has said why.
  AddServices(*routed, channels, &server);
  server.ListenOn(*address);
  return ServeUntilQuitSignal(&server, calls);
}

}  // namespace
}  // namespace example::proxy

int main(int argc, char** argv) {
  return example::StartProgram(argc, argv,
                               "passes calls on to servers; see docs/proxy.md",
                               example::proxy::Entry);
}

#include "flare/rpc/protocol_registry.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "flare/base/named_registry.h"
#include "flare/rpc/grpc/grpc_client_protocol.h"
#include "flare/rpc/grpc/grpc_server_protocol.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/web/web_dialect.h"
#include "flare/rpc/wire/baidu_std_protocol.h"
#include "flare/rpc/wire/bolt_protocol.h"
#include "flare/rpc/wire/flare_protocol.h"
#include "flare/rpc/wire/trpc_protocol.h"

namespace flare::rpc {

namespace {

// Sets the member of *uses that `name` stands for; false for other names.
bool AddHttpUse(std::string_view name, HttpUses* uses) {
  if (name == "http+pb") return uses->pb = true;
  if (name == "http+pb-text") return uses->text = true;
  if (name == "http+proto3-json") return uses->json = true;
  if (name == "http") return uses->plain = true;
  return false;
}

ClientProtocolFactory HttpClientFactory(PayloadFormat format) {
  return [format](const Limits& limits, std::string_view host) {
    return NewHttpClientProtocol(format, limits, host);
  };
}

using ServerRegistry = NamedRegistry<ServerProtocolFactory>;
using ClientRegistry = NamedRegistry<ClientProtocolFactory>;

// The entries of HTTP and gRPC only hold their names: a set merges the former,
// and tells the latter of them.
ServerRegistry& Servers() {
  static auto* registry = new ServerRegistry({
      {"baidu-std", NewBaiduStdServerProtocol},
      {"bolt", NewBoltServerProtocol},
      {"flare", NewFlareServerProtocol},
      {"grpc", nullptr},
      {"http", nullptr},
      {"http+pb", nullptr},
      {"http+pb-text", nullptr},
      {"http+proto3-json", nullptr},
      {"trpc", NewTrpcServerProtocol},
  });
  return *registry;
}

ClientRegistry& Clients() {
  static auto* registry = new ClientRegistry({
      {"baidu-std", NewBaiduStdClientProtocol},
      {"bolt", NewBoltClientProtocol},
      {"flare", NewFlareClientProtocol},
      {"grpc", NewGrpcClientProtocol},
      {"http", HttpClientFactory(PayloadFormat::kProtobuf)},
      {"http+pb", HttpClientFactory(PayloadFormat::kProtobuf)},
      {"http+pb-text", HttpClientFactory(PayloadFormat::kProtobufText)},
      {"http+proto3-json", HttpClientFactory(PayloadFormat::kProto3Json)},
      {"trpc", NewTrpcClientProtocol},
  });
  return *registry;
}

}  // namespace

bool RegisterServerProtocol(std::string name, ServerProtocolFactory factory) {
  return Servers().Add(std::move(name), std::move(factory));
}

bool RegisterClientProtocol(std::string name, ClientProtocolFactory factory) {
  return Clients().Add(std::move(name), std::move(factory));
}

Expected<ServerProtocolSet, flare::Status> ServerProtocolSet::FromNames(
    const std::vector<std::string>& names, const Limits& limits,
    const HttpUses& http) {
  ServerProtocolSet set;
  set.limits_ = limits;
  HttpUses uses = http;
  uses.dialect = WebDialect();
  std::optional<std::size_t> http_at;
  std::optional<std::size_t> grpc_at;
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) != name) continue;
    std::optional<ServerProtocolFactory> factory = Servers().Find(*name);
    if (!factory) {
      return flare::Status(STATUS_NOT_SUPPORTED,
                           Servers().Unknown("protocol", *name));
    }
    bool is_http = AddHttpUse(*name, &uses);
    if (is_http && http_at) continue;
    if (is_http) http_at = set.factories_.size();
    // HTTP/1 would answer the first bytes of HTTP/2, if it were asked before.
    if (*name == "grpc") {
      grpc_at = http_at ? (*http_at)++ : set.factories_.size();
      set.factories_.insert(
          set.factories_.begin() + static_cast<std::ptrdiff_t>(*grpc_at),
          nullptr);
      continue;
    }
    set.factories_.push_back(*std::move(factory));
  }
  if (http_at) {
    set.factories_[*http_at] = [uses](const Limits& limits, ReplySink* sink) {
      return NewHttpServerProtocol(uses, limits, sink);
    };
  }
  if (grpc_at) {
    set.factories_[*grpc_at] = [uses](const Limits& limits, ReplySink* sink) {
      return NewGrpcServerProtocol(limits, sink, uses);
    };
  }
  return set;
}

Expected<std::unique_ptr<ClientProtocol>, flare::Status> NewClientProtocol(
    std::string_view scheme, const Limits& limits, std::string_view host) {
  std::optional<ClientProtocolFactory> factory = Clients().Find(scheme);
  if (!factory) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         Clients().Unknown("scheme", scheme));
  }
  return (*factory)(limits, host);
}

bool IsClientProtocol(std::string_view scheme) {
  return Clients().Find(scheme).has_value();
}

}  // namespace flare::rpc

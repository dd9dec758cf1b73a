// Channels that find their servers in etcd, version 3:
//
//   flare::RegisterEtcdResolver();
//   flare::RpcChannel::Options options;
//   options.override_nslb = "etcd+rr";
//   channel.Open("flare://10.0.0.1:2379,10.0.0.2:2379/services/echo/",
//   options);
//
// docs/discovery.md describes keys and values.

#ifndef FLARE_RPC_SERVICES_ETCD_RESOLVER_H_
#define FLARE_RPC_SERVICES_ETCD_RESOLVER_H_

#include <optional>
#include <string>

#include "flare/io/tls_options.h"

namespace flare {

struct EtcdResolverOptions {
  // A second resolver, of another etcd, needs another name.
  std::string name = "etcd";
  // How to check an etcd that speaks TLS, and what to show to it. Nothing: it
  // speaks plain HTTP.
  std::optional<TlsClientOptions> tls = {};
};

// Adds the resolver for channels that are opened later. False: one of that name
// is there already. Thread-safe. Opening such a channel blocks for up to a
// second while etcd is asked.
bool RegisterEtcdResolver(const EtcdResolverOptions& options = {});

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_ETCD_RESOLVER_H_

// Channels that find their servers in etcd, version 3:
//
//   flare::RegisterEtcdResolver();
//   flare::RpcChannel::Options options;
//   options.override_nslb = "etcd+rr";
//   channel.Open("flare://10.0.0.1:2379,10.0.0.2:2379/services/echo/",
//                options);
//
// docs/discovery.md describes keys and values.

#ifndef FLARE_RPC_SERVICES_ETCD_RESOLVER_H_
#define FLARE_RPC_SERVICES_ETCD_RESOLVER_H_

#include <optional>
#include <string>

#include "flare/io/tls_options.h"
#include "flare/rpc/services/etcd_user.h"

namespace flare {

struct EtcdResolverOptions {
  // The name in `override_nslb`. A resolver for a second etcd needs another
  // one.
  std::string name = "etcd";
  // How to verify etcd's certificate, and the certificate that is shown to it.
  // Nothing: etcd speaks plain HTTP.
  std::optional<TlsClientOptions> tls = {};
  // The user of etcd that may read the keys. Nothing: etcd asks for none, or
  // knows the user by the certificate.
  std::optional<EtcdUser> user = {};
};

// Adds the resolver for channels that are opened later. False: the name is
// taken already. Thread-safe. RpcChannel::Open() with this resolver blocks for
// up to a second while it asks etcd.
bool RegisterEtcdResolver(const EtcdResolverOptions& options = {});

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_ETCD_RESOLVER_H_

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

namespace flare {

// Adds the resolver "etcd" for channels that are opened later. False: one of
// that name is there already. Thread-safe. Opening such a channel blocks for up
// to a second while etcd is asked.
bool RegisterEtcdResolver();

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_ETCD_RESOLVER_H_

// A user of etcd, for options of etcd_resolver.h and etcd_registration.h.

#ifndef FLARE_RPC_SERVICES_ETCD_USER_H_
#define FLARE_RPC_SERVICES_ETCD_USER_H_

#include <string>

namespace flare {

struct EtcdUser {
  std::string name;
  std::string password;
  // Sends the password over plain connections, too, where everybody on the path
  // can read it. False: that is an error.
  bool allow_plaintext = false;
};

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_ETCD_USER_H_

// Which of several servers gets the next call.
//
// Chosen by the part behind '+' of a channel's `override_nslb` ("list+rr").
// Known from the start: "rr", round robin. Others can be added:
//
//   struct First : rpc::LoadBalancer {
//     std::size_t Next(std::size_t) override { return 0; }
//   };
//   rpc::RegisterLoadBalancer("first",
//                             [] { return std::make_unique<First>(); });

#ifndef FLARE_RPC_LOAD_BALANCER_H_
#define FLARE_RPC_LOAD_BALANCER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::rpc {

// One channel's choices.
class LoadBalancer {
 public:
  virtual ~LoadBalancer() = default;

  // An index below `peers` (which is not 0, and may change from call to call).
  // The channel goes on to the following ones if it knows that this server
  // can't be connected to, and for further attempts of the call. Thread-safe,
  // must neither block nor throw (which ends the process); part of every call,
  // in whose execution context it runs.
  virtual std::size_t Next(std::size_t peers) = 0;
};

using LoadBalancerFactory = std::function<std::unique_ptr<LoadBalancer>()>;

// False if the name is taken. Thread-safe; affects channels opened later.
bool RegisterLoadBalancer(std::string name, LoadBalancerFactory factory);

// Fails with STATUS_INVALID_CHANNEL and a text that lists the known names.
// Thread-safe.
Expected<std::unique_ptr<LoadBalancer>, flare::Status> NewLoadBalancer(
    std::string_view name);

}  // namespace flare::rpc

#endif  // FLARE_RPC_LOAD_BALANCER_H_

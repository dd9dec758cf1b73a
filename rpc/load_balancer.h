// Which of several servers gets the next call.
//
// Chosen by the part behind '+' of a channel's `override_nslb` ("list+rr").
// Known from the start:
//   rr      round robin: each server in turn
//   wrr     in turn, by weight
//   random  at random, by weight
//   p2c     the one with fewer calls under way (by weight) of two random ones
//   la      latency-aware: as p2c, by latency times calls under way
//   chash   consistent hash of RpcClientController::SetBalancingKey(), by
//           weight, with bounded load
// Others can be added:
//
//   struct First : rpc::LoadBalancer {
//     std::size_t Next(std::size_t) override { return 0; }
//   };
//   rpc::RegisterLoadBalancer("first",
//                             [] { return std::make_unique<First>(); });
//
// One that looks at servers and at how calls end makes pickers:
// docs/balancing.md has one in a page. None needs to care for the health of
// servers: a channel picks again if a server can't be connected to or is
// ejected (health_options.h).

#ifndef FLARE_RPC_LOAD_BALANCER_H_
#define FLARE_RPC_LOAD_BALANCER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/name_resolver.h"

namespace flare::rpc {

class BackendState;

// A server in a list, and a channel's knowledge of it. Thread-safe; nothing
// blocks.
class Backend {
 public:
  Backend(Peer peer, std::shared_ptr<BackendState> state)
      : peer_(std::move(peer)), state_(std::move(state)) {}

  // Address, weight, zone and tags.
  const Peer& peer() const { return peer_; }
  // Calls of the channel that are under way.
  std::uint32_t in_flight() const;
  // A moving average over the last half second or so of calls; 0 before the
  // first call has ended. Time-outs count with their time.
  std::int64_t latency_ns() const;
  // Returns the latency, halved for each half second in which no call has
  // ended.
  std::int64_t DecayedLatencyNs(std::int64_t now_ns) const;

  BackendState* state() const { return state_.get(); }

 private:
  Peer peer_;
  std::shared_ptr<BackendState> state_;
};

// In the order of the name resolver's list.
using Backends = std::vector<Backend>;

// A call that needs a server.
struct PickedCall {
  std::uint64_t key = 0;  // A hash of its SetBalancingKey().
  bool has_key = false;
  // How many servers were picked for it already and can't have it now, and the
  // last one of these.
  std::uint32_t refused = 0;
  std::size_t last_refused = 0;
};

// How a call went on a server.
struct EndedCall {
  int status = 0;  // rpc_status.h
  // From the sending of the request; 0 if it wasn't sent, and of streaming
  // calls.
  std::chrono::nanoseconds latency{0};
};

// Chooses for one list of servers. All functions are thread-safe, are part of
// every call, and must neither block nor throw (which ends the process).
class Picker {
 public:
  virtual ~Picker() = default;

  // An index into the list. It may be a server that can't have the call: then
  // it is asked again, a few times, and then the channel takes the next one in
  // the list that can. Runs in the execution context of the call.
  virtual std::size_t Pick(const PickedCall& call) = 0;

  // Returns whether the following two should be called. Asked once.
  virtual bool Observes() const { return false; }
  // A call goes to the server with that index.
  virtual void OnBegin(std::size_t index) { (void)index; }
  // It has ended, on this server. Exactly once for each OnBegin(), maybe after
  // there is another picker for a new list.
  virtual void OnEnd(std::size_t index, const EndedCall& call) {
    (void)index;
    (void)call;
  }
};

// One channel's choices.
class LoadBalancer {
 public:
  virtual ~LoadBalancer() = default;

  // A picker for a list of servers, which isn't empty and lives as long as the
  // picker. Called for each new list, one call at a time; the pickers of older
  // lists may still be used. Must not throw. The default's picks by Next() and,
  // after that, the following ones. Null: there is only one server, nothing is
  // to be picked or observed.
  virtual std::unique_ptr<Picker> NewPicker(const Backends& backends);

  // For simple balancers: an index below `peers` (which is not 0, and may
  // change from call to call). Thread-safe, must neither block nor throw; part
  // of every call, in whose execution context it runs.
  virtual std::size_t Next(std::size_t peers);
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

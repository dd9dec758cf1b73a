// The servers that a channel's address leads to, now and later.

#ifndef FLARE_RPC_NAME_RESOLUTION_H_
#define FLARE_RPC_NAME_RESOLUTION_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/status.h"

namespace flare::rpc {

// A server.
struct Peer {
  Endpoint endpoint;
  std::string host;  // As it was named; HTTP states it in its Host field.
  // For load balancers that heed it: its share of the calls, as others' weights
  // go. 0: it has no share with "wrr" and "random".
  std::uint32_t weight = 1;
  // The zone of the server (RpcChannelOptions::zone is the caller's). Empty:
  // not known.
  std::string zone = {};
  // For RpcChannelOptions::tags.
  std::map<std::string, std::string> tags = {};

  // Whether this is the same server, whatever its attributes.
  friend bool operator==(const Peer& a, const Peer& b) {
    return a.endpoint == b.endpoint && a.host == b.host;
  }
};

// The servers of one address, now and later. Thread-safe. Nothing may throw:
// that ends the process.
class NameResolution {
 public:
  virtual ~NameResolution() = default;

  // Will Peers() be the same for ever? Then Version() isn't asked for again.
  virtual bool IsStatic() const { return false; }

  // Changes, and only grows, when Peers() does. Doesn't block; part of every
  // call, in whose execution context it runs, and which is also the occasion to
  // begin a refresh in the background.
  virtual std::uint64_t Version() = 0;

  // The servers, in no particular order, none twice; maybe none. Doesn't block.
  virtual std::vector<Peer> Peers() = 0;

  // Why Peers() is empty, or older than it should be; ok: it is neither. Part
  // of the text of calls that find no server. Doesn't block.
  virtual flare::Status Failure() { return {}; }
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAME_RESOLUTION_H_

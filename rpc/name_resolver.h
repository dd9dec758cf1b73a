// From the address in a channel's URI to the servers it stands for.
//
// Chosen by the part before '+' of a channel's `override_nslb` ("list+rr").
// Known from the start: "list", a comma-separated list of 1.2.3.4:5, [::1]:5,
// unix:/path and host:5, each with a weight behind it if it is not 1, as in
// "10.0.0.1:5;weight=3". Others can be added with RegisterNameResolver before
// the channels that need them are opened.

#ifndef FLARE_RPC_NAME_RESOLVER_H_
#define FLARE_RPC_NAME_RESOLVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::rpc {

// A server.
struct Peer {
  Endpoint endpoint;
  std::string host;  // As it was named; HTTP states it in its Host field.
  // For load balancers that heed it: its share of the calls, as others' weights
  // go. 0: it has no share with "wrr" and "random".
  std::uint32_t weight = 1;

  // The same server, whatever its weight.
  friend bool operator==(const Peer& a, const Peer& b) {
    return a.endpoint == b.endpoint && a.host == b.host;
  }
};

// What one address stands for, now and later. Thread-safe. Nothing may throw:
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
};

// Starts to resolve `address`; may block for as long as a look-up takes. What
// blocks the thread should do so in a BlockingRegion (fiber/blocking_region.h).
// Fails if `address` can't be read, or nothing is found at first.
using NameResolver =
    std::function<Expected<std::shared_ptr<NameResolution>, flare::Status>(
        std::string_view address)>;

// False if the name is taken. Thread-safe; affects channels opened later.
bool RegisterNameResolver(std::string name, NameResolver resolver);

// Resolves `address` by the resolver of that name. Fails as it does, or, if
// there is no such resolver, with STATUS_INVALID_CHANNEL and a text that lists
// the known ones. Thread-safe; blocks as the resolver does.
//
// A "list" looks up its hosts again after each `update_interval`, or what the
// flag says.
//
// If it fails only because hosts of a "list" aren't known now, *later is a
// resolution that has the other servers, and looks those up again.
Expected<std::shared_ptr<NameResolution>, flare::Status> ResolveName(
    std::string_view resolver, std::string_view address,
    std::shared_ptr<NameResolution>* later = nullptr,
    std::optional<std::chrono::nanoseconds> update_interval = {});

// Ends the refreshes that go on in the background, without waiting for the
// look-ups that they wait for; none begins any more until
// ResumeNameResolution(), which opening a channel is only after
// ShutdownClientSide(). Blocks the fiber or thread. To be called before the
// runtime ends, as flare::Start() does (by ShutdownClientSide()).
void StopNameResolution();

// Refreshes may begin again. Any thread; doesn't block. Not while
// StopNameResolution() runs, nor when the runtime is about to end.
void ResumeNameResolution();

// How the "list" resolver looks up "host:port" (io::Resolve); tests put their
// own here, and nullptr back. A refresh calls it on a thread of its own, which
// may outlast StopNameResolution().
using HostLookup = std::function<Expected<std::vector<Endpoint>, flare::Status>(
    std::string_view host_and_port)>;
void SetHostLookupForTesting(HostLookup lookup);

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAME_RESOLVER_H_

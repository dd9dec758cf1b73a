// From the address in a channel's URI to the servers it stands for.
//
// Chosen by the part before '+' of a channel's `override_nslb` ("list+rr").
// Known from the start:
//   list  a comma-separated list of 1.2.3.4:5, [::1]:5, unix:/path and host:5,
//         each maybe with attributes: "10.0.0.1:5;weight=3;zone=a;tag.env=new"
//   dns   host:5: all addresses of a name; a name without a port: the targets
//         of its SRV records. Asked for again when these get old
//   file  a path: such servers in a file that is read again when it changes
// docs/discovery.md describes them. Others can be added with
// RegisterNameResolver before the channels that need them are opened.

#ifndef FLARE_RPC_NAME_RESOLVER_H_
#define FLARE_RPC_NAME_RESOLVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/name_resolution.h"

namespace flare::rpc {

// Starts to resolve `address`; may block for as long as a look-up takes. Code
// that blocks the thread should do so in a BlockingRegion
// (fiber/blocking_region.h). Fails if `address` can't be read, or nothing is
// found at first.
using NameResolver =
    std::function<Expected<std::shared_ptr<NameResolution>, flare::Status>(
        std::string_view address)>;

// False if the name is taken. Thread-safe; affects channels opened later.
bool RegisterNameResolver(std::string name, NameResolver resolver);

// Resolves `address` by the resolver of that name. Fails as it does, or, if
// there is no such resolver, with STATUS_INVALID_CHANNEL and a text that lists
// the known ones. Thread-safe; blocks as the resolver does.
//
// A "list" looks up its hosts again after each `update_interval`, or the
// flag's; a "file" those in it. "dns" asks again after `update_interval`, or by
// the records' time to live.
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

// Refreshes may begin again. Any thread; doesn't block. Don't call it while
// StopNameResolution() runs or when the runtime is about to end.
void ResumeNameResolution();

// How the "list" resolver looks up "host:port" (io::Resolve); tests put their
// own here, and nullptr back. A refresh calls it on a thread of its own, which
// may outlast StopNameResolution().
using HostLookup = std::function<Expected<std::vector<Endpoint>, flare::Status>(
    std::string_view host_and_port)>;
void SetHostLookupForTesting(HostLookup lookup);

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAME_RESOLVER_H_

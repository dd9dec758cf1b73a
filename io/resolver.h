// Host names to addresses.

#ifndef FLARE_IO_RESOLVER_H_
#define FLARE_IO_RESOLVER_H_

#include <string>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::io {

// Resolves "host:port" to at least one endpoint, in the order the system
// prefers them, without duplicates. Literal addresses ("1.2.3.4:5", "[::1]:5",
// "unix:/path") are parsed and never block. A name asks the system resolver
// (getaddrinfo: /etc/hosts, DNS), which may take seconds: a fiber is suspended
// meanwhile (the query has a thread of its own, in a blocking region), a plain
// thread blocks; TerminateRuntime() waits for it. No caching beyond the
// system's. Any thread.
//
// Errors: no or bad port, unknown host, resolver failure; the text names the
// input and the cause.
Expected<std::vector<Endpoint>, Status> Resolve(std::string_view name);

// Returns the endpoints without those that this host has no route to now, such
// as a name's IPv6 addresses where there is only IPv4; all of them if it has a
// route to none. For callers that ask again: routes come and go. Any thread; a
// few system calls for each; doesn't block.
std::vector<Endpoint> WithRoute(std::vector<Endpoint> endpoints);

}  // namespace flare::io

#endif  // FLARE_IO_RESOLVER_H_

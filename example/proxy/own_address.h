// Whether a connection to an address would end at one of our listeners.

#ifndef EXAMPLE_PROXY_OWN_ADDRESS_H_
#define EXAMPLE_PROXY_OWN_ADDRESS_H_

#include "flare/base/endpoint.h"

namespace example::proxy {

// Do connections to `target` reach the socket that listens on `listener`? Knows
// of wildcards (of which [::] is IPv6 alone), this machine's addresses as they
// are now, IPv4 addresses mapped to IPv6, and several paths of one file. False
// for a listener with port 0, which has a port only when it listens. Looks into
// the file system; any thread.
bool LeadsTo(const flare::Endpoint& target, const flare::Endpoint& listener);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_OWN_ADDRESS_H_

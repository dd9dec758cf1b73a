// The resolver "dns": all addresses of a name, or the targets of its SRV
// records, asked for again when they get old. docs/discovery.md describes it.

#ifndef FLARE_RPC_NAMING_DNS_RESOLUTION_H_
#define FLARE_RPC_NAMING_DNS_RESOLUTION_H_

#include <string_view>

#include "flare/rpc/naming/background_resolution.h"

namespace flare::rpc {

// Fails if `address` can't be read (see ReadDnsQuestion). A name that isn't
// known, or a name server that doesn't answer, means that there are no servers
// yet: the log says why, and it is asked again. Blocks the fiber, or the plain
// thread, for as long as DNS takes to answer.
Resolution ResolveDns(std::string_view address, const UpdateInterval& interval);

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAMING_DNS_RESOLUTION_H_

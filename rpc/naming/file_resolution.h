// The resolver "file": servers in a file, read again when it changes.
// docs/discovery.md describes the file.

#ifndef FLARE_RPC_NAMING_FILE_RESOLUTION_H_
#define FLARE_RPC_NAMING_FILE_RESOLUTION_H_

#include <string_view>

#include "flare/rpc/naming/background_resolution.h"

namespace flare::rpc {

// Never fails: a file that can't be read, or isn't right, has
// no servers yet: the log says why, and it is looked at again. Blocks the
// fiber, or the plain thread, for as long as reading and looking up hosts take.
Resolution ResolveFile(std::string_view path, const UpdateInterval& interval);

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAMING_FILE_RESOLUTION_H_

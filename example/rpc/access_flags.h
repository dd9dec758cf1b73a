// Access control by the flags of a server: --access_rules, --access_tokens.

#ifndef EXAMPLE_RPC_ACCESS_FLAGS_H_
#define EXAMPLE_RPC_ACCESS_FLAGS_H_

#include <memory>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/access_control.h"

namespace example {

// Null: the flags ask for none. Fails with a text that names the flag or the
// file, and its mistake.
flare::Expected<std::shared_ptr<flare::AccessControl>, flare::Status>
AccessFromFlags();

}  // namespace example

#endif  // EXAMPLE_RPC_ACCESS_FLAGS_H_

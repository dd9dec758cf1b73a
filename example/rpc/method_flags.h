// Flags that programs share, for calls of any method: --method, --data, -H,
// --proto, --proto_path, --descriptor_set, --reflection_addr.

#ifndef EXAMPLE_RPC_METHOD_FLAGS_H_
#define EXAMPLE_RPC_METHOD_FLAGS_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "example/rpc/method_source.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_client_controller.h"

namespace example {

// --method; "": it isn't given.
const std::string& MethodFlag();
// --data.
const std::string& DataFlag();

// A server to ask about its services if no file describes them.
struct DescribingServer {
  std::string server_addr;  // Unless --reflection_addr names another one.
  std::chrono::milliseconds timeout{0};  // 0: none.
};

// Reads the files of --proto or --descriptor_set, or else asks the server for
// the one that defines `symbol`: the full name of a method (its last part may
// follow a '/'), or of anything else. A failure has the code EINVAL if a flag
// or a file is wrong, or else those of RpcClientController, and says which flag
// to change. Blocks the thread while it reads files, and the fiber while it
// asks the server.
flare::Expected<std::unique_ptr<MethodSource>, flare::Status> SourceFromFlags(
    const DescribingServer& server, const std::string& symbol);

// Names of all services in there, in order.
flare::Expected<std::vector<std::string>, flare::Status> ServicesFromFlags(
    const DescribingServer& server);

// The entries of all -H flags.
flare::Expected<flare::Metadata, flare::Status> MetadataFromFlags();

// Makes calls of `controller` end after that time; 0: never.
void SetTimeout(std::chrono::milliseconds timeout,
                flare::RpcClientController* controller);

// The first of the flags above that is given, as people write it; "": none is.
std::string GivenMethodFlag();

}  // namespace example

#endif  // EXAMPLE_RPC_METHOD_FLAGS_H_

#include "example/rpc/call.h"

#include "example/rpc/http_call.h"
#include "example/rpc/rpc_call.h"

namespace example {

flare::Expected<std::unique_ptr<Target>, flare::Status> OpenTarget(
    const LoadOptions& options) {
  return IsPlainHttp(options.server_addr) ? OpenHttpTarget(options)
                                          : OpenRpcTarget(options);
}

}  // namespace example

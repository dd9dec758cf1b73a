// Plain HTTP requests, each caller's over a connection of its own.

#ifndef EXAMPLE_RPC_HTTP_CALL_H_
#define EXAMPLE_RPC_HTTP_CALL_H_

#include <memory>
#include <string_view>

#include "example/rpc/call.h"

namespace example {

// "http://host:port/path", or "tls+http://...". Without a path it's a call over
// the RPC stack.
bool IsPlainHttp(std::string_view server_addr);

// As OpenTarget(), if IsPlainHttp(options.server_addr). A call's status is 0
// for a reply of 2xx, else the reply's, or one of flare::rpc::Status.
flare::Expected<std::unique_ptr<Target>, flare::Status> OpenHttpTarget(
    const LoadOptions& options);

}  // namespace example

#endif  // EXAMPLE_RPC_HTTP_CALL_H_

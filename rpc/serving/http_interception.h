// HTTP handlers that are called through the interceptors of their server.
#ifndef FLARE_RPC_SERVING_HTTP_INTERCEPTION_H_
#define FLARE_RPC_SERVING_HTTP_INTERCEPTION_H_

#include "flare/rpc/http_handler.h"
#include "flare/rpc/server/interceptor_chain.h"

namespace flare::rpc {

// One that calls `handler` through `interceptors`, which must outlive it.
HttpHandlerPtr InterceptHttp(HttpHandlerPtr handler,
                             const Interceptors* interceptors);

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVING_HTTP_INTERCEPTION_H_

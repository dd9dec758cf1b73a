// A call through the interceptors of a channel (interceptor.h).

#ifndef FLARE_RPC_CLIENT_INTERCEPTED_CALL_H_
#define FLARE_RPC_CLIENT_INTERCEPTED_CALL_H_

#include <memory>
#include <vector>

#include "flare/base/ref_ptr.h"
#include "flare/rpc/client/client_call.h"
#include "flare/rpc/client/route.h"
#include "flare/rpc/interceptor.h"

namespace flare::rpc {

using ClientInterceptors = std::vector<std::shared_ptr<ClientInterceptor>>;

class InterceptedClientCall {
 public:
  // As ClientCall::Run(), through `interceptors`, of which there is at least
  // one; there is a route. For calls with `done` both are kept.
  static void Run(const std::shared_ptr<const ClientInterceptors>& interceptors,
                  const ClientCall::Arguments& arguments);

 private:
  static void RunChain(const ClientInterceptors& interceptors,
                       const ClientCall::Arguments& arguments);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_INTERCEPTED_CALL_H_

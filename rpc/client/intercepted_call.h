// A call through the interceptors of a channel (interceptor.h), and by its
// policy (policy/call_policies.h).

#ifndef FLARE_RPC_CLIENT_INTERCEPTED_CALL_H_
#define FLARE_RPC_CLIENT_INTERCEPTED_CALL_H_

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "flare/base/ref_ptr.h"
#include "flare/rpc/client/client_call.h"
#include "flare/rpc/client/route.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/policy/call_policies.h"
#include "flare/rpc/rpc_client_controller.h"

namespace flare::rpc {

using ClientInterceptors = std::vector<std::shared_ptr<ClientInterceptor>>;

// Runs interceptors, one within the other, and then the call itself, `call`,
// which blocks. An exception of theirs fails the call. All must outlive it.
class ClientInterceptorChain final : public ClientNext {
 public:
  template <class F>
  ClientInterceptorChain(const ClientInterceptors& interceptors,
                         ClientInterceptedCall* intercepted, const F& call)
      : interceptors_(interceptors),
        intercepted_(intercepted),
        call_([](const void* f) { (*static_cast<const F*>(f))(); }),
        argument_(&call) {}

  void Run() override;

 private:
  const ClientInterceptors& interceptors_;
  ClientInterceptedCall* const intercepted_;
  void (*const call_)(const void*);
  const void* const argument_;
  std::size_t at_ = 0;
};

class InterceptedClientCall {
 public:
  // Code around the calls of a channel. Both may be null.
  struct Wraps {
    std::shared_ptr<const ClientInterceptors> interceptors;
    std::shared_ptr<const CallPolicies> policies;  // Within the interceptors.
  };
  // As ClientCall::Run(), within `wraps`; there is a route. For calls with
  // `done` both are kept.
  static void Run(const Wraps& wraps, const ClientCall::Arguments& arguments);

 private:
  static void RunWith(const Wraps& wraps,
                      const ClientCall::Arguments& arguments,
                      RpcClientController* controller);
  // The name of the method that the call is for.
  static std::string_view NameOf(const ClientCall::Arguments& arguments);
  static void RunChain(const Wraps& wraps,
                       const ClientCall::Arguments& arguments);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_INTERCEPTED_CALL_H_

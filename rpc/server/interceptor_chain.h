// Runs a call through the interceptors of its server.
//
//   InterceptorChain(interceptors, &call, CallTheMethod, argument).RunAll();
#ifndef FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_
#define FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_

#include <memory>
#include <vector>

#include "flare/rpc/interceptor.h"

namespace flare::rpc {

// In the order in which they are called.
using Interceptors = std::vector<std::shared_ptr<ServerInterceptor>>;

// Each interceptor gets the chain itself, whose Run() runs the rest of it.
class InterceptorChain final : private ServerNext {
 public:
  // All must live until RunAll() has returned. There is one interceptor at
  // least. `last` doesn't throw.
  InterceptorChain(const Interceptors& interceptors, InterceptedCall* call,
                   void (*last)(void*), void* argument)
      : interceptors_(interceptors),
        call_(call),
        last_(last),
        argument_(argument) {}

  // Throws only the end of a thread.
  void RunAll() { RunOne(interceptors_.data()); }

 private:
  using Place = const std::shared_ptr<ServerInterceptor>*;

  void Run() override;
  void RunInner(Place place);
  void RunOne(Place place) {
    next_ = place + 1;
    try {
      (*place)->Intercept(*call_, *this);
    } catch (...) {
      Fail(place);
    }
    next_ = nullptr;
  }
  [[gnu::cold, gnu::noinline]] void Fail(Place place) const;

  const Interceptors& interceptors_;
  // Run() runs this: an interceptor, `last` if it is the end, nothing if it has
  // returned.
  Place next_;
  InterceptedCall* const call_;
  void (*const last_)(void*);
  void* const argument_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_

// Runs a call through the interceptors of its server.
//
//   InterceptorChain(interceptors, &call, [&] { CallTheMethod(); }).Run();
#ifndef FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_
#define FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "flare/rpc/interceptor.h"

namespace flare::rpc {

// In the order in which they are called.
using Interceptors = std::vector<std::shared_ptr<ServerInterceptor>>;

class InterceptorChain {
 public:
  // All must live until Run() has returned. `last` doesn't throw.
  template <class F>
  InterceptorChain(const Interceptors& interceptors, InterceptedCall* call,
                   const F& last)
      : interceptors_(interceptors),
        call_(call),
        last_([](const void* f) { (*static_cast<const F*>(f))(); }),
        argument_(&last) {}

  // Throws only what ends a thread.
  void Run() const { RunFrom(0); }

 private:
  friend class flare::ServerNext;

  void RunFrom(std::size_t index) const;
  [[gnu::cold, gnu::noinline]] void Fail(std::size_t index) const;

  const Interceptors& interceptors_;
  InterceptedCall* const call_;
  void (*const last_)(const void*);
  const void* const argument_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_

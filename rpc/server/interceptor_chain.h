// Runs a call through the interceptors of its server.
//
//   InterceptorChain(interceptors, &call, CallTheMethod, argument).Run();
#ifndef FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_
#define FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_

#include <memory>
#include <vector>

#include "flare/rpc/interceptor.h"

namespace flare::rpc {

// In the order in which they are called.
using Interceptors = std::vector<std::shared_ptr<ServerInterceptor>>;

class InterceptorChain {
 public:
  // All must live until Run() has returned. There is one interceptor at least.
  // `last` doesn't throw.
  InterceptorChain(const Interceptors& interceptors, InterceptedCall* call,
                   void (*last)(void*), void* argument)
      : begin_(interceptors.data()),
        end_(begin_ + interceptors.size()),
        call_(call),
        last_(last),
        argument_(argument) {}

  // Throws only the end of a thread.
  void Run() const { RunOne(begin_); }

 private:
  using Place = const std::shared_ptr<ServerInterceptor>*;

  // An interceptor gets this; `place` is behind it.
  class Next final : public ServerNext {
   public:
    Next(const InterceptorChain* chain, Place place)
        : chain_(chain), place_(place) {}
    void Run() override;

   private:
    const InterceptorChain* chain_;  // Null once it was run.
    const Place place_;
  };

  void RunFrom(Place place) const {
    if (place == end_) return last_(argument_);
    RunInner(place);
  }
  void RunInner(Place place) const;
  void RunOne(Place place) const {
    try {
      Next next(this, place + 1);
      (*place)->Intercept(*call_, next);
    } catch (...) {
      Fail(place);
    }
  }
  [[gnu::cold, gnu::noinline]] void Fail(Place place) const;

  const Place begin_;
  const Place end_;
  InterceptedCall* const call_;
  void (*const last_)(void*);
  void* const argument_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_

// Runs a call through the interceptors of its server.
//
//   InterceptorChain(interceptors, &call, [&] { CallTheMethod(); }).RunAll();
#ifndef FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_
#define FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "flare/rpc/interceptor.h"

namespace flare::rpc {

// In the order in which they are called.
using Interceptors = std::vector<std::shared_ptr<ServerInterceptor>>;

// Each interceptor gets the chain itself, whose Run() runs the rest of it.
// `Last` is a template's parameter, since a call by pointer costs more.
template <class Last>
class InterceptorChain final : private ServerNext {
 public:
  // All must live until RunAll() has returned. There is one interceptor at
  // least. last() doesn't throw.
  InterceptorChain(const Interceptors& interceptors, InterceptedCall* call,
                   Last last)
      : interceptors_(interceptors), call_(call), last_(std::move(last)) {}

  // Throws only the end of a thread.
  void RunAll() { RunOne(interceptors_.data()); }

 private:
  using Place = const std::shared_ptr<ServerInterceptor>*;

  void Run() override;
  // A function of its own, so that calls without another one need no frame for
  // it.
  [[gnu::noinline]] void RunInner(Place place) { RunOne(place); }
  void RunOne(Place place);

  const Interceptors& interceptors_;
  // Run() runs this: an interceptor, last_ if it is the end, nothing if it has
  // returned.
  Place next_;
  InterceptedCall* const call_;
  const Last last_;
};

// In a `catch (...)`: interceptor `number` (from 1) of the call has thrown.
[[gnu::cold]] void FailByInterceptor(std::size_t number, InterceptedCall* call);
[[gnu::cold]] void LogSecondRun();

template <class Last>
void InterceptorChain<Last>::Run() {
  const Place place = next_;
  if (place == interceptors_.data() + interceptors_.size()) {
    next_ = nullptr;
    return last_();
  }
  if (place == nullptr) [[unlikely]]
    return LogSecondRun();
  RunInner(place);
}

template <class Last>
[[gnu::always_inline]] inline void InterceptorChain<Last>::RunOne(Place place) {
  next_ = place + 1;
  try {
    (*place)->Intercept(*call_, *this);
  } catch (...) {
    FailByInterceptor(
        static_cast<std::size_t>(place - interceptors_.data()) + 1, call_);
  }
  next_ = nullptr;
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_INTERCEPTOR_CHAIN_H_

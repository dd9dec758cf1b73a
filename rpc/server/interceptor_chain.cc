#include "flare/rpc/server/interceptor_chain.h"

#include <string>

#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/handler_exception.h"
#include "glog/logging.h"

namespace flare::rpc {

void InterceptorChain::Run() {
  const Place place = next_;
  if (place == interceptors_.data() + interceptors_.size()) {
    next_ = nullptr;
    return last_(argument_);
  }
  if (place == nullptr) [[unlikely]] {
    LOG(DFATAL) << "ServerNext::Run() was called twice by one interceptor.";
    return;
  }
  RunInner(place);
}

// A function of its own, so that calls without another one need no frame for
// it.
[[gnu::noinline]] void InterceptorChain::RunInner(Place place) {
  RunOne(place);
}

// In a `catch (...)`.
void InterceptorChain::Fail(Place place) const {
  const std::string who = "nterceptor " +
                          std::to_string(place - interceptors_.data() + 1) +
                          " of " + std::string(call_->method());
  const std::string what = TakeHandlerException("i" + who);
  call_->SetFailed(STATUS_FAILED, "I" + who + " has thrown " + what);
}

}  // namespace flare::rpc

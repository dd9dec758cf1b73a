#include "flare/rpc/interceptor.h"

#include <string>
#include <utility>

#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/handler_exception.h"
#include "flare/rpc/server/interceptor_chain.h"
#include "glog/logging.h"

namespace flare {
namespace {

HttpStatus HttpStatusOf(int code) {
  switch (code) {
    case rpc::STATUS_OVERLOADED:
      return HttpStatus::ServiceUnavailable;
    case rpc::STATUS_TIMEOUT:
      return HttpStatus::GatewayTimeout;
    case rpc::STATUS_OUT_OF_SERVICE:
      return HttpStatus::ServiceUnavailable;
    case rpc::STATUS_UNAUTHENTICATED:
      return HttpStatus::Unauthorized;
    case rpc::STATUS_PERMISSION_DENIED:
      return HttpStatus::Forbidden;
    default:
      return HttpStatus::InternalServerError;
  }
}

}  // namespace

bool InterceptedCall::failed() const {
  return http_response_ != nullptr ? status() >= 400 : controller_->Failed();
}

int InterceptedCall::status() const {
  return http_response_ != nullptr ? static_cast<int>(http_response_->status())
                                   : controller_->ErrorCode();
}

void InterceptedCall::SetFailed(int code, std::string reason) {
  if (http_response_ == nullptr) {
    return controller_->SetFailed(code, std::move(reason));
  }
  FillHttpError(HttpStatusOf(code), reason, http_response_);
  if (code == rpc::STATUS_UNAUTHENTICATED) {
    http_response_->headers()->Set("WWW-Authenticate", "Bearer");
  }
}

void ServerNext::Run() {
  const rpc::InterceptorChain* const chain = std::exchange(chain_, nullptr);
  if (chain == nullptr) [[unlikely]] {
    LOG(DFATAL) << "ServerNext::Run() was called twice by one interceptor.";
    return;
  }
  chain->RunFrom(next_);
}

namespace rpc {

// Kept out of line: the function behind the last one needs no frame for it.
[[gnu::noinline]] void InterceptorChain::RunInner(Place place) const {
  RunOne(place);
}

// In a `catch (...)`.
void InterceptorChain::Fail(Place place) const {
  const std::string who = "nterceptor " + std::to_string(place - begin_ + 1) +
                          " of " + std::string(call_->method());
  const std::string what = TakeHandlerException("i" + who);
  call_->SetFailed(STATUS_FAILED, "I" + who + " has thrown " + what);
}

}  // namespace rpc
}  // namespace flare

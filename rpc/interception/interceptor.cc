#include "flare/rpc/interceptor.h"

#include <string>
#include <utility>

#include "flare/rpc/rpc_status.h"

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

}  // namespace flare

#include "flare/rpc/server/interceptor_chain.h"

#include <string>

#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/handler_exception.h"
#include "glog/logging.h"

namespace flare::rpc {

void FailByInterceptor(std::size_t number, InterceptedCall* call) {
  const std::string who = "nterceptor " + std::to_string(number) + " of " +
                          std::string(call->method());
  const std::string what = TakeHandlerException("i" + who);
  call->SetFailed(STATUS_FAILED, "I" + who + " has thrown " + what);
}

void LogSecondRun() {
  LOG(DFATAL) << "ServerNext::Run() was called twice by one interceptor.";
}

}  // namespace flare::rpc

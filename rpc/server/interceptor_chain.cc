#include "flare/rpc/server/interceptor_chain.h"

#include <new>
#include <string>
#include <utility>

#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/handler_exception.h"
#include "glog/logging.h"

namespace flare::rpc {

void FailByInterceptor(std::size_t number, InterceptedCall* call) {
  std::string text = "out of memory";
  try {
    const std::string who = "nterceptor " + std::to_string(number) + " of " +
                            std::string(call->method());
    text = "I" + who + " has thrown " + TakeHandlerException("i" + who);
  } catch (const std::bad_alloc&) {
    // Which the exception, most likely, was as well.
  }
  call->SetFailed(STATUS_FAILED, std::move(text));
}

void LogSecondRun() {
  LOG(DFATAL) << "ServerNext::Run() was called twice by one interceptor.";
}

}  // namespace flare::rpc

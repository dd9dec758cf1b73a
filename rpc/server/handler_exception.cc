#include "flare/rpc/server/handler_exception.h"

#include <exception>

#include "flare/base/describe_exception.h"
#include "flare/base/string.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/wire/utf8.h"
#include "glog/logging.h"

namespace flare::rpc {

std::string TakeHandlerException(const std::string& handler) {
  const std::exception_ptr exception = std::current_exception();
  // No exception of C++.
  if (exception == nullptr) throw;
  std::string what = DescribeException(exception);
  static LogThrottle throttle;
  if (auto left_out = throttle.Admit()) {
    std::string scratch;
    LOG(ERROR) << "an exception left "
               << OneLine(AsUtf8(handler + ": " + what, &scratch))
               << LogThrottle::NoteOthers(*left_out);
  }
  return what;
}

}  // namespace flare::rpc

#include "flare/rpc/client/wait_limit.h"

#include <cstdint>
#include <string>

#include "flare/base/clock.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/client/context_stop.h"

namespace flare::rpc {

WaitLimit WaitLimit::In(std::chrono::nanoseconds timeout) {
  auto* const context = fiber::ExecutionContext::Current();
  const std::int64_t deadline_ns =
      DeadlineIn(context, SaturatingAdd(NowNs(), ToNs(timeout)));
  return {context == nullptr ? std::stop_token() : context->stop_token(),
          std::chrono::steady_clock::time_point(
              std::chrono::nanoseconds(deadline_ns))};
}

flare::Status WaitLimit::Exceeded(std::string_view during,
                                  const Codes& codes) const {
  const auto* const context = fiber::ExecutionContext::Current();
  const auto cause =
      context == nullptr ? fiber::StopCause::kNone : context->stop_cause();
  // The deadline of the context is the request's, too. Whether that stops the
  // context before the wait's end is chance.
  if (!stop.stop_requested() || cause == fiber::StopCause::kDeadline) {
    return flare::Status(codes.timeout,
                         "the time is over, " + std::string(during));
  }
  return flare::Status(
      codes.cancelled,
      "cancelled " + std::string(during) +
          (context == nullptr ? ""
                              : std::string(", as the call that it is part of "
                                            "has ended: ") +
                                    fiber::ToString(cause)));
}

}  // namespace flare::rpc

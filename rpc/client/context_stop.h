// Ends a call when the execution context in which it was made is stopped: its
// caller has left, say. Watching a context makes the server watch its own call
// (server/call_watch.h), so only calls that wait in one pay for that.
#ifndef FLARE_RPC_CLIENT_CONTEXT_STOP_H_
#define FLARE_RPC_CLIENT_CONTEXT_STOP_H_

#include <algorithm>
#include <cstdint>
#include <new>
#include <stop_token>
#include <string>
#include <utility>

#include "flare/base/object_pool.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

// The earlier one of a call's own deadline and that of `context` (null: none).
inline std::int64_t DeadlineIn(const fiber::ExecutionContext* context,
                               std::int64_t deadline_ns) {
  if (context == nullptr || context->deadline_ns() == 0) return deadline_ns;
  return std::min(deadline_ns, context->deadline_ns());
}

// The status of a call that the stopped `context` has ended.
inline flare::Status ContextEnded(const fiber::ExecutionContext& context) {
  return flare::Status(
      STATUS_FAILED,
      std::string("the call in whose context it was made has ended: ") +
          fiber::ToString(context.stop_cause()));
}

// Calls `stop()` once if the context is stopped, or was: from whatever thread
// does that, or from the constructor. It mustn't block. The destructor waits
// for one that runs on another thread.
template <class Stop>
class ContextStop {
 public:
  ContextStop(fiber::ExecutionContext* context, Stop stop)
      : context_(ref_ptr, context),
        callback_(context->stop_token(), std::move(stop)) {}

  // From the pool.
  static void* operator new(std::size_t size) {
    static_cast<void>(size);
    return PoolAllocate<sizeof(ContextStop)>();
  }
  static void operator delete(void* memory) {
    PoolFree<sizeof(ContextStop)>(memory);
  }

  const RefPtr<fiber::ExecutionContext>& context() const { return context_; }
  bool stopped() const { return context_->stop_requested(); }
  fiber::StopCause cause() const { return context_->stop_cause(); }
  flare::Status status() const { return ContextEnded(*context_); }

 private:
  const RefPtr<fiber::ExecutionContext> context_;
  const std::stop_callback<Stop> callback_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CONTEXT_STOP_H_

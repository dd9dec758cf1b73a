// The execution context that a call's method runs in: made for the first call,
// kept for the next ones while nobody else uses it, and watched from when
// somebody asks for its stop token (fiber/execution_context.h).
//
// The task and the end of the call use it, one after the other; Watch() is for
// the thread that asks for the token. Rules in call_context.cc.
#ifndef FLARE_RPC_SERVER_CALL_CONTEXT_H_
#define FLARE_RPC_SERVER_CALL_CONTEXT_H_

#include <google/protobuf/stubs/callback.h>

#include <cstdint>
#include <stop_token>

#include "flare/base/ref_ptr.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/server/call_watch.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class CallContext {
 public:
  CallContext() = default;
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  // Before the method is called. `owner`: the same for all calls. `deadline_ns`
  // in NowNs() time; 0: none.
  void Open(fiber::ExecutionContext::Owner* owner, std::int64_t deadline_ns) {
    if (context_ == nullptr) [[unlikely]] {
      context_ = fiber::ExecutionContext::Create(0, owner);
    }
    context_->set_deadline_ns(deadline_ns);
  }

  // Null before Open().
  fiber::ExecutionContext* Get() const { return context_.Get(); }
  RefPtr<fiber::ExecutionContext> Share() const { return context_; }

  // For Owner::OnWatched(), unless the call's end was claimed: from here on the
  // context is stopped when the call is cancelled or its deadline is over.
  [[nodiscard]] fiber::StopCause Watch(WatchedCalls* calls,
                                       const ServerProtocol* protocol,
                                       const ReplyTicket& ticket,
                                       std::int64_t deadline_ns);
  // Runs `callback` once: when the context is stopped, or in EndWatch(); at
  // once if it is stopped already.
  void NotifyOnStop(google::protobuf::Closure* callback);

  // The call has ended, and somebody has watched, or tried to: nobody does any
  // more. Returns whether it had been stopped. Runs callbacks.
  bool EndWatch();

  // The next call gets the same context, or another one if it isn't as new.
  void Recycle() {
    if (context_ != nullptr && !context_->IsAsNew()) [[unlikely]]
      Drop();
  }
  // ... another one. May block, in destructors of values.
  [[gnu::cold, gnu::noinline]] void Drop();

 private:
  RefPtr<fiber::ExecutionContext> context_;
  CallWatch* watch_ = nullptr;  // Null unless the context is watched.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_CONTEXT_H_

// [CE4] The context is kept for the next call if the call has the only
//       reference, and nobody has stored anything in it, watched or stopped it.
//       Otherwise the call disowns it, when it ends (if it was watched) or is
//       given back, before it is used again.
#include "flare/rpc/server/call_context.h"

#include <utility>

namespace flare::rpc {

fiber::StopCause CallContext::Watch(WatchedCalls* calls,
                                    const ServerProtocol* protocol,
                                    const ReplyTicket& ticket,
                                    std::int64_t deadline_ns) {
  watch_ = new CallWatch(context_, protocol, ticket);
  return watch_->Begin(calls, deadline_ns);
}

void CallContext::NotifyOnStop(google::protobuf::Closure* callback) {
  if (context_->stop_token().stop_requested() || watch_ == nullptr) {
    return callback->Run();
  }
  watch_->NotifyOnStop(callback);
}

bool CallContext::EndWatch() {
  const bool stopped = context_->stop_requested();
  context_->Disown();  // Excludes a watch that begins [CW1].
  if (watch_ != nullptr) std::exchange(watch_, nullptr)->End();
  return stopped;
}

void CallContext::Drop() {
  context_->Disown();  // [CE4]
  context_.Reset();
}

}  // namespace flare::rpc

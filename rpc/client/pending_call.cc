#include "flare/rpc/client/pending_call.h"

#include "flare/fiber/scheduler/worker.h"

namespace flare::rpc {

void PendingCall::OnReply(InboundResponse* reply, std::int64_t now_ns,
                          fiber::TaskList* ready) {
  inbound_ = reply;
  received_ns_ = now_ns;
  Complete(Outcome::kReply, ready);
}

void PendingCall::OnConnectionLost(const flare::Status& why,
                                   fiber::TaskList* ready) {
  failure_ = why;
  Complete(Outcome::kFailed, ready);
}

void PendingCall::BlockCaller() {
  carrier_ = fiber::CurrentCarrier();
  blocks_thread_ = carrier_ == nullptr;
}

void PendingCall::WaitForEnd() {
  if (blocks_thread_) return BlockThread();
  if (OtherHasLetGo()) return;
  fiber::SuspendFiber(
      {"call", this},
      [](void* self) {
        auto* const call = static_cast<PendingCall*>(self);
        if (call->LetGo()) fiber::ResumeFiber(call->carrier_);  // [CA7]
      },
      this);
}

// The completer looks at ended_ only after the issuer let go, here.
void PendingCall::BlockThread() {
  fiber::Event ended;
  ended_ = &ended;
  if (!LetGo()) ended.Wait();  // [CA7]
}

bool PendingCall::LetGo() {
  if (OtherHasLetGo()) return true;  // No atomic exchange is needed.
  // release: changes of the call are visible to the one who lets go last;
  // acquire: the other way round [CA2].
  return holders_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void PendingCall::Complete(Outcome outcome, fiber::TaskList* ready) {
  outcome_ = outcome;
  if (!LetGo()) return;  // [CA4]
  if (done_ == nullptr) {
    blocks_thread_ ? ended_->Set() : fiber::ResumeFiber(carrier_);
  } else if (ready != nullptr) {
    ready->PushBack(this);
  } else {
    fiber::Submit(this);
  }
}

}  // namespace flare::rpc

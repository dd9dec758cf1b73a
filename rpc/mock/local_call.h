// A call of a channel that code of this process serves, without a server and a
// connection: for an interceptor that answers in place of servers.
//
// Rules in local_call.cc.
#ifndef FLARE_RPC_MOCK_LOCAL_CALL_H_
#define FLARE_RPC_MOCK_LOCAL_CALL_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/callback.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/client/composite_call.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/served_call.h"
#include "flare/rpc/server/served_stream.h"

namespace flare::rpc {

// Copies a message to one of the same type, whose descriptor may be that of
// another pool. False: the two types differ so much that it can't be read.
bool CopyMessage(const google::protobuf::Message& from,
                 google::protobuf::Message* to);

class LocalCall final : public RefCounted<LocalCall>,
                        public CancelTarget,
                        public ServedCall,
                        public google::protobuf::Closure {
 public:
  // Serves a call as google::protobuf::Service::CallMethod() does; messages of
  // streams are in the controller. Runs on a fiber of its own, in an execution
  // context of its own. One that throws mustn't have passed `done` on.
  using Handler = std::function<void(const google::protobuf::Message* request,
                                     google::protobuf::Message* response,
                                     RpcServerController* controller,
                                     google::protobuf::Closure* done)>;

  struct Arguments {
    ClientInterceptedCall* call = nullptr;
    ClientNext* next = nullptr;
    // That of generated code, as are the messages of the handler.
    const google::protobuf::MethodDescriptor* method = nullptr;
    // The single request of a client that doesn't stream; else null.
    std::shared_ptr<const google::protobuf::Message> request;
    Handler handler;
    // Called once, when the handler has run its `done` and is destroyed, or
    // isn't called.
    Function<void()> on_handled;
  };
  // Blocks the fiber (or thread) until the call is over, as its controller then
  // says. The handler may go on: a call that has timed out, or was cancelled,
  // doesn't wait for it.
  static void Make(Arguments arguments);

  // google::protobuf::Closure: the handler is done.
  void Run() override;

  // ServedCall
  CallStream* stream() const override { return stream_.Get(); }
  const PeerIdentity* peer_identity() const override { return nullptr; }
  void WriteResponse() override;
  bool IsCanceled() const override;
  std::stop_token stop_token() override { return context_->stop_token(); }
  void NotifyOnCancel(google::protobuf::Closure* callback) override;

  ~LocalCall();

 private:
  template <class T, class... Args>
  friend RefPtr<T> flare::MakeRefCounted(Args&&... args);

  enum class State { kOpen, kAnswered, kCancelled, kContextStopped, kTooLate };

  // A unary call's answer.
  struct Reply {
    flare::Status status;
    std::unique_ptr<google::protobuf::Message> message;
    std::optional<Buffer> raw_bytes;  // In place of the message.
    CompositeCall::Reply rest;
  };

  LocalCall(Arguments* arguments, std::int64_t deadline_ns);

  static void MakeUnary(Arguments* arguments);
  static void MakeStreaming(Arguments* arguments);

  void Serve();
  // Once: the handler is done. False: it was before.
  bool TakeEnd();
  void End();
  flare::Status ReadSingleRequest();
  void FinishStream();
  bool Close(State state);
  State WaitForEnd(std::int64_t deadline_ns);
  // `response` is null if the caller wants bytes.
  void GiveReply(google::protobuf::Message* response, CompositeCall* outcome);
  void RunCallbacks();

  // CancelTarget
  void Cancel() override { Close(State::kCancelled); }

  const google::protobuf::MethodDescriptor* const method_;
  Handler handler_;
  Function<void()> on_handled_;
  std::shared_ptr<const google::protobuf::Message> request_;
  std::unique_ptr<google::protobuf::Message> response_;
  const RefPtr<fiber::ExecutionContext> context_;
  RpcServerController controller_;
  ServedStream stream_;
  fiber::Event ended_;  // The state isn't kOpen.
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;

  Spinlock lock_;
  State state_ FLARE_GUARDED_BY(lock_) = State::kOpen;
  Reply reply_ FLARE_GUARDED_BY(lock_);
  bool replied_ FLARE_GUARDED_BY(lock_) = false;
  bool handled_ FLARE_GUARDED_BY(lock_) = false;
  // NotifyOnCancel() leaves them here, until they are run.
  std::vector<google::protobuf::Closure*> callbacks_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_MOCK_LOCAL_CALL_H_

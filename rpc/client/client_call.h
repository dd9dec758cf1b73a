// One call from CallMethod to its completion, attempts and all. Pooled: a call
// takes no memory from the general allocator once things have warmed up.
//
// The invariants are at the top of client_call.cc.

#ifndef FLARE_RPC_CLIENT_CLIENT_CALL_H_
#define FLARE_RPC_CLIENT_CLIENT_CALL_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"
#include "flare/rpc/cancel_target.h"
#include "flare/rpc/client/call_counters.h"
#include "flare/rpc/client/context_stop.h"
#include "flare/rpc/client/pending_call.h"
#include "flare/rpc/client/route.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/rpc_client_controller.h"

namespace flare::rpc {

class ClientConnection;

class ClientCall final : private CancelTarget,
                         private PendingCall,
                         private fiber::Timer {
 public:
  struct Arguments {
    Route* route = nullptr;  // Null: the channel isn't open, see `refusal`.
    const flare::Status* refusal = nullptr;
    const google::protobuf::MethodDescriptor* method = nullptr;
    google::protobuf::RpcController* controller = nullptr;  // May be null.
    const google::protobuf::Message* request = nullptr;
    google::protobuf::Message* response = nullptr;
    google::protobuf::Closure* done = nullptr;  // Null: block until the end.
    // Goes to a server after this one (Route::Choice::peer), if there are more.
    std::uint32_t after = Route::kNoPeer;
    // Gets the number of the call's server: of a call with `done` the first
    // one, before Run() returns. Null: nobody asks.
    std::uint32_t* chosen = nullptr;
  };
  // Everything that CallMethod does.
  static void Run(const Arguments& arguments);

  // For the pool.
  ClientCall();
  ~ClientCall() = default;
  ClientCall(const ClientCall&) = delete;
  ClientCall& operator=(const ClientCall&) = delete;

 private:
  // For the context in which the call was made.
  struct CancelByContext {
    RpcClientController* controller;
    fiber::ExecutionContext* context;
    void operator()() const {
      // Its deadline is the call's, whose own timer says so.
      if (context->stop_cause() == fiber::StopCause::kDeadline &&
          context->deadline_ns() != 0) {
        return;
      }
      controller->StartCancel();
    }
  };

  enum class WaitEnd { kRoom, kEnded, kTimedOut };

  [[gnu::cold, gnu::noinline]] static void FailToBegin(
      const Arguments& arguments);
  void Begin(const Arguments& arguments, fiber::ExecutionContext* context);
  std::int64_t DefaultDeadline(std::int64_t now_ns) const;
  [[gnu::noinline]] void BeginIn(fiber::ExecutionContext* context);
  [[gnu::noinline]] void LeaveContext();
  flare::Status Serialize(const google::protobuf::Message* request);
  flare::Status CompressParts();
  CompressionAlgorithm compression() const {
    return static_cast<CompressionAlgorithm>(compression_);
  }
  void set_compression(CompressionAlgorithm algorithm) {
    static_assert(static_cast<int>(CompressionAlgorithm::kZlib) < 8);
    compression_ = static_cast<std::uint16_t>(algorithm) & 7U;
  }
  [[gnu::cold, gnu::noinline]] flare::Status CheckOptions();
  [[gnu::noinline]] flare::Status AddCredentials();

  // One attempt; between the two calls that block are in WaitForEnd().
  // FinishAttempt returns whether that was the last one. `request` is the
  // caller's, as long as the caller blocks; else null.
  void StartAttempt();
  [[nodiscard]] bool FinishAttempt(const google::protobuf::Message* request);
  bool WaitsForReady() const;
  [[gnu::cold, gnu::noinline]] void AbandonRequest();
  [[gnu::noinline]] void EndCounted();
  Route::Ending EndingOf(bool sent) const;
  std::int64_t Patience() const;
  void SendRequest();
  flare::Status WriteRequest(std::int64_t now_ns);
  [[gnu::cold, gnu::noinline]] flare::Status WriteWithRoom();
  WaitEnd WaitForRoom();
  // Ends the attempt unless something else has done so.
  [[gnu::cold, gnu::noinline]] void FailAttempt(Outcome outcome,
                                                flare::Status why);
  [[gnu::cold, gnu::noinline]] void FailTooLate();
  [[gnu::cold, gnu::noinline]] void FailRefused();
  [[gnu::cold, gnu::noinline]] void FailUnsent(flare::Status why);
  [[gnu::cold, gnu::noinline]] bool IsCancelled() const;
  // CancelTarget: of RpcClientController::StartCancel(), which keeps the
  // attempt from being put away meanwhile.
  void Cancel() override;
  static void OnTimer(fiber::Timer* timer);
  static void RunTask(fiber::Task* task);
  void GoOn();
  [[gnu::noinline]] void GoOnInContext();

  void Evaluate();
  void EvaluateOutcome();
  void SendOrFail();
  flare::Status TryToSerialize(const google::protobuf::Message* request);
  [[gnu::cold, gnu::noinline]] flare::Status TimeoutStatus() const;
  [[gnu::cold, gnu::noinline]] flare::Status TooLateStatus() const;
  std::string_view method_name() const { return controller_->NameOf(*method_); }
  [[gnu::cold, gnu::noinline]] flare::Status CancelledStatus() const;
  flare::Status ReadReply();
  [[gnu::cold, gnu::noinline]] flare::Status ReadFailure();
  flare::Status ReadAttachment();
  flare::Status ReadBody();
  flare::Status DecompressPart(CompressionAlgorithm algorithm, Buffer* part);
  [[nodiscard]] bool DecideRetry(const google::protobuf::Message* request);
  [[nodiscard, gnu::cold, gnu::noinline]] bool RestoreUnprocessed(
      const google::protobuf::Message* request);
  [[nodiscard, gnu::cold, gnu::noinline]] bool UseFailOver(int code);
  [[gnu::cold, gnu::noinline]] void KeepParts();
  [[gnu::cold, gnu::noinline]] void TakeBack(OutboundRequest* request);
  void KeepRoute() {
    route_->Ref();
    route_kept_ = true;
  }
  void End();
  [[gnu::noinline]] void HandOverInContext();
  void HandOver();
  void Recycle();

  // In the order of how often they are used, since calls that wait leave the
  // caches meanwhile (docs/decisions/0037-small-calls.md). Members of the call
  // are constant while it runs; those of the attempt are written by its issuer,
  // which starts it. The completer writes those of pending_call.h.
  // The issuer's, and then the owner's.
  bool timer_armed_ : 1 = false;
  bool attachment_compressed_ : 1 = false;
  // route_ is counted: only if there may be another attempt.
  bool route_kept_ : 1 = false;
  // body_ and attachment_ were moved into the request.
  bool parts_sent_ : 1 = false;
  // body_ and attachment_ are kept, though this may be the last attempt: the
  // connection isn't established, and another one may be needed.
  bool kept_ : 1 = false;
  bool turned_away_ : 1 = false;  // See TakeBack().
  // InboundResponse::unprocessed of the attempt's reply, and of an earlier one.
  bool unprocessed_ : 1 = false;
  bool was_unprocessed_ : 1 = false;
  bool one_way_ : 1 = false;
  // The reply with which the call fails can't be read.
  bool unreadable_ : 1 = false;
  // ... because of a limit of this client alone. Set with unreadable_.
  bool oversized_ : 1 = false;
  std::uint32_t id_ = 0;
  std::uint16_t attempts_left_ = 0;
  // The route's, which may be gone at the end.
  std::uint16_t counters_ : 10 = MethodCallCounters::kNone;
  PayloadFormat format_ : 3 = {};
  // A CompressionAlgorithm, which as a field of three bits would have a sign.
  std::uint16_t compression_ : 3 =
      static_cast<std::uint16_t>(CompressionAlgorithm::kNone);
  RpcClientController* controller_ = nullptr;
  google::protobuf::Message* response_ = nullptr;
  ClientConnection* connection_ = nullptr;
  Route::Choice choice_;  // The last attempt's.
  std::int64_t deadline_ns_ = 0;
  Route* route_ = nullptr;

  const google::protobuf::MethodDescriptor* method_ = nullptr;
  google::protobuf::RpcController* foreign_controller_ = nullptr;
  OutboundBody body_;  // Bytes if there may be another attempt.
  Buffer attachment_;

  // For calls with `done`: a counted reference to the caller's execution
  // context, in which `done` runs; null if there is none.
  fiber::ExecutionContext* context_ = nullptr;
  // Null outside of contexts, and for callers that don't want it.
  ContextStop<CancelByContext>* context_stop_ = nullptr;
  RpcClientController own_controller_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CLIENT_CALL_H_

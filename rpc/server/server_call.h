// One request, from its bytes to its reply: the task that serves it, the
// closure its service runs at the end, and all the memory it needs. Pooled: in
// steady state a call allocates nothing, unless its messages are large.
//
// Its steps: New() -> request() is cut -> Prepare() -> its task: parse, find
// the method, call it -> Run(), on any thread, then or later -> reply ->
// recycled.
//
// A call whose service waits leaves the caches meanwhile, so it is kept small:
// the request that it was cut into goes back to a pool of its own before the
// service is called, and members are in the order of how often they are used
// (docs/decisions/0037-small-calls.md).
#ifndef FLARE_RPC_SERVER_SERVER_CALL_H_
#define FLARE_RPC_SERVER_SERVER_CALL_H_

#include <google/protobuf/stubs/callback.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/intrusive_list.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/served_call.h"
#include "flare/rpc/server/call_messages.h"
#include "flare/rpc/server/method_table.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class CallStream;
class CallWatch;
class CallConnection;

class ServerCall final : public fiber::Task,
                         public ServedCall,
                         public google::protobuf::Closure,
                         private fiber::ExecutionContext::Owner,
                         public IntrusiveListNode<> {
 public:
  // From the pool, with a cleared request.
  static ServerCall* New();
  // Calls of the server with that state that count as running, the oldest one
  // first. Any of them may end meanwhile. Takes some microseconds for each call
  // of the process.
  static std::vector<AbandonedCall> Running(ServerState* state);

  // Back to the pool; for a call that wasn't prepared.
  void Recycle();

  // ... for one that was prepared, and won't be answered.
  void Abandon();

  // Until the service is called.
  InboundRequest* request() { return request_; }

  // Valid once the call is prepared.
  bool is_stream() const { return is_stream_; }
  // The request was cut off `connection` by `protocol`. The connection counts
  // the call, and so lives until it has finished.
  void Prepare(CallConnection* connection, ServerProtocol* protocol,
               std::int64_t received_ns);

  // The call holds that much memory, of its request and of a reply that waits:
  // counted for its connection until the end.
  void CountHeld(std::size_t bytes);

  // In place of the task: the server is overloaded. Doesn't block.
  void Refuse();

  // google::protobuf::Closure: the service is done. Last use of the call; a
  // second time dies with a message, if it can be noticed.
  void Run() override;

  // ServedCall
  CallStream* stream() const override { return stream_.Get(); }
  const PeerIdentity* peer_identity() const override;
  void WriteResponse() override { Respond(/*last=*/false); }
  bool IsCanceled() const override;
  std::stop_token stop_token() override { return context_->stop_token(); }
  void NotifyOnCancel(google::protobuf::Closure* callback) override;

  ServerCall();
  ~ServerCall() override;

 private:
  static constexpr char kOverloadedText[] = "Server overloaded.";

  class OwnHost;
  struct Glimpse;

  // Under the limits of the server.
  enum class Place : std::uint8_t {
    kNone,
    kTaken,    // Counted as running.
    kMetered,  // ... and its AdmissionControl must learn of the end.
  };

  // Named, as are those of other tasks: reports call fibers by it.
  static void RunTask(fiber::Task* self);
  void Serve();
  [[gnu::cold, gnu::noinline]] bool BeginAmongLeavers();
  bool PassGate();
  bool AskGate(CallGate* gate);
  bool AskAdmission(AdmissionControl* control, const CallGate::Call& asked);
  bool Begin();
  bool BeginRpc();
  [[gnu::cold, gnu::noinline]] void FailWithoutMemory();
  [[gnu::cold, gnu::noinline]] void GiveUp();
  [[gnu::cold, gnu::noinline]] void FinishUnanswered();
  const Method* FindMethod() const;
  [[gnu::noinline]] bool AdmitStream(const Method& method);
  [[gnu::noinline]] bool BeginStream();
  bool TakeStreamPlace();
  void LeaveStreamPlace();
  [[gnu::noinline]] void DropStream();
  void GiveMetadataToStream();
  [[gnu::noinline]] bool StreamReply();
  [[gnu::noinline]] void StopWithStream();
  [[gnu::noinline]] void FinishStream();
  bool WaitToBegin();
  bool WaitToUnpack();
  void ServeOwn();
  bool CallService(const Method& method);
  void ServeIntercepted();
  void CallAndWait();
  [[gnu::noinline]] void WaitForDone();
  [[gnu::cold, gnu::noinline]] bool ClaimForException(const Method& method);
  [[gnu::cold, gnu::noinline]] void RespondThrown(const Method& method);

  // Before a reply is made: while much output waits for the peer to take it,
  // or, for a second at most, many replies for an earlier one, blocks the
  // fiber. Doesn't block plain threads. False: it waited, and the connection is
  // closed.
  bool WaitToReply();
  [[gnu::noinline]] bool BlockToReply();
  // `patient`: for an earlier reply it waits as long as it takes, since that
  // can't depend on this call's fiber.
  bool BlockForTurn(bool patient);
  bool WaitForTurn(bool patient);

  bool ParseHead();
  [[gnu::cold, gnu::noinline]] void Reject(ParseResult result);
  flare::Status ParseBody();
  flare::Status ParseMessage(PayloadFormat format, Buffer* body);
  flare::Status ParseMuch(PayloadFormat format, Buffer* body,
                          std::size_t growth);
  void FailParsing(const flare::Status& why);
  flare::Status FillResponse(OutboundResponse* response);
  flare::Status FitToCaller(OutboundResponse* response);
  void CompressForCaller(OutboundResponse* response) const;
  void TakeMetadata(OutboundResponse* response);
  void JoinTrailers();
  // `last`: the call ends with it.
  void Respond(bool last);
  flare::Status TryToFill(OutboundResponse* response);
  int OverloadedCode() const;
  void Fail(const flare::Status& status, ServerState::Failure failure,
            FailureDetail detail = FailureDetail::kNone);
  void FailOverloaded(FailureDetail detail = FailureDetail::kNone);
  void FailStopping();
  void RefuseOwn(std::string_view text, ServerState::Failure failure);
  void FailUnknown();
  void LeaveLimits(std::size_t worker);
  [[gnu::noinline]] void LeaveMetered(std::size_t worker);
  [[gnu::noinline]] void StopMetering();
  const Method* MeteredMethod() const;
  [[gnu::noinline]] void LeaveAdmission();
  void CountReply();
  void CountReply(std::size_t bytes);
  void ReleaseMessages();
  void Finish();
  [[gnu::cold, gnu::noinline]] void FinishThrown();
  [[gnu::noinline]] void RunOtherwise(std::uint8_t before);

  // fiber::ExecutionContext::Owner
  fiber::StopCause OnWatched() override;
  static std::string Describe(const Owner* owner);
  static std::optional<Glimpse> Look(const ServerCall* call);
  [[gnu::cold, gnu::noinline]] void EndWatch();
  [[gnu::cold, gnu::noinline]] void DropContext();
  void GiveBack();
  void OpenContext() {
    if (context_ == nullptr) [[unlikely]] {
      context_ = fiber::ExecutionContext::Create(0, this);
    }
    context_->set_deadline_ns(controller_.deadline_ns_);
  }

  // The part of the request that the reply needs.
  const ReplyTicket& ticket() const {
    return request_ != nullptr ? request_->ticket : ticket_;
  }
  void ReleaseRequest();

  CallConnection* connection_ = nullptr;  // While the call is open.
  ServerProtocol* protocol_ = nullptr;
  const Method* method_ = nullptr;
  InboundRequest* request_ = nullptr;  // Pooled; see request().
  Place place_ = Place::kNone;
  bool responded_ = false;
  std::atomic<std::uint8_t> progress_{0};  // See server_call.cc.
  bool is_stream_ = false;
  bool counted_as_stream_ = false;  // By the connection.
  bool has_stream_place_ = false;   // Under the server's limit.
  RefPtr<CallStream> stream_;       // Set for a streaming call that has begun.

  // From the request's head.
  PayloadFormat format_ = PayloadFormat::kProtobuf;
  CompressionAlgorithm unasked_compression_ = CompressionAlgorithm::kNone;

  ReplyTicket ticket_;          // While there is no request; see ticket().
  std::size_t held_bytes_ = 0;  // See CountHeld().
  // Sizes of the payloads that the messages were parsed from and serialized to.
  std::size_t request_bytes_ = 0;
  std::size_t decompressed_bytes_ = 0;  // Counted by the server.
  static constexpr std::size_t kUnknown = static_cast<std::size_t>(-1);
  std::size_t response_bytes_ = kUnknown;
  // The handler's context. Kept from call to call while nobody else uses it.
  RefPtr<fiber::ExecutionContext> context_;
  CallWatch* watch_ = nullptr;  // Null unless the context was watched.
  // Set for a call with interceptors whose method hasn't run `done`.
  fiber::Event* done_event_ = nullptr;
  CallMessages messages_;
  RpcServerController controller_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_SERVER_CALL_H_

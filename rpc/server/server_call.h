// One request, from its bytes to its reply: the task that serves it, the
// closure its service runs at the end, and all the memory it needs. Pooled: in
// steady state a call allocates nothing, unless its messages are large.
//
// Its steps: New() -> request() is cut -> Prepare() -> its task: parse, find
// the method, call it -> Run(), on any thread, then or later -> reply ->
// recycled.
//
// It puts together objects that each know one side of a call: its places under
// the server's limits (CallAdmission), its messages (CallMessages), its stream
// (ServedStream), the context of its method (CallContext), and its end
// (CallCompletion). None of these knows the call.
//
// A call whose service waits leaves the caches meanwhile, so it is kept small:
// the request that it was cut into goes back to a pool of its own before the
// service is called, and members are in the order of how often they are used
// (docs/decisions/0037-small-calls.md).
#ifndef FLARE_RPC_SERVER_SERVER_CALL_H_
#define FLARE_RPC_SERVER_SERVER_CALL_H_

#include <google/protobuf/stubs/callback.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/status.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/served_call.h"
#include "flare/rpc/server/call_admission.h"
#include "flare/rpc/server/call_completion.h"
#include "flare/rpc/server/call_context.h"
#include "flare/rpc/server/call_messages.h"
#include "flare/rpc/server/method_table.h"
#include "flare/rpc/server/own_call.h"
#include "flare/rpc/server/served_stream.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class CallConnection;
class CallStream;

class ServerCall final : public fiber::Task,
                         public ServedCall,
                         public google::protobuf::Closure,
                         public fiber::ExecutionContext::Owner,
                         public IntrusiveListNode<> {
 public:
  // From the pool, with a cleared request.
  static ServerCall* New();

  // Back to the pool; for a call that wasn't prepared.
  void Recycle();

  // ... for one that was prepared, and won't be answered.
  void Abandon();

  // Until the service is called.
  InboundRequest* request() { return request_; }

  // Valid once the call is prepared.
  bool is_stream() const { return stream_.expected(); }
  // The request was cut off `connection` by `protocol`. The connection counts
  // the call, and so lives until it has finished.
  void Prepare(CallConnection* connection, ServerProtocol* protocol,
               std::int64_t received_ns);

  // CallAdmission::Hold().
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
  std::stop_token stop_token() override { return context_.Get()->stop_token(); }
  void NotifyOnCancel(google::protobuf::Closure* callback) override;

  // --- For those who look at the calls of others (running_calls.cc) ---

  // All calls of the process, those in their pool included. Each may end, and
  // its memory go, at any time. Any thread; blocks for a short lock.
  static std::vector<const ServerCall*> All();

  // The facts of a call, as a copy of its bytes has them. They may contradict
  // each other, and their pointers be old.
  struct Sight {
    const CallConnection* connection;
    const ServerProtocol* protocol;
    const Method* method;  // Null: none is known.
    const Endpoint* peer;
    std::int64_t received_ns;
    bool counts;  // As running.
  };
  // Nothing if it isn't under way.
  std::optional<Sight> sight() const;

  ServerCall();
  ~ServerCall() override;

 private:
  static constexpr char kOverloadedText[] = "Server overloaded.";

  // --- The task: begin, call the method ---

  // Named, as are those of other tasks: reports call fibers by it.
  static void RunTask(fiber::Task* self);
  void Serve();
  bool Begin();
  [[gnu::cold, gnu::noinline]] bool BeginAmongLeavers();
  bool PassGate();
  [[gnu::noinline]] bool AskToBegin();
  bool ParseHead();
  [[gnu::cold, gnu::noinline]] void Reject(ParseResult result);
  bool BeginRpc();
  [[gnu::noinline]] bool BeginGeneric(std::int64_t waited_ns);
  bool EnterMethod(const Method* method, std::int64_t waited_ns);
  void OpenContext(const RequestHead& head);
  OwnCall MakeOwnCall();
  void ServeOwn();
  bool CallService(const Method& method);
  void ServeIntercepted();
  void CallAndWait();
  [[gnu::cold, gnu::noinline]] bool ClaimForException(const Method& method);

  // --- The request's message, or stream of messages ---

  flare::Status ParseBody();
  flare::Status UnpackBody();
  [[gnu::noinline]] flare::Status Decompress();
  flare::Status ParseMessage(PayloadFormat format, Buffer* body);
  [[gnu::noinline]] flare::Status ParseMuch(PayloadFormat format, Buffer* body,
                                            std::size_t growth);
  void FailParsing(const flare::Status& why);
  [[gnu::noinline]] bool AdmitStream(const Method& method);
  bool TakeStreamPlace();
  [[gnu::noinline]] bool BeginStream();
  [[gnu::noinline]] bool StreamReply();
  void GiveMetadataToStream();

  // --- Waiting for the peer ---

  bool WaitToBegin();
  bool WaitToUnpack();
  // Before a reply is made: while much output waits for the peer to take it,
  // or, for a second at most, many replies for an earlier one, blocks the
  // fiber. Doesn't block plain threads. False: it waited, and the connection is
  // closed.
  bool WaitToReply();
  [[gnu::noinline]] bool BlockToReply();

  // --- The reply ---

  // `last`: the call ends with it.
  void Respond(bool last);
  [[gnu::cold, gnu::noinline]] void NoteFailure(const flare::Status& why);
  template <class Send>
  void SendOrClose(Send&& send);
  flare::Status TryToFill(bool last, OutboundResponse* response);
  flare::Status FillResponse(bool last, OutboundResponse* response);
  [[gnu::noinline]] flare::Status CompressResponse(OutboundResponse* response);
  [[gnu::noinline]] void FinishStream();
  bool TryToWrite();
  [[gnu::cold, gnu::noinline]] void RespondThrown(const Method& method);

  // --- Failures ---

  void Fail(const flare::Status& status, ServerState::Failure failure,
            FailureDetail detail = FailureDetail::kNone);
  void FailOverloaded(FailureDetail detail = FailureDetail::kNone);
  void FailStopping();
  void FailUnknown();
  [[gnu::cold, gnu::noinline]] void FailWithoutMemory();
  void RefuseOwn(std::string_view text, ServerState::Failure failure);
  [[gnu::cold, gnu::noinline]] void GiveUp();
  [[gnu::cold, gnu::noinline]] void FinishUnanswered();
  int OverloadedCode() const;

  // --- The end ---

  void LeaveLimits(std::size_t worker);
  void Finish();
  [[gnu::noinline]] void DropStream();
  [[gnu::cold, gnu::noinline]] void EndWatch();
  [[gnu::cold, gnu::noinline]] void FinishThrown();
  void ReleaseMessages();
  void ReleaseRequest();
  void GiveBack();

  // fiber::ExecutionContext::Owner
  fiber::StopCause OnWatched() override;

  // The part of the request that the reply needs.
  const ReplyTicket& ticket() const {
    return request_ != nullptr ? request_->ticket : ticket_;
  }

  CallConnection* connection_ = nullptr;  // While the call is open.
  ServerProtocol* protocol_ = nullptr;
  InboundRequest* request_ = nullptr;  // Pooled; see request().
  [[no_unique_address]] CallAdmission admission_;
  bool responded_ = false;
  // From the request's head.
  PayloadFormat format_ = PayloadFormat::kProtobuf;
  CompressionAlgorithm unasked_compression_ = CompressionAlgorithm::kNone;
  [[no_unique_address]] CallCompletion completion_;
  [[no_unique_address]] ServedStream stream_;

  ReplyTicket ticket_;  // While there is no request; see ticket().
  // Sizes of the payloads that the messages were parsed from and serialized to.
  std::size_t request_bytes_ = 0;
  static constexpr std::size_t kUnknown = static_cast<std::size_t>(-1);
  std::size_t response_bytes_ = kUnknown;
  CallContext context_;
  CallMessages messages_;
  RpcServerController controller_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_SERVER_CALL_H_

#include "flare/rpc/server/server_call.h"

#include <chrono>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/object_pool.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/server/handler_exception.h"
#include "flare/rpc/server/http_pieces.h"
#include "flare/rpc/server/reply_turn_event.h"
#include "flare/rpc/server/server_connection.h"
#include "glog/logging.h"

namespace flare::rpc {

// There is one for each call that is under way
// (docs/decisions/0037-small-calls.md).
static_assert(sizeof(ServerCall) <= 640);

namespace {

using Failure = ServerState::Failure;
using fiber::ExecutionContext;
using fiber::ExecutionContextScope;

constexpr char kOverloadedText[] = "Server overloaded.";

// How long a call waits for the replies before its own to be made, at most.
// They may depend on its fiber: on what that holds, or is to do next.
constexpr std::chrono::seconds kMaxTurnDelay(1);

}  // namespace

ServerCall::ServerCall() { run = &ServerCall::RunTask; }

void ServerCall::RunTask(fiber::Task* self) {
  static_cast<ServerCall*>(self)->Serve();
}

ServerCall* ServerCall::New() {
  ServerCall* const call = ObjectPool<ServerCall>::Get();
  call->request_ = ObjectPool<InboundRequest>::Get();
  return call;
}

void ServerCall::ReleaseRequest() {
  if (request_ == nullptr) return;
  request_->Clear();
  ObjectPool<InboundRequest>::Put(std::exchange(request_, nullptr));
}

void ServerCall::Recycle() {
  ReleaseRequest();
  ObjectPool<ServerCall>::Put(this);
}

void ServerCall::Prepare(ServerConnection* connection, ServerProtocol* protocol,
                         std::int64_t received_ns) {
  connection_ = connection;
  protocol_ = protocol;
  method_ = nullptr;
  admitted_ = true;
  responded_ = false;
  controller_.call_ = this;
  controller_.received_ns_ = received_ns;
  controller_.remote_peer_ = &connection->peer();
}

void ServerCall::CountHeld(std::size_t bytes) {
  connection_->CountHeld(std::exchange(held_bytes_, bytes), bytes);
}

// The task. Without memory the call fails if its message took too much, else
// its connection ends. What a service throws isn't caught: it may have run
// `done`, and the call is gone.
void ServerCall::Serve() {
  bool lacks_memory = false;
  try {
    if (!Begin()) return;
  } catch (const std::bad_alloc&) {
    lacks_memory = true;  // A fiber mustn't be suspended in here.
  }
  if (lacks_memory) [[unlikely]]
    return FailWithoutMemory();
  const Method& method = *method_;
  if (context_ != nullptr) [[unlikely]] {
    CallServiceInContext(method);
  } else {
    CallService(method);
  }
  // Run() may have been called: nothing of this call is valid any more.
}

void ServerCall::FailWithoutMemory() {
  if (method_ == nullptr) return GiveUp();
  // As a message it is too large. The part that there is isn't kept.
  request_bytes_ = std::numeric_limits<std::size_t>::max();
  bool failed = false;
  try {
    FailOverloaded();
    failed = true;
  } catch (const std::bad_alloc&) {
  }
  if (!failed) GiveUp();
}

void ServerCall::GiveUp() {
  connection_->state().CountFailure(connection_->group(), Failure::kOther);
  if (method_ != nullptr) {
    method_->counters.Refuse(fiber::GetCurrentWorkerIndex(),
                             /*overloaded=*/false);
  }
  connection_->CloseOutOfMemory();
  protocol_->GiveUp();
  Finish();
}

// The connection is closed. Replies that wait for this one's turn must be told
// that it won't come.
void ServerCall::FinishUnanswered() {
  protocol_->GiveUp();
  Finish();
}

// False: the call is over, or an HTTP handler has had it. True: a method is to
// be called.
[[gnu::always_inline]] inline bool ServerCall::Begin() {
  controller_.dispatched_ns_ = NowNs();
  if (!ParseHead()) {
    Finish();
    return false;
  }
  if (!PassGate()) return false;
  if (!connection_->HasOutputRoom() && !WaitToBegin()) [[unlikely]] {
    return FinishUnanswered(), false;
  }
  if (!request_->is_http) return BeginRpc();
  ServeHttp();
  return false;
}

// False: the call was refused.
[[gnu::always_inline]] inline bool ServerCall::PassGate() {
  CallGate& gate = connection_->state().gate(connection_->group());
  if (gate.IsOpen(controller_.dispatched_ns_ - controller_.received_ns_))
      [[likely]] {
    return true;
  }
  return AskGate(&gate);
}

// Not inlined: of calls that have waited.
[[gnu::noinline]] bool ServerCall::AskGate(CallGate* gate) {
  CallGate::Call call;
  call.now_ns = controller_.dispatched_ns_;
  call.waited_ns = call.now_ns - controller_.received_ns_;
  if (!request_->is_http) {
    call.timeout_ns = std::int64_t{request_->head.timeout_ms} * kNsPerMs;
    const Method* const method = FindMethod();
    if (method != nullptr) {
      call.usual_ns = method->counters.usual_ns();
      call.limited = method->limits_wait();
    }
    // What is too late is refused as such.
    if (call.timeout_ns != 0 && call.waited_ns > call.timeout_ns) return true;
  }
  switch (gate->Ask(call)) {
    case CallGate::Verdict::kBegin:
      return true;
    case CallGate::Verdict::kOverloaded:
      FailOverloaded();
      return false;
    case CallGate::Verdict::kStopping:
      FailStopping();
      return false;
  }
  return true;
}

void ServerCall::Refuse() {
  admitted_ = false;
  try {
    if (ParseHead()) return FailOverloaded();
  } catch (const std::bad_alloc&) {
    return GiveUp();  // Which waits for nobody: the call has no context.
  }
  Finish();
}

void ServerCall::Abandon() {
  if (held_bytes_ != 0) CountHeld(0);
  controller_.Reset();
  admitted_ = false;
  connection_ = nullptr;
  Recycle();
}

// False: the request was dealt with, because it is malformed.
bool ServerCall::ParseHead() {
  const ParseResult result = protocol_->Parse(request_);
  if (result == ParseResult::kOk) [[likely]]
    return true;
  connection_->state().CountFailure(connection_->group(), Failure::kMalformed);
  if (result == ParseResult::kReject) {
    protocol_->WriteRejection(*request_);
  } else {
    connection_->CloseMalformed(request_->reject_reason);
  }
  return false;
}

[[gnu::always_inline]] inline bool ServerCall::BeginRpc() {
  const RequestHead& head = request_->head;
  if (IsCompressed(head.compression)) {
    if (!WaitToUnpack()) return FinishUnanswered(), false;
    if (!connection_->state().MayDecompress()) return FailOverloaded(), false;
  }
  const std::int64_t waited_ns =
      controller_.dispatched_ns_ - controller_.received_ns_;
  if (head.timeout_ms != 0) {
    const std::int64_t timeout_ns = std::int64_t{head.timeout_ms} * kNsPerMs;
    if (waited_ns > timeout_ns) {
      return FailOverloaded(FailureDetail::kExpired), false;
    }
    controller_.deadline_ns_ = controller_.received_ns_ + timeout_ns;
  }

  const Method* const method = FindMethod();
  if (method == nullptr) return FailUnknown(), false;
  if (method->streaming()) [[unlikely]]
    return RefuseStreaming(*method), false;
  if (waited_ns > method->max_wait_ns || !method->TryEnter()) {
    return FailOverloaded(), false;
  }
  method_ = method;
  method->counters.Begin(fiber::GetCurrentWorkerIndex());

  if (flare::Status parsed = ParseBody(); !parsed.ok()) {
    return Fail(parsed, Failure::kMalformed), false;
  }
  controller_.parsed_ns_ = NowNs();
  format_ = head.format;
  unasked_compression_ = head.unasked_compression;
  // Some replies repeat what only the request has.
  if (!head.reply_needs_request) {
    ticket_ = request_->ticket;
    ReleaseRequest();
  }
  if (ExecutionContext::AnyLocals()) [[unlikely]]
    context_ = ExecutionContext::Create();
  return true;
}

void ServerCall::RefuseStreaming(const Method& method) {
  Fail(flare::Status(STATUS_MALFORMED_DATA,
                     "Method [" + std::string(method.name()) +
                         "] is a streaming method: it can't be "
                         "called with a single message."),
       Failure::kMalformed);
}

// The one that the request is for; null if the server doesn't have it.
[[gnu::always_inline]] inline const Method* ServerCall::FindMethod() const {
  const RequestHead& head = request_->head;
  const Method* const method = connection_->FindMethod(head.method);
  if (method != nullptr || !head.short_service) [[likely]]
    return method;
  return connection_->state().methods.FindByShortName(head.method);
}

void ServerCall::CallService(const Method& method) {
  method.service->CallMethod(method.descriptor, &controller_,
                             messages_.request(), messages_.response(), this);
}

// Not inlined, as what others don't use would make their frames larger. The
// scope has a reference of its own: the call may end, and the method go on.
void ServerCall::CallServiceInContext(const Method& method) {
  const ExecutionContextScope scope(context_);
  CallService(method);
}

// While the peer takes no replies: what waits is the request, which is mostly
// smaller than its reply. False: the connection is closed. Not inlined: of few
// calls.
[[gnu::noinline]] bool ServerCall::WaitToBegin() {
  if (!connection_->WaitForRoom()) return false;
  controller_.dispatched_ns_ = NowNs();
  return true;
}

// Before a request is decompressed, which may make it a thousand times as
// large: waits while the connection has no room for replies, so that what waits
// does so in its small form. False: the connection is closed. Not inlined: of
// few calls.
[[gnu::noinline]] bool ServerCall::WaitToUnpack() {
  if (!WaitToReply()) return false;
  controller_.dispatched_ns_ = NowNs();
  return true;
}

void ServerCall::ServeHttp() {
  const ServerState& state = connection_->state();
  HttpServerContext context;
  context.remote_peer = connection_->peer();
  context.received_at = ToTimePoint(controller_.received_ns_);
  context.dispatched_at = ToTimePoint(controller_.dispatched_ns_);

  HttpPieces pieces(connection_, protocol_, request_, &http_response_);
  context.body = &pieces;

  const HttpRequest& request = request_->http;
  if (ticket().As<HttpTicket>().preflight) [[unlikely]] {
    state.cors().AnswerPreflight(request, &http_response_);
  } else if (HttpHandler* handler = state.routes.Find(request.path())) {
    CallHandler(handler, &pieces, &context);
  } else {
    FillHttpError(HttpStatus::NotFound,
                  "There is nothing at " + std::string(request.path()) + ".",
                  &http_response_);
  }
  if (IsFailure(http_response_.status()) && !pieces.begun()) {
    connection_->state().CountFailure(connection_->group(), Failure::kOther);
  }
  // Not admitted: Refuse() serves exempt paths (HttpRoutes::IsExempt) in the
  // reader, which must not wait, or the whole connection would.
  if (admitted_) WaitToReply();
  LeaveLimits(fiber::GetCurrentWorkerIndex());
  if (pieces.begun()) {
    pieces.End();
  } else {
    protocol_->WriteHttp(ticket(), std::move(http_response_));
  }
  Finish();
}

void ServerCall::CallHandler(HttpHandler* handler, HttpPieces* pieces,
                             HttpServerContext* context) {
  try {
    if (ExecutionContext::AnyLocals()) [[unlikely]] {
      HandleInContext(handler, context);
    } else {
      handler->HandleRequest(request_->http, &http_response_, context);
    }
  } catch (...) {
    TakeHandlerException("the HTTP handler of " +
                         std::string(request_->http.path()));
    if (pieces->begun()) {
      connection_->state().CountFailure(connection_->group(), Failure::kOther);
      return pieces->Abort();  // Or what was sent would be taken for all of it.
    }
    FillHttpError(HttpStatus::InternalServerError, "The handler has failed.",
                  &http_response_);
  }
}

// Not inlined: as above.
void ServerCall::HandleInContext(HttpHandler* handler,
                                 HttpServerContext* context) {
  context_ = ExecutionContext::Create();
  const ExecutionContextScope scope(context_);
  handler->HandleRequest(request_->http, &http_response_, context);
}

bool ServerCall::WaitToReply() {
  return connection_->HasRoom() || BlockToReply();
}

// Where many have replies ready they are made in the order in which they leave,
// if there is one: those made before their turn would only lie there.
bool ServerCall::BlockToReply() {
  CountReply();
  if (!fiber::IsFiberWorker()) return true;
  connection_->state().CloseGreedy();  // Before others make theirs.
  if (!connection_->WaitForRoom()) return false;
  while (connection_->MuchHeld()) {
    ReplyTurnEvent turn;
    if (protocol_->AskToReply(ticket(), &turn) != ReplyTurn::kLater) break;
    // A handler of HTTP has returned: nobody depends on it.
    const bool is_http = request_ != nullptr && request_->is_http;
    if (!is_http && !turn.WaitFor(kMaxTurnDelay) &&
        protocol_->StopWaitingToReply(ticket())) {
      break;
    }
    turn.Wait();
  }
  return connection_->WaitForRoom();
}

void ServerCall::FailUnknown() {
  const std::string_view name = request_->head.method;
  Fail(MethodTable::ExplainMissing(name), Failure::kUnknown,
       connection_->state().methods.HasServiceOf(name)
           ? FailureDetail::kNone
           : FailureDetail::kNoService);
}

int ServerCall::OverloadedCode() const {
  return protocol_->traits().translates_codes
             ? STATUS_OVERLOADED
             : connection_->state().options().status_code_for_overloaded;
}

void ServerCall::FailOverloaded(FailureDetail detail) {
  if (!request_->is_http) {
    return Fail(flare::Status(OverloadedCode(), kOverloadedText),
                Failure::kOverloaded, detail);
  }
  if (!TryServeExemptPage()) FailHttp(Failure::kOverloaded, kOverloadedText);
}

void ServerCall::FailStopping() {
  constexpr char kText[] = "Server is stopping.";
  if (!request_->is_http) {
    return Fail(flare::Status(STATUS_OUT_OF_SERVICE, kText), Failure::kOther,
                FailureDetail::kStopping);
  }
  if (!TryServeExemptPage()) FailHttp(Failure::kOther, kText);
}

// False: it is not for one of the paths for which limits don't hold.
bool ServerCall::TryServeExemptPage() {
  if (!connection_->state().routes.IsExempt(request_->http.path())) {
    return false;
  }
  controller_.dispatched_ns_ = NowNs();
  ServeHttp();
  return true;
}

// Answers 503 in place of a handler.
void ServerCall::FailHttp(Failure failure, std::string text) {
  connection_->state().CountFailure(connection_->group(), failure);
  FillHttpError(HttpStatus::ServiceUnavailable, std::move(text),
                &http_response_);
  protocol_->WriteHttp(ticket(), std::move(http_response_));
  Finish();
}

// Answers with an error of our own, without a body.
void ServerCall::Fail(const flare::Status& status, Failure failure,
                      FailureDetail detail) {
  connection_->state().CountFailure(connection_->group(), failure);
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  if (const Method* method = method_ != nullptr ? method_ : FindMethod()) {
    if (method_ == nullptr) method->counters.Begin(worker);
    method->counters.Refuse(worker, failure == Failure::kOverloaded);
  }
  OutboundResponse response;
  response.detail = detail;
  response.status = status.code();
  response.description = status.message();
  LeaveLimits(worker);
  protocol_->Write(ticket(), std::move(response));
  Finish();
}

void ServerCall::Run() {
  // Not noticed if the next call has taken this one's place in memory: then
  // that is ended.
  CHECK(connection_ != nullptr)
      << "done->Run() was called twice, or after its call had ended: a service "
         "runs it exactly once for each call.";
  Respond(/*last=*/true);
  Finish();
}

void ServerCall::Respond(bool last) {
  if (std::exchange(responded_, true)) return;
  try {
    WaitToReply();
  } catch (const std::bad_alloc&) {  // It is made out of turn.
  }
  OutboundResponse response;
  if (flare::Status status = TryToFill(&response); !status.ok()) {
    controller_.error_code_ = status.code();
    try {
      controller_.error_text_ = status.message();
    } catch (const std::bad_alloc&) {  // The code has to do.
    }
    response = OutboundResponse();
  }
  response.status = controller_.error_code_;
  if (response.status != STATUS_SUCCESS) {
    response.description = controller_.error_text_;
    connection_->state().CountFailure(connection_->group(), Failure::kOther);
  }
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  method_->counters.End(worker, response.status != STATUS_SUCCESS,
                        controller_.received_ns_, controller_.dispatched_ns_);
  if (last) LeaveLimits(worker);
  try {
    protocol_->Write(ticket(), std::move(response));
  } catch (const std::bad_alloc&) {
    connection_->CloseOutOfMemory();
    protocol_->GiveUp();
  }
}

// Fails the call if there is no memory for its reply: `done` is run by the
// service, which doesn't expect exceptions of it.
[[gnu::always_inline]] inline flare::Status ServerCall::TryToFill(
    OutboundResponse* response) {
  try {
    return FillResponse(response);
  } catch (const std::bad_alloc&) {
    return flare::Status(OverloadedCode());
  }
}

// Gives back its place under the limits. Before the reply is sent: whoever has
// got it may send the next call at once.
void ServerCall::LeaveLimits(std::size_t worker) {
  if (!std::exchange(admitted_, false)) return;
  if (method_ != nullptr) std::exchange(method_, nullptr)->Leave();
  connection_->state().CallFinished(worker);
  if (decompressed_bytes_ != 0) [[unlikely]] {
    connection_->state().RemoveDecompressed(
        std::exchange(decompressed_bytes_, 0));
  }
}

void ServerCall::Finish() {
  if (held_bytes_ != 0) [[unlikely]]
    CountHeld(0);
  if (admitted_) LeaveLimits(fiber::GetCurrentWorkerIndex());
  if (context_ != nullptr) [[unlikely]]
    context_.Reset();  // May block, in destructors of values.
  ReleaseMessages();
  if (request_ != nullptr && request_->is_http) http_response_.clear();
  controller_.Reset();
  ServerConnection* const connection = std::exchange(connection_, nullptr);
  Recycle();
  connection->CallFinished();
}

}  // namespace flare::rpc

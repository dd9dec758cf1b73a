// The end of a call. Two leave it, in any order: the task that calls the
// service, and `done` (Run()). Their progress is in one word, progress_:
//
//   kReturned  the service's method has returned, or wasn't called
//   kEnded     somebody has claimed the end: by `done`, or as the method threw
//   kThrown    ... the latter
//   kOver      all of the call is released but its memory
//   kWatched   somebody watches its context
//
// A call with interceptors ends when these have returned. For it kEnded means
// that `done` was run, or the method threw, and there are three more:
//
//   kIntercepted  there are interceptors
//   kWaiting      the task waits in done_event_ for kEnded
//   kSealed       the interceptors have returned: the task has claimed the end
//
// [CE1] Only the thread that sets kEnded answers the call and releases it. An
//       exception that leaves the method sets it, too: the call fails if that
//       was first; if `done` was, the exception is only logged. A watcher of
//       the context that finds it set begins nothing; one that comes before it
//       is ended with the call (call_watch.cc [CW1]). With interceptors all
//       this goes for kSealed; `done` only lets their fiber go on.
// [CE2] The second of kReturned and kOver to be set gives the call back. So
//       call and context last as long as the method.
// [CE3] A call whose method threw before `done` isn't given back soon: the code
//       that the method has passed `done` on to may still use it, and run it,
//       which has no effect then (ThrownCalls).
// [CE4] The context is kept for the next call if the call has the only
//       reference, and nobody has stored anything in it, watched or stopped it.
//       Otherwise the call disowns it, when it ends (if it was watched) or is
//       given back, before it is used again.
#include "flare/rpc/server/server_call.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "flare/base/backtrace.h"
#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/endpoint.h"
#include "flare/base/object_pool.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/own_request.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/call_watch.h"
#include "flare/rpc/server/handler_exception.h"
#include "flare/rpc/server/interceptor_chain.h"
#include "flare/rpc/server/reply_turn_event.h"
#include "flare/rpc/stream/call_stream.h"
#include "glog/logging.h"

namespace flare::rpc {

// There is one for each call that is under way
// (docs/decisions/0037-small-calls.md).
static_assert(sizeof(ServerCall) <= 680);

namespace {

using Failure = ServerState::Failure;
using fiber::BorrowedExecutionContextScope;
using fiber::StopCause;

constexpr std::uint8_t kReturned = 1;
constexpr std::uint8_t kEnded = 2;
constexpr std::uint8_t kThrown = 4;
constexpr std::uint8_t kOver = 8;
constexpr std::uint8_t kWatched = 16;
constexpr std::uint8_t kIntercepted = 32;
constexpr std::uint8_t kWaiting = 64;
constexpr std::uint8_t kSealed = 128;

// Why a call stops whose stream has failed.
StopCause CauseOf(const flare::Status& why) {
  switch (why.code()) {
    case STATUS_TIMEOUT:
      return StopCause::kDeadline;
    case STATUS_IO_ERROR:
      return StopCause::kCallerGone;
    default:
      return StopCause::kCancelled;
  }
}

// How long a call waits for the replies before its own to be made, at most.
// They may depend on its fiber: on its locks, or its next step.
constexpr std::chrono::seconds kMaxTurnDelay(1);

// The latest calls whose methods threw before `done` [CE3]: the last one, and
// as many as their messages leave room for, which are as large as callers like.
class ThrownCalls {
 public:
  // Keeps `call`, whose messages take `bytes`. Returns one to be given back, or
  // null; TakeExcess() is due.
  ServerCall* Add(ServerCall* call, std::size_t bytes) {
    ScopedLock guard(lock_);
    ServerCall* const oldest = count_ == kMost ? TakeOldest() : nullptr;
    calls_[(first_ + count_++) % kMost] = {call, bytes};
    bytes_ += bytes;
    return oldest;
  }

  // Returns another one to be given back, until it is null.
  ServerCall* TakeExcess() {
    ScopedLock guard(lock_);
    return count_ > 1 && bytes_ > kMostBytes ? TakeOldest() : nullptr;
  }

 private:
  static constexpr std::size_t kMost = 64;
  static constexpr std::size_t kMostBytes = 16 << 20;

  struct Kept {
    ServerCall* call;
    std::size_t bytes;
  };

  ServerCall* TakeOldest() FLARE_REQUIRES(lock_) {
    const Kept oldest = calls_[first_];
    first_ = (first_ + 1) % kMost;
    --count_;
    bytes_ -= oldest.bytes;
    return oldest.call;
  }

  Spinlock lock_;
  std::size_t first_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t count_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t bytes_ FLARE_GUARDED_BY(lock_) = 0;
  Kept calls_[kMost] FLARE_GUARDED_BY(lock_) = {};
};
constinit ThrownCalls thrown_calls;

}  // namespace

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

void ServerCall::Recycle() { GiveBack(); }

void ServerCall::DropContext() {
  context_->Disown();  // [CE4]
  context_.Reset();    // May block, in destructors of values.
}

[[gnu::always_inline]] inline void ServerCall::GiveBack() {
  if (request_ != nullptr) [[unlikely]]
    ReleaseRequest();
  if (context_ != nullptr && !context_->IsAsNew()) [[unlikely]]
    DropContext();
  ObjectPool<ServerCall>::Put(this);
}

void ServerCall::Prepare(CallConnection* connection, ServerProtocol* protocol,
                         std::int64_t received_ns) {
  connection_ = connection;
  protocol_ = protocol;
  method_ = nullptr;
  place_ = Place::kTaken;
  responded_ = false;
  // relaxed: the worker that runs the task has got the call through its queue.
  progress_.store(kReturned, std::memory_order_relaxed);
  is_stream_ = counted_as_stream_ = request_->stream != nullptr;
  controller_.call_ = this;
  controller_.received_ns_ = received_ns;
  controller_.remote_peer_ = &connection->peer();
}

const PeerIdentity* ServerCall::peer_identity() const {
  return connection_ == nullptr ? nullptr : connection_->peer_identity();
}

void ServerCall::CountHeld(std::size_t bytes) {
  connection_->CountHeld(std::exchange(held_bytes_, bytes), bytes);
}

// The task. Without memory the call fails if its message took too much, else
// its connection ends.
void ServerCall::Serve() {
  bool lacks_memory = false;
  try {
    if (!Begin()) return;
  } catch (const std::bad_alloc&) {
    lacks_memory = true;  // A fiber mustn't be suspended in here.
  }
  if (lacks_memory) [[unlikely]]
    return FailWithoutMemory();
  if (method_->interceptors != nullptr) [[unlikely]]
    return ServeIntercepted();
  if (!CallService(*method_)) [[unlikely]]
    return;
  // acquire: pairs with the release in Finish [CE2].
  std::uint8_t progress = progress_.load(std::memory_order_acquire);
  if ((progress & kOver) == 0) {
    // acq_rel: pairs with Finish [CE2], on both sides.
    progress = progress_.fetch_or(kReturned, std::memory_order_acq_rel);
  }
  if ((progress & kOver) != 0) GiveBack();
}

void ServerCall::FailWithoutMemory() {
  if (method_ == nullptr) return GiveUp();
  // As a message it is too large. The part that there is isn't kept.
  request_bytes_ = std::numeric_limits<std::size_t>::max();
  bool failed = false;
  try {
    // The request may be gone: its parts are needed no more.
    Fail(flare::Status(OverloadedCode(), kOverloadedText),
         Failure::kOverloaded);
    failed = true;
  } catch (const std::bad_alloc&) {
  }
  if (!failed) GiveUp();
}

void ServerCall::GiveUp() {
  connection_->state().CountFailure(connection_->group(), Failure::kOther);
  if (method_ != nullptr) {
    method_->counters.Refuse(fiber::GetCurrentWorkerIndex(), STATUS_FAILED,
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

// False: the call is over. True: call a method.
[[gnu::always_inline]] inline bool ServerCall::Begin() {
  controller_.dispatched_ns_ = NowNs();
  if (connection_->leavers() != CallConnection::Leavers::kNone) [[unlikely]] {
    if (!BeginAmongLeavers()) return false;
  } else if (!ParseHead()) {
    return Finish(), false;
  }
  if (!PassGate()) return false;
  if (!connection_->HasOutputRoom() && !WaitToBegin()) [[unlikely]] {
    return FinishUnanswered(), false;
  }
  if (request_->own == nullptr) [[likely]]
    return BeginRpc();
  ServeOwn();
  return false;
}

// False: the call is over, as its caller has left or the request is malformed.
// True: the head is parsed.
bool ServerCall::BeginAmongLeavers() {
  if (connection_->leavers() == CallConnection::Leavers::kAll) {
    connection_->state().CountCancelled(connection_->group());
    return FinishUnanswered(), false;
  }
  if (!ParseHead()) return Finish(), false;
  if (request_->own != nullptr || is_stream_ ||
      !protocol_->CallerLeft(request_->ticket)) {
    return true;
  }
  connection_->state().CountCancelled(connection_->group());
  // It isn't sent: by it the protocol learns that the call is over.
  OutboundResponse response;
  response.status = STATUS_FAILED;
  response.description = "the caller has given the call up";
  protocol_->Write(request_->ticket, std::move(response));
  return Finish(), false;
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

// Kept out of line: for calls that have waited.
[[gnu::noinline]] bool ServerCall::AskGate(CallGate* gate) {
  CallGate::Call call;
  call.now_ns = controller_.dispatched_ns_;
  call.waited_ns = call.now_ns - controller_.received_ns_;
  if (request_->own == nullptr) {
    call.timeout_ns = std::int64_t{request_->head.timeout_ms} * kNsPerMs;
    const Method* const method = FindMethod();
    if (method != nullptr) {
      call.usual_ns = method->counters.usual_ns();
      call.limited = method->limits_wait();
    }
    // A late call is refused as such.
    if (call.timeout_ns != 0 && call.waited_ns > call.timeout_ns) return true;
  }
  switch (gate->Ask(call)) {
    case CallGate::Verdict::kBegin:
      break;
    case CallGate::Verdict::kOverloaded:
      FailOverloaded();
      return false;
    case CallGate::Verdict::kStopping:
      FailStopping();
      return false;
  }
  AdmissionControl* const control = connection_->state().admission();
  return control == nullptr || AskAdmission(control, call);
}

// By the rules of AdmissionOptions. False: the call was refused.
bool ServerCall::AskAdmission(AdmissionControl* control,
                              const CallGate::Call& asked) {
  AdmissionControl::Call call{
      .group = connection_->group(),
      .now_ns = asked.now_ns,
      .waited_ns = asked.waited_ns,
      .timeout_ns = asked.timeout_ns,
      .usual_ns = asked.usual_ns,
      .under_way = connection_->state().calls_running()};
  if (request_->own != nullptr) {
    if (request_->own->IsExempt()) return true;
  } else {
    const Method* const method = FindMethod();
    if (method == nullptr) return true;  // It fails.
    const std::string& key = control->priority_key();
    if (!key.empty() && request_->metadata != nullptr) {
      call.priority = PriorityOf(request_->metadata->Get(key).value_or(""));
    }
    call.method = method->admission.get();
    call.streaming = method->streaming();
  }
  if (!control->Admit(call)) return FailOverloaded(), false;
  place_ = Place::kMetered;
  return true;
}

void ServerCall::Refuse() {
  place_ = Place::kNone;
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
  place_ = Place::kNone;
  connection_ = nullptr;
  Recycle();
}

// False: the request was dealt with, because it is malformed.
[[gnu::always_inline]] inline bool ServerCall::ParseHead() {
  const ParseResult result = protocol_->Parse(request_);
  if (result == ParseResult::kOk) [[likely]]
    return true;
  Reject(result);
  return false;
}

void ServerCall::Reject(ParseResult result) {
  connection_->state().CountFailure(connection_->group(), Failure::kMalformed);
  if (result == ParseResult::kReject) {
    protocol_->WriteRejection(*request_);
  } else {
    connection_->CloseMalformed(request_->reject_reason);
  }
}

[[gnu::always_inline]] inline bool ServerCall::BeginRpc() {
  const RequestHead& head = request_->head;
  if (IsCompressed(head.compression)) {
    if (!WaitToUnpack()) return FinishUnanswered(), false;
    if (!connection_->state().unpacked()->HasRoom())
      return FailOverloaded(), false;
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
  const bool streams = method->streaming();
  if (streams != is_stream_ && !AdmitStream(*method)) [[unlikely]]
    return false;
  if (waited_ns > method->max_wait_ns || !method->TryEnter()) {
    return FailOverloaded(), false;
  }
  method_ = method;
  method->counters.Begin(fiber::GetCurrentWorkerIndex());

  if (is_stream_) [[unlikely]] {
    if (!BeginStream()) return false;
  } else if (flare::Status parsed = ParseBody(); !parsed.ok()) {
    return FailParsing(parsed), false;
  } else if (streams && !StreamReply()) [[unlikely]] {
    return false;
  }
  controller_.parsed_ns_ = NowNs();
  format_ = head.format;
  unasked_compression_ = head.unasked_compression;
  // Some replies repeat parts of the request.
  if (!head.reply_needs_request) {
    ticket_ = request_->ticket;
    ReleaseRequest();
  }
  OpenContext();
  if (is_stream_) [[unlikely]]
    StopWithStream();
  return true;
}

// The method's work for its caller is over when the caller gives the call up.
void ServerCall::StopWithStream() {
  stream_->SetOnFailed([context = context_](const flare::Status& why) {
    context->RequestStop(CauseOf(why));
  });
}

// False: the method has no streams, or has some, other than the caller thinks
// or the protocol carries. The call has failed.
bool ServerCall::AdmitStream(const Method& method) {
  FailureDetail detail = FailureDetail::kNone;
  std::string_view why =
      "isn't a streaming method: it is called with a single message.";
  if (method.descriptor->client_streaming()) {
    why = "is a streaming method: it can't be called with a single message.";
    detail = FailureDetail::kMediaType;
  } else if (method.streaming()) {
    why = protocol_->WhyNoReplyStream(ticket());
    if (why.empty()) return true;
    detail = FailureDetail::kMediaType;
  }
  Fail(flare::Status(
           STATUS_MALFORMED_DATA,
           "Method [" + std::string(method.name()) + "] " + std::string(why)),
       Failure::kMalformed, detail);
  return false;
}

// The request was a single message, and the reply is a stream. Waits for its
// turn on the connection. False: the call has failed.
bool ServerCall::StreamReply() {
  is_stream_ = true;
  if (!TakeStreamPlace()) return false;
  for (;;) {
    connection_->WaitForRoom();
    ReplyTurnEvent event;
    const ReplyTurn turn = protocol_->AskToStream(ticket(), &event);
    if (turn == ReplyTurn::kNow) break;
    if (turn == ReplyTurn::kNever) {
      Fail(flare::Status(STATUS_IO_ERROR, "the connection is closed"),
           Failure::kOther);
      return false;
    }
    event.Wait();
  }
  StreamOpening opening{.format = request_->head.format,
                        .send_window = StreamWindow::kInitial};
  if (controller_.deadline_ns_ != 0) {
    opening.timeout_ms = static_cast<std::uint32_t>(
        std::max<std::int64_t>(controller_.deadline_ns_ - NowNs(), 0) /
            kNsPerMs +
        1);
  }
  stream_ =
      connection_->StartStream(opening, protocol_->OpenReplyStream(ticket()));
  if (stream_ == nullptr) {
    method_->counters.Refuse(fiber::GetCurrentWorkerIndex(), STATUS_IO_ERROR,
                             /*overloaded=*/false);
    FinishUnanswered();
    return false;
  }
  GiveMetadataToStream();
  stream_->OnEnd(flare::Status());  // No request follows.
  return true;
}

// False: as many streams run as may. The call has failed.
bool ServerCall::TakeStreamPlace() {
  std::string_view why;
  has_stream_place_ = connection_->EnterStream(&why);
  if (!has_stream_place_) {
    Fail(flare::Status(OverloadedCode(), std::string(why)),
         Failure::kOverloaded);
  }
  return has_stream_place_;
}

void ServerCall::LeaveStreamPlace() {
  if (std::exchange(has_stream_place_, false)) {
    connection_->LeaveStream();
  }
}

void ServerCall::GiveMetadataToStream() {
  stream_->SetMetadataSource(
      [this](StreamWire::MetadataPlace place) -> Metadata* {
        if (controller_.metadata_ == nullptr) return nullptr;
        if (place == StreamWire::MetadataPlace::kTrailing) JoinTrailers();
        return &controller_.metadata_->response;
      });
}

// The messages of the call, of which a method that takes one gets the first.
// False: the call has failed.
bool ServerCall::BeginStream() {
  if (!TakeStreamPlace()) return false;
  stream_ = RefPtr<CallStream>(
      adopt_ref, static_cast<CallStream*>(request_->stream.Leak()));
  if (request_->metadata != nullptr) [[unlikely]] {
    controller_.ForMetadata().request = std::move(*request_->metadata);
  }
  GiveMetadataToStream();
  controller_.acceptable_compressions_ = request_->head.acceptable_compressions;
  stream_->SetCompressionSource([this] { return controller_.compression_; });
  messages_.Acquire(*method_);
  request_bytes_ = 0;
  if (method_->descriptor->client_streaming()) return stream_->Accept(), true;
  Buffer message;
  StreamError error;
  flare::Status status;
  if (stream_->Read(&message, CallStream::kNever, &error)) {
    status = ParseMessage(stream_->format(), &message);
    if (status.ok()) return stream_->Accept(), true;
  } else {
    status = stream_->status();
    if (status.ok()) {
      status = flare::Status(STATUS_MALFORMED_DATA,
                             "a stream of requests without a message");
    }
  }
  FailParsing(status);
  return false;
}

void ServerCall::FailParsing(const flare::Status& why) {
  Fail(why, why.code() == OverloadedCode() ? Failure::kOverloaded
                                           : Failure::kMalformed);
}

// The method has ended.
void ServerCall::FinishStream() {
  const bool failed = controller_.Failed();
  if (!failed && !method_->descriptor->server_streaming() &&
      !stream_->WriteMessage(*messages_.response(), /*last=*/true,
                             CallStream::kNever)) {
    controller_.error_code_ = STATUS_IO_ERROR;
  }
  const bool lost = !failed && !stream_->status().ok();
  if (failed || lost) {
    connection_->state().CountFailure(
        connection_->group(), ServerState::FailureOf(controller_.error_code_));
  }
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  method_->counters.End(
      worker, failed ? controller_.error_code_ : stream_->status().code(),
      controller_.received_ns_, controller_.dispatched_ns_);
  LeaveLimits(worker);
  LeaveStreamPlace();
  stream_->Finish(
      failed ? flare::Status(controller_.error_code_, controller_.error_text_)
             : flare::Status());
}

// The one that the request is for; null if the server doesn't have it.
[[gnu::always_inline]] inline const Method* ServerCall::FindMethod() const {
  const RequestHead& head = request_->head;
  const Method* const method = connection_->FindMethod(head.method);
  if (method != nullptr || !head.short_service) [[likely]]
    return method;
  return connection_->state().methods.FindByShortName(head.method);
}

// False: the method threw, and the call isn't its task's any more.
[[gnu::always_inline]] inline bool ServerCall::CallService(
    const Method& method) {
  // relaxed: nobody else knows of the call.
  progress_.store(0, std::memory_order_relaxed);
  try {
    const BorrowedExecutionContextScope scope(context_.Get());  // [CE2]
    method.service->CallMethod(method.descriptor, &controller_,
                               messages_.request(), messages_.response(), this);
    return true;
  } catch (...) {  // Fibers mustn't be suspended in here.
    if (!ClaimForException(method)) return true;
  }
  RespondThrown(method);
  FinishThrown();
  return false;
}

// With interceptors: the task answers the call when they have returned, and so
// is the second in [CE2].
[[gnu::always_inline]] inline void ServerCall::ServeIntercepted() {
  // relaxed: nobody else knows of the call.
  progress_.store(kIntercepted, std::memory_order_relaxed);
  {
    const BorrowedExecutionContextScope scope(context_.Get());
    const google::protobuf::MethodDescriptor* const method =
        method_->descriptor;
    const google::protobuf::Message* request = messages_.request();
    google::protobuf::Message* response = messages_.response();
    if (is_stream_) [[unlikely]] {
      if (method->client_streaming()) request = nullptr;
      if (method->server_streaming()) response = nullptr;
    }
    InterceptedCall call(method, &controller_, request, response);
    const auto last = [](void* self) {
      static_cast<ServerCall*>(self)->CallAndWait();
    };
    InterceptorChain(*method_->interceptors, &call, last, this).Run();
  }
  // acq_rel: pairs with OnWatched() [CE1].
  progress_.fetch_or(kSealed, std::memory_order_acq_rel);
  // relaxed: this fiber has set it.
  if ((progress_.load(std::memory_order_relaxed) & kThrown) != 0) [[unlikely]] {
    RespondThrown(*method_);
    return FinishThrown();
  }
  Respond(/*last=*/true);
  Finish();
  GiveBack();
}

// Calls the service, and waits for `done` unless the method throws before.
[[gnu::always_inline]] inline void ServerCall::CallAndWait() {
  const Method& method = *method_;
  try {
    method.service->CallMethod(method.descriptor, &controller_,
                               messages_.request(), messages_.response(), this);
  } catch (...) {  // As in CallService().
    ClaimForException(method);
    return;
  }
  // acquire: pairs with Run().
  if ((progress_.load(std::memory_order_acquire) & kEnded) == 0) WaitForDone();
}

void ServerCall::WaitForDone() {
  fiber::Event ended;
  done_event_ = &ended;
  // acq_rel: pairs with Run(), both ways.
  if ((progress_.fetch_or(kWaiting, std::memory_order_acq_rel) & kEnded) == 0) {
    ended.Wait();
  }
  done_event_ = nullptr;
}

// In a `catch (...)`: logs the exception. False: `done` was first, and the call
// goes its way. True: the controller has the exception.
bool ServerCall::ClaimForException(const Method& method) {
  if (std::current_exception() == nullptr) throw;  // The end of a thread.
  std::string text = "out of memory";
  try {
    const std::string name = "ethod " + std::string(method.name());
    text = "M" + name + " has thrown " + TakeHandlerException("m" + name);
  } catch (const std::bad_alloc&) {
    // Which the exception, most likely, was as well.
  }
  // acq_rel: pairs with Run() and OnWatched() [CE1].
  if ((progress_.fetch_or(kEnded | kThrown, std::memory_order_acq_rel) &
       kEnded) != 0) {
    return false;
  }
  controller_.SetFailed(STATUS_FAILED, std::move(text));
  return true;
}

// Ignores the response's content: somebody may still be writing it [CE3].
void ServerCall::RespondThrown(const Method& method) {
  if (std::exchange(responded_, true)) return;
  connection_->state().CountFailure(connection_->group(), Failure::kOther);
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  method.counters.End(worker, controller_.error_code_, controller_.received_ns_,
                      controller_.dispatched_ns_);
  LeaveLimits(worker);
  OutboundResponse response;
  response.status = controller_.error_code_;
  response.description = controller_.error_text_;
  try {
    if (stream_ != nullptr) {
      stream_->Finish(
          flare::Status(controller_.error_code_, controller_.error_text_));
    } else {
      protocol_->Write(ticket(), std::move(response));
    }
  } catch (const std::bad_alloc&) {
    connection_->CloseOutOfMemory();
    protocol_->GiveUp();
  }
}

// Releases the server's counts, and nothing that the method may have passed on
// [CE3].
void ServerCall::FinishThrown() {
  const std::size_t bytes = held_bytes_;
  if (bytes != 0) CountHeld(0);
  if (place_ != Place::kNone) LeaveLimits(fiber::GetCurrentWorkerIndex());
  context_->Disown();  // Excludes a watch that begins [CW1].
  if (watch_ != nullptr) std::exchange(watch_, nullptr)->End();
  context_.Reset();
  LeaveStreamPlace();
  if (stream_ != nullptr) stream_->Detach();
  controller_.call_ = nullptr;
  controller_.remote_peer_ = nullptr;
  CallConnection* const connection = std::exchange(connection_, nullptr);
  const bool is_stream = counted_as_stream_;
  const auto give_back = [](ServerCall* old) {
    old->ReleaseMessages();
    old->controller_.Reset();
    old->stream_.Reset();
    old->Recycle();
  };
  if (ServerCall* const old = thrown_calls.Add(this, bytes)) give_back(old);
  while (ServerCall* const old = thrown_calls.TakeExcess()) give_back(old);
  connection->CallFinished(is_stream);
}

// While the peer takes no replies, the request waits, which is mostly smaller
// than its reply. False: the connection is closed. Kept out of line: for few
// calls.
[[gnu::noinline]] bool ServerCall::WaitToBegin() {
  StopMetering();
  if (!connection_->WaitForRoom()) return false;
  controller_.dispatched_ns_ = NowNs();
  return true;
}

// Before a request is decompressed, which may make it a thousand times as
// large: waits while the connection has no room for replies, so that requests
// wait in their small form. False: the connection is closed. Kept out of line:
// for few calls.
[[gnu::noinline]] bool ServerCall::WaitToUnpack() {
  if (!WaitToReply()) return false;
  controller_.dispatched_ns_ = NowNs();
  return true;
}

// The server's services for a request that serves itself.
class ServerCall::OwnHost final : public OwnRequestHost {
 public:
  explicit OwnHost(ServerCall* call) : call_(call) {}

  const Endpoint& peer() const override { return connection()->peer(); }
  const PeerIdentity* peer_identity() const override {
    return connection()->peer_identity();
  }
  std::int64_t received_ns() const override {
    return call_->controller_.received_ns_;
  }
  std::int64_t dispatched_ns() const override {
    return call_->controller_.dispatched_ns_;
  }
  const ReplyTicket& ticket() const override { return call_->ticket(); }

  void Run(const Function<void()>& code) override {
    call_->OpenContext();
    const BorrowedExecutionContextScope scope(call_->context_.Get());
    code();
  }
  void LogException(const std::string& what) override {
    TakeHandlerException(what);
  }
  void CountFailure(int status) override {
    connection()->state().CountFailure(connection()->group(),
                                       ServerState::FailureOf(status));
  }

  void WaitToReply(std::size_t bytes) override {
    // Without a place: RefuseOwn() serves exempt requests in the reader, which
    // must not wait, or the whole connection would.
    if (call_->place_ == Place::kNone || connection()->HasRoom()) return;
    call_->CountReply(bytes);
    call_->BlockForTurn(/*patient=*/true);
  }
  ReplyTurn WaitForTurn(
      const Function<ReplyTurn(ReplyTurnWaiter*)>& ask) override {
    for (;;) {
      WaitForRoom();
      ReplyTurnEvent event;
      const ReplyTurn turn = ask(&event);
      if (turn != ReplyTurn::kLater) return turn;
      call_->StopMetering();
      event.Wait();
    }
  }
  ReplyTurn WaitForTurnOr(const Function<ReplyTurn(ReplyTurnWaiter*)>& ask,
                          const Function<void()>& give_up) override {
    for (;;) {
      WaitForRoom();
      ReplyTurnEvent event;
      const ReplyTurn turn = ask(&event);
      if (turn != ReplyTurn::kLater) return turn;
      call_->StopMetering();
      if (event.WaitFor(connection()->output_timeout())) continue;
      give_up();
      event.Wait();
      return ReplyTurn::kNever;
    }
  }
  void WaitForRoom() override {
    if (connection()->HasOutputRoom()) return;
    call_->StopMetering();
    connection()->WaitForRoom();
  }
  void LeaveLimits() override {
    call_->LeaveLimits(fiber::GetCurrentWorkerIndex());
  }

  void ResetOnClose() override { connection()->ResetOnClose(); }
  void Close(const flare::Status& why) override { connection()->Close(why); }

 private:
  CallConnection* connection() const { return call_->connection_; }

  ServerCall* const call_;
};

void ServerCall::ServeOwn() {
  controller_.parsed_ns_ = controller_.dispatched_ns_;  // It came parsed.
  OwnHost host(this);
  request_->own->Serve(&host);
  // acq_rel: pairs with OnWatched() [CE1].
  progress_.fetch_or(kEnded, std::memory_order_acq_rel);
  Finish();
}

bool ServerCall::WaitToReply() {
  return connection_->HasRoom() || BlockToReply();
}

bool ServerCall::BlockToReply() {
  CountReply();
  return BlockForTurn(/*patient=*/false);
}

// The time that it takes is the peer's, or that of earlier calls: neither rules
// of admission nor the method's usual time count it.
bool ServerCall::BlockForTurn(bool patient) {
  if (!fiber::IsFiberWorker()) return true;
  StopMetering();
  const std::int64_t began_ns = NowNs();
  const bool is_open = WaitForTurn(patient);
  controller_.dispatched_ns_ += NowNs() - began_ns;
  return is_open;
}

// Where many have replies ready they are made in the order in which they leave,
// if there is one: those made before their turn would only lie there.
bool ServerCall::WaitForTurn(bool patient) {
  connection_->state().CloseGreedy();  // Before others make theirs.
  if (!connection_->WaitForRoom()) return false;
  while (connection_->MuchHeld()) {
    ReplyTurnEvent turn;
    if (protocol_->AskToReply(ticket(), &turn) != ReplyTurn::kLater) break;
    if (!patient && !turn.WaitFor(kMaxTurnDelay) &&
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
  if (request_->own != nullptr) {
    return RefuseOwn(kOverloadedText, Failure::kOverloaded);
  }
  Fail(flare::Status(OverloadedCode(), kOverloadedText), Failure::kOverloaded,
       detail);
}

void ServerCall::FailStopping() {
  constexpr char kText[] = "Server is stopping.";
  if (request_->own != nullptr) return RefuseOwn(kText, Failure::kOther);
  Fail(flare::Status(STATUS_OUT_OF_SERVICE, kText), Failure::kOther,
       FailureDetail::kStopping);
}

// Unless limits don't hold for it.
void ServerCall::RefuseOwn(std::string_view text, Failure failure) {
  if (request_->own->IsExempt()) {
    controller_.dispatched_ns_ = NowNs();
    return ServeOwn();
  }
  connection_->state().CountFailure(connection_->group(), failure);
  OwnHost host(this);
  request_->own->Refuse(text, &host);
  Finish();
}

// Answers with an error of our own, without a body.
void ServerCall::Fail(const flare::Status& status, Failure failure,
                      FailureDetail detail) {
  connection_->state().CountFailure(connection_->group(), failure);
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  if (const Method* method = method_ != nullptr ? method_ : FindMethod()) {
    if (method_ == nullptr) method->counters.Begin(worker);
    method->counters.Refuse(worker, status.code(),
                            failure == Failure::kOverloaded);
  }
  OutboundResponse response;
  response.detail = detail;
  response.status = status.code();
  response.description = status.message();
  LeaveLimits(worker);
  if (stream_ != nullptr) [[unlikely]] {
    stream_->Finish(status);
  } else {
    protocol_->Write(ticket(), std::move(response));
  }
  Finish();
}

void ServerCall::Run() {
  // acq_rel: pairs with ClaimForException() and OnWatched() [CE1].
  const std::uint8_t before =
      progress_.fetch_or(kEnded, std::memory_order_acq_rel);
  if ((before & (kEnded | kIntercepted)) != 0) [[unlikely]] {
    if (before == kIntercepted) return;  // The task goes on from here.
    return RunOtherwise(before);
  }
  Respond(/*last=*/true);
  Finish();
}

// `before`: the former progress_. A second time isn't noticed if the next call
// has taken this one's place in memory: then that is ended.
void ServerCall::RunOtherwise(std::uint8_t before) {
  if ((before & kEnded) == 0) {
    // Without kWaiting the call may be gone already.
    if ((before & kWaiting) != 0) done_event_->Set();
    return;
  }
  CHECK((before & kThrown) != 0)
      << "done->Run() was called twice, or after its call had ended: a service "
         "runs it exactly once for each call.";
  LOG(ERROR) << "done->Run() was called after the method had thrown, by which "
                "the call had failed.";
}

bool ServerCall::IsCanceled() const {
  return context_->stop_requested() ||
         connection_->watched_calls().cause() != StopCause::kNone ||
         protocol_->CallerLeft(ticket()) ||
         (controller_.deadline_ns_ != 0 && NowNs() >= controller_.deadline_ns_);
}

void ServerCall::NotifyOnCancel(google::protobuf::Closure* callback) {
  if (context_->stop_token().stop_requested() || watch_ == nullptr) {
    return callback->Run();
  }
  watch_->NotifyOnStop(callback);
}

StopCause ServerCall::OnWatched() {
  // acq_rel: pairs with Run(), ClaimForException() and ServeOwn() [CE1].
  const std::uint8_t before =
      progress_.fetch_or(kWatched, std::memory_order_acq_rel);
  const std::uint8_t end = (before & kIntercepted) != 0 ? kSealed : kEnded;
  if ((before & end) != 0) return StopCause::kNone;
  watch_ = new CallWatch(context_, protocol_, ticket());
  return watch_->Begin(&connection_->watched_calls(), controller_.deadline_ns_);
}

void ServerCall::EndWatch() {
  if (context_->stop_requested()) {
    connection_->state().CountCancelled(connection_->group());
  }
  context_->Disown();  // [CW1]
  if (watch_ != nullptr) std::exchange(watch_, nullptr)->End();
}

void ServerCall::Respond(bool last) {
  if (is_stream_) [[unlikely]] {
    if (last) FinishStream();
    return;
  }
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
    connection_->state().CountFailure(connection_->group(),
                                      ServerState::FailureOf(response.status));
  }
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  method_->counters.End(worker, response.status, controller_.received_ns_,
                        controller_.dispatched_ns_);
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

// Gives back its place under the limits. Called before the reply is sent: a
// caller with its reply may send the next call at once.
void ServerCall::LeaveLimits(std::size_t worker) {
  if (place_ != Place::kTaken) [[unlikely]]
    return LeaveMetered(worker);
  place_ = Place::kNone;
  if (method_ != nullptr) std::exchange(method_, nullptr)->Leave();
  connection_->state().CallFinished(worker);
  if (decompressed_bytes_ != 0) [[unlikely]] {
    connection_->state().unpacked()->Remove(
        std::exchange(decompressed_bytes_, 0));
  }
}

// Kept out of line, and called last: the other calls need no frame for it.
[[gnu::noinline]] void ServerCall::LeaveMetered(std::size_t worker) {
  if (place_ == Place::kNone) return;
  LeaveAdmission();
  LeaveLimits(worker);
}

// The call is going to wait for its peer, as it may for long: from now on the
// rules of admission don't count it. They have to know streams by their end.
void ServerCall::StopMetering() {
  if (place_ != Place::kMetered) return;
  const Method* const method = MeteredMethod();
  if (method == nullptr || !method->streaming()) LeaveAdmission();
}

// Null for a request that serves itself. The method is known unless the call
// has failed, or waits, before it was entered.
const Method* ServerCall::MeteredMethod() const {
  return method_ != nullptr || request_->own != nullptr ? method_
                                                        : FindMethod();
}

void ServerCall::LeaveAdmission() {
  place_ = Place::kTaken;
  const Method* const method = MeteredMethod();
  AdmissionControl* const control = connection_->state().admission();
  AdmissionControl::Ended ended{.timed = controller_.parsed_ns_ != 0,
                                .received_ns = controller_.received_ns_,
                                .dispatched_ns = controller_.dispatched_ns_,
                                .now_ns = NowNs()};
  if (method != nullptr) {
    ended.method = method->admission.get();
    ended.streaming = method->streaming();
  }
  control->Leave(ended);
}

void ServerCall::DropStream() {
  LeaveStreamPlace();
  if (stream_ != nullptr) std::exchange(stream_, nullptr)->Detach();
}

void ServerCall::Finish() {
  if (held_bytes_ != 0) [[unlikely]]
    CountHeld(0);
  if (place_ != Place::kNone) LeaveLimits(fiber::GetCurrentWorkerIndex());
  // relaxed: the claim of the end has ordered it [CE1].
  if ((progress_.load(std::memory_order_relaxed) & kWatched) != 0) [[unlikely]]
    EndWatch();
  if (is_stream_) [[unlikely]]
    DropStream();
  ReleaseMessages();
  controller_.Reset();
  CallConnection* const connection = std::exchange(connection_, nullptr);
  const bool is_stream = counted_as_stream_;
  // acq_rel: pairs with Serve(), both ways [CE2].
  if ((progress_.fetch_or(kOver, std::memory_order_acq_rel) & kReturned) != 0) {
    GiveBack();
  }
  connection->CallFinished(is_stream);
}

}  // namespace flare::rpc

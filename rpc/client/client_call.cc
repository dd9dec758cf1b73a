// An attempt is one request on one connection. The parties that may touch the
// call, and when (pending_call.h has the part that they share):
//
//   owner:  CallMethod's caller, or the call's own task
//     StartAttempt   holders_ = 2; the owner turns into the issuer
//   issuer: Acquire, Insert, arm the timer, BeginAttempt, write, LetGo [CA7]
//   completer: the party that takes the call out of the table: reader, timer,
//     closing connection, canceller, or the issuer itself; writes the outcome,
//     LetGo
//   owner:  the last to let go has the call alone; it passes to the blocked
//     caller or to the call's task
//     FinishAttempt  cancel the timer, lock out the canceller, evaluate, give
//                    the connection back; again or End
//
//  [CA1] There is at most one completer per attempt: CallTable::Take() gives
//        the call to one. If Insert() never happened or was refused, the issuer
//        is it. A completion that comes later for the same id finds nothing.
//  [CA2] Issuer and completer work at the same time on different members; the
//        last of them to let go passes the call on, exactly once. So a reply
//        that overtakes the issuer's return from the write does no harm.
//  [CA3] The timer's callback and the canceller may look at connection_ and id_
//        after they were set and before FinishAttempt has waited for both
//        (CancelTimer, EndAttempt); nobody changes them in between.
//  [CA4] A completer doesn't touch the call after it let go, except the
//        canceller, whom EndAttempt waits for.
//  [CA5] The call is a user of its connection from Acquire to the end of
//        FinishAttempt, so the issuer, the timer and the canceller can use it.
//  [CA6] Before `done` runs, or the blocked caller goes on, the call has been
//        put back into its pool: nothing of it refers to controller, response
//        or channel, which may be reused or freed at once.
//  [CA7] A fiber that blocks lets go, as the issuer, when it is suspended and
//        can be resumed: in the hook that runs after the switch. So it is
//        resumed once, by the last to let go: completer or hook. A plain thread
//        lets go first, and waits for ended_ if it wasn't the last.

#include "flare/rpc/client/client_call.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/object_pool.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/channel_credentials.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/payload.h"
#include "glog/logging.h"

namespace flare::rpc {

// There is one for each call that waits (docs/decisions/0037-small-calls.md).
static_assert(sizeof(ClientCall) <= 448);

namespace {

constexpr std::uint32_t kMaxChances = 1000;  // Counted in 16 bits.
// Connections that may turn a call away, as their servers stop.
constexpr int kMaxTurns = 8;
constexpr std::size_t kMaxAttempts = std::numeric_limits<std::uint16_t>::max();

// Failures that would be the same everywhere, or after which there is no time
// or no wish to go on.
bool IsFinal(int code, const ProtocolTraits& traits) {
  switch (code) {
    case STATUS_SUCCESS:
    case STATUS_TIMEOUT:
    case STATUS_SERIALIZE_REQUEST:
    case STATUS_INVALID_METHOD_NAME:
    case STATUS_FAILED:
    case STATUS_NOT_SUPPORTED:
    case STATUS_INVALID_CHANNEL:
      return true;
    default:
      return traits.is_from_service(code);
  }
}

// How long WaitForRoom() waits before it looks whether the call has ended
// (cancelled, say): at first, and at most, as thousands of calls may wait.
constexpr std::int64_t kMinWaitSliceNs = 5'000'000;
constexpr std::int64_t kMaxWaitSliceNs = 80'000'000;

// Milliseconds until the deadline, as sent to the server: the time left now,
// instead of the controller's. Rounded up, for 0 means no limit.
std::uint32_t WireTimeout(std::int64_t deadline_ns, std::int64_t now_ns) {
  const std::int64_t left = (deadline_ns - now_ns - 1) / kNsPerMs + 1;
  constexpr auto kMax = std::numeric_limits<std::uint32_t>::max();
  return left >= kMax ? kMax : static_cast<std::uint32_t>(left < 1 ? 1 : left);
}

void NoteUncompressed(CompressionAlgorithm algorithm,
                      const std::string& protocol) {
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "a request isn't compressed: protocol " << protocol
                 << " doesn't have " << ToString(algorithm)
                 << LogThrottle::Note(*left_out);
  }
}

}  // namespace

ClientCall::ClientCall() : fiber::Timer(&ClientCall::OnTimer) {
  run = &ClientCall::RunTask;
}

// --------------------------------------------------------------------------
// The owner's part
// --------------------------------------------------------------------------

void ClientCall::Run(const Arguments& arguments) {
  ClientCall* call;
  try {
    call = ObjectPool<ClientCall>::Get();
  } catch (const std::bad_alloc&) {
    return FailToBegin(arguments);
  }
  fiber::ExecutionContext* const context = fiber::ExecutionContext::Current();
  call->Begin(arguments, context);
  if (call->done_ != nullptr) {
    call->context_ = RefPtr<fiber::ExecutionContext>(ref_ptr, context).Leak();
    call->StartAttempt();
    if (arguments.chosen != nullptr) [[unlikely]]
      *arguments.chosen = call->choice_.peer;
    // `done` is never run from here, even if the call has ended already: it may
    // make the next call, and so on without end.
    if (call->LetGo()) fiber::Submit(call);
    return;
  }
  call->BlockCaller();
  for (;;) {
    call->StartAttempt();
    call->WaitForEnd();
    if (call->FinishAttempt(arguments.request)) {
      if (arguments.chosen != nullptr) [[unlikely]]
        *arguments.chosen = call->choice_.peer;
      return call->End();
    }
    this_fiber::Yield();  // Many attempts may fail at once.
  }
}

// In a `catch`: there is no memory for a call. One that blocks fails. For one
// that doesn't there is no task to run `done`, which mustn't be run from here:
// the caller gets the exception.
void ClientCall::FailToBegin(const Arguments& arguments) {
  if (arguments.done != nullptr) throw;
  google::protobuf::RpcController* const controller = arguments.controller;
  if (controller == nullptr) return;
  if (typeid(*controller) != typeid(RpcClientController)) {
    return controller->SetFailed("out of memory");
  }
  auto* const ours = static_cast<RpcClientController*>(controller);
  ours->ClearOutcome();
  ours->error_code_ = STATUS_FAILED;
}

void ClientCall::RunTask(fiber::Task* task) {
  auto* const call = static_cast<ClientCall*>(task);
  if (call->route_kept_ && call->context_ != nullptr) [[unlikely]] {
    return call->GoOnInContext();
  }
  call->GoOn();
}

void ClientCall::GoOn() {
  if (FinishAttempt(nullptr)) return End();
  StartAttempt();
  if (LetGo()) fiber::Submit(this);  // Others have their turn, as in Run.
}

// A further attempt asks name resolvers and load balancers, which may be the
// user's. The call, and with it its reference, may go to another worker.
void ClientCall::GoOnInContext() {
  const fiber::ExecutionContextScope scope(
      RefPtr<fiber::ExecutionContext>(ref_ptr, context_));
  GoOn();
}

void ClientCall::Begin(const Arguments& arguments,
                       fiber::ExecutionContext* context) {
  method_ = arguments.method;
  response_ = arguments.response;
  done_ = arguments.done;
  foreign_controller_ = nullptr;
  controller_ = &own_controller_;
  if (arguments.controller != nullptr) {
    // The class is final, so this is all that a dynamic_cast would find out.
    if (typeid(*arguments.controller) == typeid(RpcClientController)) {
      controller_ = static_cast<RpcClientController*>(arguments.controller);
    } else {
      foreign_controller_ = arguments.controller;
    }
  }
  controller_->ClearOutcome();
  const std::int64_t now = NowNs();
  controller_->started_ns_ = now;
  attempts_left_ = static_cast<std::uint16_t>(
      std::clamp<std::size_t>(controller_->max_attempts_, 1, kMaxAttempts));
  parts_sent_ = false;
  was_unprocessed_ = false;
  one_way_ = false;
  choice_ = Route::Choice();
  choice_.peer = arguments.after;
  route_ = arguments.route;
  counters_ = MethodCallCounters::kNone;
  if (route_ != nullptr) [[likely]] {
    format_ = route_->format();
    counters_ = route_->CountersOf(method_);
  }
  const std::optional<std::int64_t> deadline = controller_->DeadlineFrom(now);
  deadline_ns_ = deadline ? *deadline : DefaultDeadline(now);
  failure_ = route_ == nullptr ? *arguments.refusal
                               : TryToSerialize(arguments.request);
  if (failure_.ok() && attempts_left_ > 1) {
    KeepRoute();
  }
  if (context != nullptr && controller_->inherits_context_) BeginIn(context);
}

std::int64_t ClientCall::DefaultDeadline(std::int64_t now_ns) const {
  if (route_ == nullptr) return now_ns;
  return SaturatingAdd(now_ns, ToNs(route_->settings().timeout));
}

// Kept out of line, as most callers have none.
void ClientCall::BeginIn(fiber::ExecutionContext* context) {
  if (route_ == nullptr || !route_->settings().inherits_context) return;
  deadline_ns_ = DeadlineIn(context, deadline_ns_);
  try {
    context_stop_ = new ContextStop<CancelByContext>(
        context, CancelByContext{controller_, context});
  } catch (const std::bad_alloc&) {  // It isn't told of a stop.
  }
}

// From here on the context cancels nothing; its earlier cancellation doesn't
// hold for later calls of the same controller.
void ClientCall::LeaveContext() {
  const RefPtr<fiber::ExecutionContext> context = context_stop_->context();
  // First: a stop that comes now would leave its wish behind.
  delete std::exchange(context_stop_, nullptr);
  // relaxed: a StartCancel() at the same time isn't meant for the next call.
  if (context->stop_requested()) {
    controller_->cancel_requested_.store(false, std::memory_order_relaxed);
  }
}

// Up to, but without, the issuer's LetGo().
void ClientCall::StartAttempt() {
  StartPending();
  --attempts_left_;
  kept_ = false;
  turned_away_ = false;
  unprocessed_ = false;
  id_ = 0;
  if (failure_.ok()) {
    SendOrFail();
  } else {
    FailAttempt(Outcome::kFailed, failure_);
  }
}

// Without memory a call fails. Its status has no text, which would take some.
void ClientCall::SendOrFail() {
  try {
    SendRequest();
  } catch (const std::bad_alloc&) {
    FailAttempt(Outcome::kFailed, flare::Status(STATUS_FAILED));
  }
}

flare::Status ClientCall::TryToSerialize(
    const google::protobuf::Message* request) {
  try {
    return Serialize(request);
  } catch (const std::bad_alloc&) {
    return flare::Status(STATUS_FAILED);
  }
}

// True: the call is over. False: begin another attempt.
bool ClientCall::FinishAttempt(const google::protobuf::Message* request) {
  // A timer that has taken the call is at its end already [CA4].
  if (timer_armed_ && outcome_ != Outcome::kTimer) fiber::CancelTimer(this);
  timer_armed_ = false;
  controller_->EndAttempt(this);  // [CA3]
  Evaluate();
  if (choice_.counted()) [[unlikely]]
    EndCounted();
  if (connection_ != nullptr) {
    if (outcome_ != Outcome::kReply) [[unlikely]]
      AbandonRequest();
    if (outcome_ == Outcome::kTimer) [[unlikely]] {
      const std::int64_t sent_ns = controller_->sent_ns_;  // 0: it wasn't.
      try {
        connection_->OnTimeout(sent_ns != 0 ? sent_ns
                                            : controller_->started_ns_);
      } catch (const std::bad_alloc&) {  // The next one looks at it again.
      }
    }
    // [CA5]
    std::exchange(connection_, nullptr)->Release(outcome_ == Outcome::kReply);
  }
  if (!DecideRetry(request)) return true;
  controller_->ClearOutcome();
  // The message that may have come with the failure.
  if (outcome_ == Outcome::kReply && !controller_->accept_raw_response_) {
    response_->Clear();
  }
  failure_ = flare::Status();
  return false;
}

// Tells the load balancer and the health watch of the server. A deadline before
// which nothing could be sent says nothing of an established connection; nor
// does one that the caller doesn't know, of an attempt (policy_call.h); nor a
// call for which the channel had no credential, and which wasn't sent; nor one
// that a server which stops has left to others; nor one without a reply.
void ClientCall::EndCounted() {
  const std::int64_t sent_ns = controller_->sent_ns_;  // 0: it wasn't.
  const std::int64_t began_ns =
      sent_ns != 0 ? sent_ns : controller_->started_ns_;
  const std::int64_t ended_ns =
      outcome_ == Outcome::kReply && received_ns_ != 0 ? received_ns_ : NowNs();
  const bool refused_here = outcome_ == Outcome::kFailed &&
                            controller_->error_code_ == STATUS_UNAUTHENTICATED;
  const bool tells =
      !refused_here && !unprocessed_ && outcome_ != Outcome::kSent;
  Route::End(&choice_, controller_->error_code_, EndingOf(sent_ns != 0),
             tells ? std::max<std::int64_t>(0, ended_ns - began_ns) : -1);
}

Route::Ending ClientCall::EndingOf(bool sent) const {
  if (outcome_ == Outcome::kReply) {
    if (!unreadable_ || controller_->error_code_ == STATUS_SUCCESS) {
      return Route::Ending::kReply;
    }
    return oversized_ ? Route::Ending::kOversized : Route::Ending::kUnreadable;
  }
  return outcome_ == Outcome::kTimer && sent && !controller_->ends_early_
             ? Route::Ending::kSilent
             : Route::Ending::kOther;
}

// The protocol may tell the server that nobody waits for the reply.
void ClientCall::AbandonRequest() {
  if (id_ != 0) {
    try {
      connection_->protocol().Abandon(id_);
    } catch (const std::bad_alloc&) {  // It answers in vain.
    }
  }
  connection_->CloseIfThrough();
}

// The request of an attempt that the server didn't look at, which is none then.
// Once: a server may refuse for long. False: it is gone, as the caller may be.
bool ClientCall::RestoreUnprocessed(const google::protobuf::Message* request) {
  if (was_unprocessed_ || NowNs() >= deadline_ns_) return false;
  was_unprocessed_ = true;
  if (parts_sent_) {
    if (done_ != nullptr || !TryToSerialize(request).ok()) return false;
    parts_sent_ = false;
  }
  if (!route_kept_) KeepRoute();
  return true;
}

bool ClientCall::DecideRetry(const google::protobuf::Message* request) {
  if (unprocessed_ && RestoreUnprocessed(request)) [[unlikely]]
    ++attempts_left_;
  if (!route_kept_ || IsFinal(controller_->error_code_, route_->traits()) ||
      NowNs() >= deadline_ns_) {
    return false;
  }
  // Our own client side has ended. As a reply it is a server's: others may do.
  if (outcome_ == Outcome::kFailed &&
      controller_->error_code_ == STATUS_CHANNEL_SHUTDOWN) {
    return false;
  }
  // Nothing was sent: that was no attempt yet.
  if (turned_away_ && outcome_ == Outcome::kFailed &&
      ++choice_.refusals <= kMaxTurns) {
    ++attempts_left_;
  } else if (kept_ && outcome_ == Outcome::kFailed &&
             UseFailOver(controller_->error_code_)) {
    ++attempts_left_;
  }
  return attempts_left_ > 0;
}

// An attempt, or the search for a connection, ended with `code`. True: no
// connection could be made, and a chance was left with another server, of which
// each has one, or with another connection to the only one. It is used up now.
// With SetWaitForReady() there always is one: while no attempt is due
// Route::Acquire() has the call wait for one, so it doesn't spin.
bool ClientCall::UseFailOver(int code) {
  if (code != STATUS_FAIL_TO_CONNECT) return false;
  if (WaitsForReady()) return true;
  const std::uint32_t chances =
      std::clamp(std::uint32_t{choice_.peers}, 2U, kMaxChances);
  if (choice_.refusals + 1U >= chances || !route_->Hopeful()) return false;
  ++choice_.refusals;
  return true;
}

// Turns the outcome into the user's view.
void ClientCall::Evaluate() {
  try {
    EvaluateOutcome();
  } catch (const std::bad_alloc&) {
    failure_ = flare::Status(STATUS_FAILED);
    unreadable_ = false;
    controller_->error_code_ = failure_.code();
    if (outcome_ == Outcome::kReply && !controller_->accept_raw_response_) {
      response_->Clear();
    }
  }
  if (inbound_ == nullptr) return;
  inbound_->Clear();
  // There are more calls than replies that were read and not parsed yet.
  ObjectPool<InboundResponse>::Put(std::exchange(inbound_, nullptr));
}

void ClientCall::EvaluateOutcome() {
  switch (outcome_) {
    case Outcome::kReply:
      failure_ = ReadReply();
      break;
    case Outcome::kTimer:
      failure_ = TimeoutStatus();
      break;
    case Outcome::kCancelled:
      failure_ = CancelledStatus();
      controller_->canceled_ = failure_.code() == STATUS_FAILED;
      break;
    case Outcome::kSent:
    case Outcome::kFailed:
    case Outcome::kNone:
      break;  // failure_ is set.
  }
  controller_->error_code_ = failure_.code();
  if (!failure_.ok()) controller_->ForBytes().error_text = failure_.message();
}

// By StartCancel(), or as the context was stopped. If that was by its deadline,
// the call's own is over, too, which ends calls in the same way.
flare::Status ClientCall::CancelledStatus() const {
  if (context_stop_ == nullptr || !context_stop_->stopped()) {
    return flare::Status(STATUS_FAILED, "the caller cancelled the call");
  }
  if (context_stop_->cause() != fiber::StopCause::kDeadline) {
    return context_stop_->status();
  }
  return connection_ != nullptr ? TimeoutStatus() : TooLateStatus();
}

// The work that the deadline has ended. A request that was queued for an
// unconnected server may be sent later.
flare::Status ClientCall::TimeoutStatus() const {
  std::string text = "no reply to " + std::string(method_name());
  text += " from " + connection_->peer().ToString() + " until the deadline";
  if (!connection_->established()) {
    text += "; it was not connected, nothing was sent by then";
    const flare::Status before = connection_->LastFailure();
    if (!before.ok()) text += " (before: " + before.message() + ")";
  } else if (controller_->sent_ns_ == 0) {
    text += "; nothing was sent, too many bytes were queued before";
  }
  return flare::Status(STATUS_TIMEOUT, std::move(text));
}

void ClientCall::End() {
  if (context_stop_ != nullptr) [[unlikely]]
    LeaveContext();
  controller_->ended_ns_ =
      controller_->parsed_ns_ != 0 ? controller_->parsed_ns_ : NowNs();
  if (counters_ != MethodCallCounters::kNone) [[likely]] {
    MethodCallCounters::End(counters_, controller_->error_code_,
                            controller_->ended_ns_ - controller_->started_ns_);
  }
  if (done_ != nullptr && context_ != nullptr) [[unlikely]]
    return HandOverInContext();
  HandOver();
}

// Kept out of line, as it would make the frames of others larger.
void ClientCall::HandOverInContext() {
  const fiber::ExecutionContextScope scope(
      RefPtr<fiber::ExecutionContext>(adopt_ref, context_));
  HandOver();
}

// All that is the user's code.
void ClientCall::HandOver() {
  if (foreign_controller_ != nullptr && !failure_.ok()) {
    foreign_controller_->SetFailed(failure_.message());
  }
  google::protobuf::Closure* const done = done_;
  Recycle();  // [CA6]
  if (done != nullptr) done->Run();
}

void ClientCall::Recycle() {
  if (route_kept_) {
    route_kept_ = false;
    route_->Deref();
  }
  if (controller_ == &own_controller_) own_controller_.Reset();
  if (!parts_sent_) {
    body_.Clear();
    attachment_.Clear();
  }
  failure_ = flare::Status();
  ObjectPool<ClientCall>::Put(this);
}

// --------------------------------------------------------------------------
// Who ends an attempt
// --------------------------------------------------------------------------

void ClientCall::FailAttempt(Outcome outcome, flare::Status why) {
  if (id_ != 0 && connection_->calls().Take(id_) == nullptr) return;  // [CA1]
  failure_ = std::move(why);
  Complete(outcome, nullptr);
}

void ClientCall::OnTimer(fiber::Timer* timer) {
  auto* const call = static_cast<ClientCall*>(timer);
  if (call->connection_->calls().Take(call->id_) != nullptr) {  // [CA1] [CA3]
    call->Complete(Outcome::kTimer, nullptr);
  }
}

void ClientCall::Cancel() {
  if (connection_->calls().Take(id_) != nullptr) {  // [CA1] [CA3]
    Complete(Outcome::kCancelled, nullptr);
  }
}

// The issuer: finds a connection for the request and hands it over, or ends the
// attempt.

bool ClientCall::WaitsForReady() const {
  return controller_->wait_for_ready_set_ ? controller_->wait_for_ready_
                                          : route_->settings().wait_for_ready;
}

// Until when it may wait for the next attempt to connect.
std::int64_t ClientCall::Patience() const {
  return WaitsForReady() ? std::numeric_limits<std::int64_t>::max()
                         : deadline_ns_;
}

void ClientCall::SendRequest() {
  const std::int64_t now = NowNs();
  if (deadline_ns_ <= now) [[unlikely]]
    return FailTooLate();
  // A connection may close between Acquire and Insert; nothing was sent yet.
  for (int closed = 0;;) {
    auto connection = route_->Acquire(route_->connection_kind(),
                                      controller_->last_connection_, Patience(),
                                      controller_->balancing_key(), &choice_);
    if (!connection) {
      if (UseFailOver(connection.error().code())) {
        // Without a connection nobody else ends it.
        if (NowNs() >= deadline_ns_) return FailTooLate();
        if (!IsCancelled()) continue;
      }
      return FailUnsent(std::move(connection).error());
    }
    connection_ = *connection;
    if (!connection_->established()) [[unlikely]]
      KeepParts();
    id_ = connection_->calls().Insert(this);
    if (id_ != 0) break;
    if (!connection_->calls().closed() || ++closed == 3) return FailRefused();
    connection_->CloseIfThrough();  // This call may have kept it.
    std::exchange(connection_, nullptr)->Release(/*clean=*/false);
  }
  controller_->last_connection_ = connection_;
  controller_->remote_peer_ = connection_->peer();
  connection_->ExpectWait(deadline_ns_ - now);
  timer_armed_ = true;
  fiber::ArmTimer(this, deadline_ns_);
  if (!controller_->BeginAttempt(this)) {
    return FailAttempt(Outcome::kCancelled, {});
  }
  // First: protocols with a session queue their requests themselves.
  flare::Status status =
      connection_->OutputIsFull() ? WriteWithRoom() : WriteRequest(now);
  if (!status.ok()) return FailAttempt(Outcome::kFailed, std::move(status));
  if (one_way_) [[unlikely]]
    connection_->EndOneWay(id_);
}

// For another connection, if this one can't be made.
void ClientCall::KeepParts() {
  kept_ = true;
  body_ = std::move(body_).ToBuffer();
  if (!route_kept_) KeepRoute();
}

// The failures are functions of their own, which aren't inlined, since their
// texts would take most of the frame of SendRequest(). That lies on the stack
// of a fiber, and the fewer cache lines that takes, the better.
void ClientCall::FailTooLate() {
  FailAttempt(Outcome::kFailed, TooLateStatus());
}

flare::Status ClientCall::TooLateStatus() const {
  return flare::Status(STATUS_TIMEOUT,
                       "the deadline had passed before the request to " +
                           std::string(method_name()) + " was sent");
}

void ClientCall::FailRefused() {
  if (!connection_->calls().closed()) {
    return FailUnsent(flare::Status(
        STATUS_OVERLOADED, "too many calls wait on the connection to " +
                               connection_->peer().ToString()));
  }
  flare::Status why = connection_->close_reason();
  if (why.ok()) {  // It isn't closed yet.
    why = flare::Status(
        STATUS_FAIL_TO_CONNECT,
        connection_->peer().ToString() + " stops, and takes no further calls");
  }
  FailUnsent(std::move(why));
}

// Before BeginAttempt(), which looks whether the call has been cancelled.
void ClientCall::FailUnsent(flare::Status why) {
  FailAttempt(IsCancelled() ? Outcome::kCancelled : Outcome::kFailed,
              std::move(why));
}

bool ClientCall::IsCancelled() const {
  // acquire: the canceller's earlier changes are visible where the outcome is;
  // pairs with the store in StartCancel.
  return controller_->cancel_requested_.load(std::memory_order_acquire);
}

// WriteRequest() while too much output is waiting: callers that block wait
// until the server takes more, others fail.
flare::Status ClientCall::WriteWithRoom() {
  controller_->sent_ns_ = 0;  // An earlier attempt's.
  if (done_ != nullptr) {
    return flare::Status(
        STATUS_OVERLOADED,
        "too many bytes wait to be sent to " + connection_->peer().ToString());
  }
  do {
    switch (WaitForRoom()) {
      case WaitEnd::kRoom:
        break;
      case WaitEnd::kEnded:
        return {};
      case WaitEnd::kTimedOut:
        return TimeoutStatus();
    }
  } while (connection_->OutputIsFull());
  return WriteRequest(NowNs());
}

// A completer can't end the waiting, so it is interrupted to look for one.
ClientCall::WaitEnd ClientCall::WaitForRoom() {
  for (std::int64_t slice = kMinWaitSliceNs;;
       slice = std::min(2 * slice, kMaxWaitSliceNs)) {
    const std::int64_t now = NowNs();
    if (now >= deadline_ns_) return WaitEnd::kTimedOut;
    const auto result =
        connection_->WaitWritable(std::min(deadline_ns_, now + slice));
    // The closing ends the call.
    if (OtherHasLetGo() || result == io::RoomResult::kClosed) {
      return WaitEnd::kEnded;
    }
    if (result == io::RoomResult::kRoom) return WaitEnd::kRoom;
  }
}

// The request, as bytes.

// Fills in body_ and attachment_. With raw bytes `request` may be null.
flare::Status ClientCall::Serialize(const google::protobuf::Message* request) {
  if (controller_->has_request_raw_bytes_) {
    body_ = controller_->GetRequestRawBytes();
  } else {
    const flare::Status status = SerializePayload(format_, *request, &body_);
    if (!status.ok()) {
      return flare::Status(STATUS_SERIALIZE_REQUEST, status.message());
    }
    // The caller's message is there until the first attempt has been sent.
    if (attempts_left_ > 1) body_ = std::move(body_).ToBuffer();
  }
  if (controller_->bytes_ != nullptr) [[unlikely]] {
    flare::Status status = CheckOptions();
    if (!status.ok()) return status;
  }
  if (controller_->bytes_ != nullptr &&
      !controller_->GetRequestAttachment().empty()) {
    if (!route_->traits().attachments) {
      return flare::Status(STATUS_NOT_SUPPORTED,
                           route_->protocol() + " doesn't carry attachments; " +
                               std::string(kCarriersOfAttachments) + " do");
    }
    attachment_ = controller_->GetRequestAttachment();
  }
  set_compression(CompressionAlgorithm::kNone);
  attachment_compressed_ = false;
  if (!IsCompressed(controller_->compression_)) return {};
  if (route_->traits().Compresses(controller_->compression_)) {
    return CompressParts();
  }
  NoteUncompressed(controller_->compression_, route_->protocol());
  return {};
}

flare::Status ClientCall::CheckOptions() {
  const RpcClientController::Bytes& bytes = *controller_->bytes_;
  one_way_ = bytes.one_way;
  if (one_way_ && !route_->traits().one_way) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         route_->protocol() + " has no one-way calls; " +
                             std::string(kCarriersOfOneWayCalls) + " do");
  }
  // The others are closed, or go to another call, when a call has ended.
  if (one_way_ && route_->connection_kind() != ConnectionKind::kMultiplexed) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         "one-way calls need connections that calls share "
                         "(ConnectionKind::kMultiplexed)");
  }
  if (!bytes.metadata_error.empty()) {
    return flare::Status(STATUS_NOT_SUPPORTED, bytes.metadata_error);
  }
  if (!bytes.request_metadata.empty() && !route_->traits().metadata) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         route_->protocol() + " doesn't carry metadata");
  }
  return {};
}

flare::Status ClientCall::CompressParts() {
  set_compression(controller_->compression_);
  const bool both = route_->traits().attachment_compression;
  Buffer body = std::move(body_).ToBuffer();
  for (Buffer* part : {&body, &attachment_}) {
    if (part == &attachment_ && !both) continue;
    flare::Status status =
        CompressInPlace(compression(), STATUS_SERIALIZE_REQUEST,
                        "can't compress the request", part);
    if (!status.ok()) return status;
  }
  body_ = std::move(body);
  attachment_compressed_ = both && !attachment_.empty();
  return {};
}

// For each attempt, as the credential may have been renewed.
flare::Status ClientCall::AddCredentials() {
  if (!route_->traits().metadata) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         route_->protocol() + " doesn't carry metadata");
  }
  RpcClientController::Bytes& bytes = controller_->ForBytes();
  bytes.sent_metadata = bytes.request_metadata;
  return route_->credentials()->AddTo(&bytes.sent_metadata);
}

flare::Status ClientCall::WriteRequest(std::int64_t now_ns) {
  OutboundRequest request;
  request.correlation_id = id_;
  request.method = method_->full_name();
  request.timeout_ms = WireTimeout(deadline_ns_, now_ns);
  request.compression = compression();
  request.attachment_compressed = attachment_compressed_;
  request.one_way = one_way_;
  if (controller_->bytes_ != nullptr) [[unlikely]] {
    request.method = method_name();
    if (!controller_->bytes_->request_metadata.empty()) {
      request.metadata = &controller_->bytes_->request_metadata;
    }
  }
  if (route_->credentials() != nullptr) [[unlikely]] {
    if (flare::Status added = AddCredentials(); !added.ok()) return added;
    request.metadata = &controller_->bytes_->sent_metadata;
  }
  if (attempts_left_ > 0 || kept_) {
    request.body = body_;
    request.attachment = attachment_;
  } else {
    request.body = std::move(body_);
    request.attachment = std::move(attachment_);
    parts_sent_ = true;
  }
  BufferBuilder builder;
  flare::Status status =
      connection_->protocol().Write(std::move(request), &builder);
  if (!status.ok()) [[unlikely]] {
    if (status.code() == STATUS_FAIL_TO_CONNECT) TakeBack(&request);
    return status;
  }
  controller_->sent_ns_ = now_ns;
  // Queued; or closed, and the closing ends the call.
  static_cast<void>(connection_->Send(builder.DestructiveGet()));
  return {};
}

// The server takes no further calls on this connection, and of this one it
// knows nothing: another connection gets it.
void ClientCall::TakeBack(OutboundRequest* request) {
  if (parts_sent_) {
    body_ = std::move(request->body);
    attachment_ = std::move(request->attachment);
    parts_sent_ = false;
  }
  if (!route_kept_) KeepRoute();
  turned_away_ = true;
  connection_->Retire();
}

// The reply.

flare::Status ClientCall::ReadReply() {
  controller_->received_ns_ = received_ns_;
  if (inbound_->metadata != nullptr) [[unlikely]] {
    controller_->ForBytes().response_metadata = std::move(inbound_->metadata);
  }
  if (inbound_->status != STATUS_SUCCESS) return ReadFailure();
  flare::Status status = ReadAttachment();
  if (status.ok()) status = ReadBody();
  if (!status.ok()) {
    unreadable_ = true;
    // Nothing is left of a reply that can't be read in full.
    if (!controller_->accept_raw_response_) response_->Clear();
    if (controller_->bytes_ != nullptr) {
      controller_->bytes_->response_attachment.Clear();
    }
  }
  return status;
}

// Unreadable metadata of a failure is left out: that says less than the failure
// itself.
flare::Status ClientCall::ReadFailure() {
  const InboundResponse& reply = *inbound_;
  unreadable_ = reply.unreadable;
  oversized_ = reply.oversized;
  unprocessed_ = reply.unprocessed;
  if (connection_->protocol().traits().failures_have_messages) {
    if (!reply.attachment.empty()) (void)ReadAttachment();
    if (!reply.body.empty()) (void)ReadBody();
  }
  return flare::Status(reply.status, std::string(reply.description));
}

flare::Status ClientCall::DecompressPart(CompressionAlgorithm algorithm,
                                         Buffer* part) {
  if (algorithm == CompressionAlgorithm::kNone || part->empty()) return {};
  auto bytes = Decompress(algorithm, *part,
                          connection_->settings().max_decompressed_size);
  if (!bytes) {
    oversized_ = bytes.error().code() == EMSGSIZE;
    return flare::Status(
        STATUS_MALFORMED_DATA,
        "the reply can't be decompressed: " + bytes.error().message());
  }
  *part = *std::move(bytes);
  return {};
}

flare::Status ClientCall::ReadAttachment() {
  InboundResponse& reply = *inbound_;
  if (reply.attachment_compressed) {
    flare::Status status = DecompressPart(reply.compression, &reply.attachment);
    if (!status.ok()) return status;
  }
  if (!reply.attachment.empty()) {
    controller_->ForBytes().response_attachment = std::move(reply.attachment);
  }
  return {};
}

// If it can't be read the response is empty.
flare::Status ClientCall::ReadBody() {
  InboundResponse& reply = *inbound_;
  flare::Status status = DecompressPart(reply.compression, &reply.body);
  if (controller_->accept_raw_response_) {
    if (status.ok()) {
      controller_->ForBytes().response_raw_bytes = std::move(reply.body);
    }
    return status;
  }
  if (status.ok()) {
    status = ParsePayload(format_, reply.body, response_);
    if (!status.ok()) oversized_ = false;
  }
  if (!status.ok()) response_->Clear();
  controller_->parsed_ns_ = NowNs();
  return status;
}

}  // namespace flare::rpc

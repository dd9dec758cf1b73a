//  [LC1] The caller's fiber waits for a unary call, and its handler has another
//        one. The first of these closes the call, under lock_: the reply, the
//        cancellation by the controller or by the context, the deadline. The
//        caller's objects are used by the caller's fiber alone, behind that.
//  [LC2] The handler has a reference from before it is called until it has run
//        `done`, and objects of its own: the call may be over long before.
#include "flare/rpc/mock/local_call.h"

#include <chrono>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/task.h"
#include "flare/rpc/client/context_stop.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/mock/local_pipe.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/reply_metadata.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream_wire.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

using fiber::StopCause;

struct StopLocalCall {
  Function<void()>* stop;
  fiber::ExecutionContext* context;
  void operator()() const {
    // Its deadline is the call's, which the call itself waits for.
    if (context->stop_cause() == StopCause::kDeadline &&
        context->deadline_ns() != 0) {
      return;
    }
    (*stop)();
  }
};

// A call that no handler gets to know.
void Refuse(LocalCall::Arguments* arguments, CompositeCall* outcome,
            const flare::Status& why) {
  arguments->on_handled();
  outcome->Fail(why.code(), why.message());
  outcome->Tell();
}

// The call's deadline, and the context that it is in, or null: as of a call
// that a server serves.
std::int64_t DeadlineOf(const ClientInterceptedCall& call,
                        const CompositeCall& outcome, std::int64_t now_ns,
                        fiber::ExecutionContext** context) {
  const bool inherits =
      call.inherits_context() && call.controller().GetInheritsContext();
  *context = inherits ? fiber::ExecutionContext::Current() : nullptr;
  return DeadlineIn(*context, outcome.deadline_ns().value_or(SaturatingAdd(
                                  now_ns, ToNs(call.default_timeout()))));
}

flare::Status DeadlineHasPassed() {
  return flare::Status(STATUS_TIMEOUT,
                       "the deadline had passed before the call was made");
}

flare::Status CheckRequest(const google::protobuf::Message& request) {
  if (request.IsInitialized()) return flare::Status();
  return flare::Status(STATUS_SERIALIZE_REQUEST,
                       "the request lacks required fields: " +
                           request.InitializationErrorString());
}

}  // namespace

bool CopyMessage(const google::protobuf::Message& from,
                 google::protobuf::Message* to) {
  if (from.GetDescriptor() != to->GetDescriptor()) {
    return to->ParsePartialFromString(from.SerializePartialAsString());
  }
  to->CopyFrom(from);
  return true;
}

LocalCall::LocalCall(Arguments* arguments, std::int64_t deadline_ns)
    : method_(arguments->method),
      handler_(std::move(arguments->handler)),
      on_handled_(std::move(arguments->on_handled)),
      request_(std::move(arguments->request)),
      context_(fiber::ExecutionContext::Create(deadline_ns)) {
  const auto prototype = [](const google::protobuf::Descriptor* type) {
    return google::protobuf::MessageFactory::generated_factory()->GetPrototype(
        type);
  };
  response_.reset(prototype(method_->output_type())->New());
  // Services of protobuf's own style get one in any case.
  if (request_ == nullptr) {
    request_.reset(prototype(method_->input_type())->New());
  }
  RpcClientController& client = arguments->call->controller();
  controller_.call_ = this;
  controller_.deadline_ns_ = deadline_ns;
  controller_.received_ns_ = NowNs();
  controller_.dispatched_ns_ = controller_.parsed_ns_ =
      controller_.received_ns_;
  controller_.has_bytes_ = true;
  controller_.request_attachment_ = client.GetRequestAttachment();
  const Metadata& metadata = *client.MutableMetadata();
  if (!metadata.empty()) controller_.ForMetadata().request = metadata;
}

// Objects that the handler has captured may go with the mock, which waits.
LocalCall::~LocalCall() {
  handler_ = nullptr;
  on_handled_();
}

void LocalCall::Make(Arguments arguments) {
  const google::protobuf::MethodDescriptor& method = *arguments.method;
  if (method.client_streaming() || method.server_streaming()) {
    MakeStreaming(&arguments);
  } else {
    MakeUnary(&arguments);
  }
}

// --------------------------------------------------------------------------
// The caller's fiber
// --------------------------------------------------------------------------

void LocalCall::MakeUnary(Arguments* arguments) {
  RpcClientController& controller = arguments->call->controller();
  google::protobuf::Message* const response =
      controller.GetAcceptResponseRawBytes() ? nullptr
                                             : arguments->call->response();
  CompositeCall outcome(&controller);
  fiber::ExecutionContext* context = nullptr;
  const std::int64_t now = NowNs();
  const std::int64_t deadline =
      DeadlineOf(*arguments->call, outcome, now, &context);
  if (deadline <= now) return Refuse(arguments, &outcome, DeadlineHasPassed());
  flare::Status fit = CheckRequest(*arguments->request);
  if (fit.ok()) fit = outcome.CheckMetadata();
  if (!fit.ok()) return Refuse(arguments, &outcome, fit);
  const auto call = MakeRefCounted<LocalCall>(arguments, deadline);
  if (controller.GetOneWay()) {
    fiber::Spawn([call] { call->Serve(); });
    return outcome.Tell();
  }
  outcome.Begin(call.Get());
  Function<void()> stop = [&call] { call->Close(State::kContextStopped); };
  std::optional<ContextStop<StopLocalCall>> context_stop;
  if (context != nullptr) {
    context_stop.emplace(context, StopLocalCall{&stop, context});
  }
  // Unless it was cancelled before it began.
  if (!call->ended_.IsSet()) fiber::Spawn([call] { call->Serve(); });
  const State state = call->WaitForEnd(deadline);
  context_stop.reset();
  outcome.End();
  switch (state) {
    case State::kAnswered:
      call->GiveReply(response, &outcome);
      break;
    case State::kTooLate:
      call->context_->RequestStop(StopCause::kDeadline);
      outcome.Fail(STATUS_TIMEOUT, "the mock of " +
                                       std::string(call->method_->full_name()) +
                                       " has not answered in time");
      break;
    case State::kContextStopped:
      call->context_->RequestStop(context->stop_cause());
      outcome.Fail(STATUS_FAILED, ContextEnded(*context).message());
      break;
    default:
      call->context_->RequestStop(StopCause::kCancelled);
      outcome.FailAsCancelled();
  }
  outcome.Tell();
}

// The caller's stream is an ordinary one, with a pipe for a wire.
void LocalCall::MakeStreaming(Arguments* arguments) {
  CompositeCall outcome(&arguments->call->controller());
  fiber::ExecutionContext* context = nullptr;
  const std::int64_t now = NowNs();
  const std::int64_t deadline =
      DeadlineOf(*arguments->call, outcome, now, &context);
  if (deadline <= now) return Refuse(arguments, &outcome, DeadlineHasPassed());
  const auto call = MakeRefCounted<LocalCall>(arguments, deadline);
  LocalPipe pipe = MakeLocalPipe();
  RefPtr<CallStream> stream = CallStream::Create({.is_server = true});
  CHECK(stream->Start(std::move(pipe.server), /*output=*/nullptr));
  stream->SetMetadataSource([controller = &call->controller_](
                                StreamWire::MetadataPlace place) -> Metadata* {
    auto* const metadata = controller->metadata_.get();
    if (metadata == nullptr) return nullptr;
    if (place == StreamWire::MetadataPlace::kTrailing) {
      JoinTrailers(&metadata->response, &metadata->trailing);
    }
    return &metadata->response;
  });
  call->stream_.Take(RefPtr<StreamReceiver>(adopt_ref, stream.Leak()));
  call->stream_.StopOnFailure(call->context_);
  arguments->call->UseWire(std::move(pipe.client));
  fiber::Spawn([call] { call->Serve(); });
  arguments->next->Run();
  arguments->call->TakeWire();  // Drops one that wasn't used.
}

LocalCall::State LocalCall::WaitForEnd(std::int64_t deadline_ns) {
  if (!ended_.WaitUntil(deadline_ns)) Close(State::kTooLate);
  ScopedLock guard(lock_);
  return state_;
}

bool LocalCall::Close(State state) {
  {
    ScopedLock guard(lock_);
    if (state_ != State::kOpen) return false;  // [LC1]
    state_ = state;
  }
  ended_.Set();
  return true;
}

void LocalCall::GiveReply(google::protobuf::Message* response,
                          CompositeCall* outcome) {
  Reply reply;
  {
    ScopedLock guard(lock_);
    reply = std::move(reply_);
  }
  flare::Status status = std::move(reply.status);
  if (response == nullptr) {
    reply.rest.raw_bytes =
        reply.raw_bytes ? *std::move(reply.raw_bytes)
                        : CreateBufferSlow(reply.message->SerializeAsString());
  } else if (!reply.raw_bytes) {
    static_cast<void>(CopyMessage(*reply.message, response));
  } else if (!response->ParseFromString(FlattenSlow(*reply.raw_bytes)) &&
             status.ok()) {
    status = flare::Status(STATUS_MALFORMED_DATA,
                           "the mock's bytes are no such message");
  }
  outcome->TakeReply(std::move(reply.rest));
  if (!status.ok()) outcome->Fail(status.code(), status.message());
}

// --------------------------------------------------------------------------
// The handler's fiber, and others
// --------------------------------------------------------------------------

void LocalCall::Serve() {
  Ref();  // [LC2]
  if (stream_.Get() != nullptr && !method_->client_streaming()) {
    const flare::Status status = ReadSingleRequest();
    if (!status.ok()) {
      controller_.SetFailed(status.code(), status.message());
      return Run();
    }
  }
  flare::Status thrown;
  try {
    const fiber::ExecutionContextScope scope(context_);
    handler_(request_.get(), response_.get(), &controller_, this);
    return;
  } catch (...) {
    thrown = StatusOfException("a mock's handler");
  }
  if (!TakeEnd()) return;
  controller_.SetFailed(thrown.code(), thrown.message());
  End();
}

flare::Status LocalCall::ReadSingleRequest() {
  Buffer message;  // request_ has it, as a message.
  return stream_.ReadSingle(/*timeout=*/std::chrono::nanoseconds(0), &message);
}

void LocalCall::Run() {
  CHECK(TakeEnd()) << method_->full_name() << " has run `done` twice";
  End();
}

bool LocalCall::TakeEnd() {
  ScopedLock guard(lock_);
  return !std::exchange(handled_, true);
}

void LocalCall::End() {
  if (stream_.Get() != nullptr) {
    FinishStream();
  } else {
    WriteResponse();
  }
  on_stop_.reset();
  RunCallbacks();
  Deref();  // [LC2]
}

void LocalCall::FinishStream() {
  if (!controller_.Failed() && !method_->server_streaming() &&
      !stream_->WriteMessage(*response_, /*last=*/false, CallStream::kNever)) {
    controller_.SetFailed(STATUS_IO_ERROR, "the caller has gone");
  }
  stream_->Finish(controller_.Failed() ? flare::Status(controller_.ErrorCode(),
                                                       controller_.ErrorText())
                                       : flare::Status());
  stream_.Detach();
}

// Streams are written to: their calls end with their methods.
void LocalCall::WriteResponse() {
  if (stream_.Get() != nullptr) return;
  {
    ScopedLock guard(lock_);
    if (std::exchange(replied_, true)) return;
  }
  Reply reply;
  if (controller_.Failed()) {
    reply.status =
        flare::Status(controller_.ErrorCode(), controller_.ErrorText());
  }
  reply.message.reset(response_->New());
  reply.message->CopyFrom(*response_);
  if (controller_.has_raw_bytes_) reply.raw_bytes = controller_.raw_bytes_;
  reply.rest.attachment = controller_.response_attachment_;
  if (controller_.metadata_ != nullptr) {
    RpcServerController::CallMetadata& metadata = *controller_.metadata_;
    JoinTrailers(&metadata.response, &metadata.trailing);
    reply.rest.metadata =
        std::make_unique<Metadata>(std::move(metadata.response));
  }
  {
    ScopedLock guard(lock_);
    reply_ = std::move(reply);
  }
  Close(State::kAnswered);
}

// --------------------------------------------------------------------------
// Cancellation, as the handler sees it
// --------------------------------------------------------------------------

bool LocalCall::IsCanceled() const {
  return context_->stop_requested() ||
         (controller_.deadline_ns_ != 0 && NowNs() >= controller_.deadline_ns_);
}

void LocalCall::NotifyOnCancel(google::protobuf::Closure* callback) {
  {
    ScopedLock guard(lock_);
    callbacks_.push_back(callback);
  }
  if (on_stop_) {
    if (context_->stop_requested()) RunCallbacks();
    return;
  }
  on_stop_.emplace(context_->stop_token(), [this] {
    fiber::Spawn(
        [self = RefPtr<LocalCall>(ref_ptr, this)] { self->RunCallbacks(); });
  });
}

void LocalCall::RunCallbacks() {
  std::vector<google::protobuf::Closure*> callbacks;
  {
    ScopedLock guard(lock_);
    callbacks.swap(callbacks_);
  }
  for (google::protobuf::Closure* callback : callbacks) callback->Run();
}

}  // namespace flare::rpc

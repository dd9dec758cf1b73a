#include "flare/rpc/server/server_call.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/endpoint.h"
#include "flare/base/object_pool.h"
#include "flare/base/string.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/own_request.h"
#include "flare/rpc/server/call_compression.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/handler_exception.h"
#include "flare/rpc/server/interceptor_chain.h"
#include "flare/rpc/server/reply_metadata.h"
#include "flare/rpc/server/thrown_calls.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/wire/payload.h"

namespace flare::rpc {

// There is one for each call that is under way
// (docs/decisions/0037-small-calls.md).
static_assert(sizeof(ServerCall) <= 680);

namespace {

using Failure = ServerState::Failure;
using fiber::BorrowedExecutionContextScope;
using fiber::StopCause;

// A request whose message can't take more isn't measured, and one that is
// measured and takes no more isn't counted.
constexpr std::size_t kLittleGrowth = 32 << 10;
constexpr std::size_t kLittleMessage = 8 << 10;

constinit ThrownCalls thrown_calls;

flare::Status NoMemoryForReply() {
  return flare::Status::Lenient(STATUS_FAILED, "no memory for the reply");
}

// All calls of the process, those in their pool included. The pool makes and
// destroys some only when the number of calls under way grows and shrinks.
class AllCalls {
 public:
  static AllCalls& Instance() {
    // Never destroyed: threads give calls back at their ends.
    static AllCalls& all = *new AllCalls();
    return all;
  }

  void Add(ServerCall* call) {
    ScopedLock guard(mutex_);
    calls_.PushBack(call);
  }
  void Remove(ServerCall* call) {
    ScopedLock guard(mutex_);
    calls_.Remove(call);
  }
  std::vector<const ServerCall*> Get() {
    std::vector<const ServerCall*> calls;
    ScopedLock guard(mutex_);
    for (const ServerCall& call : calls_) calls.push_back(&call);
    return calls;
  }

 private:
  ThreadMutex mutex_;
  IntrusiveList<ServerCall> calls_ FLARE_GUARDED_BY(mutex_);
};

}  // namespace

ServerCall::ServerCall() {
  run = &ServerCall::RunTask;
  AllCalls::Instance().Add(this);
}

ServerCall::~ServerCall() { AllCalls::Instance().Remove(this); }

std::vector<const ServerCall*> ServerCall::All() {
  return AllCalls::Instance().Get();
}

std::optional<ServerCall::Sight> ServerCall::sight() const {
  if (run != &ServerCall::RunTask || connection_ == nullptr ||
      controller_.received_ns_ == 0) {
    return std::nullopt;
  }
  return Sight{.connection = connection_,
               .protocol = protocol_,
               .method = admission_.method(),
               .peer = controller_.remote_peer_,
               .received_ns = controller_.received_ns_,
               .counts = admission_.has_place()};
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

[[gnu::always_inline]] inline void ServerCall::GiveBack() {
  if (request_ != nullptr) [[unlikely]]
    ReleaseRequest();
  context_.Recycle();
  ObjectPool<ServerCall>::Put(this);
}

void ServerCall::Prepare(CallConnection* connection, ServerProtocol* protocol,
                         std::int64_t received_ns) {
  connection_ = connection;
  protocol_ = protocol;
  admission_.Prepare();
  responded_ = false;
  completion_.Prepare();
  stream_.Prepare(request_->stream != nullptr);
  controller_.call_ = this;
  controller_.received_ns_ = received_ns;
  controller_.remote_peer_ = &connection->peer();
}

const PeerIdentity* ServerCall::peer_identity() const {
  return connection_ == nullptr ? nullptr : connection_->peer_identity();
}

void ServerCall::CountHeld(std::size_t bytes) {
  admission_.Hold(connection_, bytes);
}

// --- The task ---

void ServerCall::RunTask(fiber::Task* self) {
  static_cast<ServerCall*>(self)->Serve();
}

// Without memory the call fails if its message took too much, else its
// connection ends.
void ServerCall::Serve() {
  bool lacks_memory = false;
  try {
    if (!Begin()) return;
  } catch (const std::bad_alloc&) {
    lacks_memory = true;  // A fiber mustn't be suspended in here.
  }
  if (lacks_memory) [[unlikely]]
    return FailWithoutMemory();
  const Method& method = *admission_.method();
  if (method.interceptors != nullptr) [[unlikely]]
    return ServeIntercepted();
  if (!CallService(method)) [[unlikely]]
    return;
  if (completion_.MethodReturned()) GiveBack();
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
  if (request_->own != nullptr || stream_.expected() ||
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
  return AskToBegin();
}

// For calls that have waited.
bool ServerCall::AskToBegin() {
  switch (admission_.Ask(connection_, *request_, controller_.received_ns_,
                         controller_.dispatched_ns_)) {
    case CallGate::Verdict::kBegin:
      break;
    case CallGate::Verdict::kOverloaded:
      FailOverloaded();
      return false;
    case CallGate::Verdict::kStopping:
      FailStopping();
      return false;
  }
  return true;
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

// False: the call is over. True: call the method.
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

  const Method* const method = connection_->FindMethod(head);
  if (method == nullptr) [[unlikely]]
    return BeginGeneric(waited_ns);
  const bool streams = method->streaming();
  if (streams != stream_.expected() && !AdmitStream(*method)) [[unlikely]]
    return false;
  if (!EnterMethod(method, waited_ns)) return false;

  if (stream_.expected()) [[unlikely]] {
    if (!BeginStream()) return false;
  } else if (flare::Status parsed = ParseBody(); !parsed.ok()) {
    return FailParsing(parsed), false;
  } else if (streams && !StreamReply()) [[unlikely]] {
    return false;
  }
  OpenContext(head);
  // The method's work for its caller is over when the caller gives it up.
  if (stream_.expected()) [[unlikely]]
    stream_.StopOnFailure(context_.Share());
  return true;
}

// False: the call has failed, as too many others run.
[[gnu::always_inline]] inline bool ServerCall::EnterMethod(
    const Method* method, std::int64_t waited_ns) {
  if (waited_ns > method->max_wait_ns || !admission_.Enter(method)) {
    return FailOverloaded(), false;
  }
  method->counters.Begin(fiber::GetCurrentWorkerIndex());
  return true;
}

// The request is parsed.
[[gnu::always_inline]] inline void ServerCall::OpenContext(
    const RequestHead& head) {
  controller_.parsed_ns_ = NowNs();
  admission_.NoteBegun();
  format_ = head.format;
  unasked_compression_ = head.unasked_compression;
  // Some replies repeat parts of the request.
  if (!head.reply_needs_request) {
    ticket_ = request_->ticket;
    ReleaseRequest();
  }
  context_.Open(this, controller_.deadline_ns_);
}

// A call of a method that no service here has: as BeginRpc(). Its message isn't
// parsed.
bool ServerCall::BeginGeneric(std::int64_t waited_ns) {
  const Method* const method = connection_->state().methods.fallback();
  if (method == nullptr) return FailUnknown(), false;
  const RequestHead& head = request_->head;
  if (stream_.expected() || head.format != PayloadFormat::kProtobuf) {
    Fail(flare::Status(STATUS_METHOD_NOT_FOUND,
                       "Method [" + std::string(head.method) +
                           "] is known by its name alone, so it takes single "
                           "messages in protobuf's binary format only."),
         Failure::kUnknown);
    return false;
  }
  if (!EnterMethod(method, waited_ns)) return false;
  if (flare::Status status = UnpackBody(); !status.ok()) {
    return FailParsing(status), false;
  }
  messages_.Acquire(*method);
  request_bytes_ = 0;
  if (const std::size_t bytes = request_->body.size(); bytes > kLittleMessage) {
    CountHeld(bytes);
    if (connection_->IsGreedy()) return FailOverloaded(), false;
  }
  RpcServerController::CallMetadata& parts = controller_.ForMetadata();
  parts.generic_method = head.method;
  parts.generic_request = std::move(request_->body);
  OpenContext(head);
  return true;
}

// False: the method threw, and the call isn't its task's any more.
[[gnu::always_inline]] inline bool ServerCall::CallService(
    const Method& method) {
  completion_.BeginMethod();
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

// With interceptors: the task answers the call when they have returned.
[[gnu::always_inline]] inline void ServerCall::ServeIntercepted() {
  completion_.BeginIntercepted();
  {
    const BorrowedExecutionContextScope scope(context_.Get());
    const Method& method = *admission_.method();
    const google::protobuf::Message* request = messages_.request();
    google::protobuf::Message* response = messages_.response();
    if (stream_.expected()) [[unlikely]] {
      if (method.descriptor->client_streaming()) request = nullptr;
      if (method.descriptor->server_streaming()) response = nullptr;
    }
    InterceptedCall call(method.descriptor, &controller_, request, response);
    InterceptorChain(*method.interceptors, &call, [this] {
      CallAndWait();
    }).RunAll();
  }
  if (completion_.Seal()) [[unlikely]] {
    RespondThrown(*admission_.method());
    return FinishThrown();
  }
  Respond(/*last=*/true);
  Finish();
}

// Calls the service, and waits for `done` unless the method throws before.
[[gnu::always_inline]] inline void ServerCall::CallAndWait() {
  try {
    const Method& method = *admission_.method();
    method.service->CallMethod(method.descriptor, &controller_,
                               messages_.request(), messages_.response(), this);
  } catch (...) {  // As in CallService().
    ClaimForException(*admission_.method());
    return;
  }
  completion_.WaitForDone();
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
  if (!completion_.ClaimByException()) return false;
  controller_.SetFailed(STATUS_FAILED, std::move(text));
  return true;
}

void ServerCall::Run() {
  if (!completion_.ClaimByDone()) [[unlikely]]
    return;
  Respond(/*last=*/true);
  Finish();
}

void ServerCall::Refuse() {
  admission_.Forgo();
  try {
    if (ParseHead()) return FailOverloaded();
  } catch (const std::bad_alloc&) {
    return GiveUp();  // Which waits for nobody: the call has no context.
  }
  Finish();
}

void ServerCall::Abandon() {
  if (admission_.held_bytes() != 0) CountHeld(0);
  controller_.Reset();
  admission_.Forgo();
  connection_ = nullptr;
  Recycle();
}

// --- The request's message ---

flare::Status ServerCall::ParseBody() {
  if (flare::Status status = UnpackBody(); !status.ok()) return status;
  messages_.Acquire(*admission_.method());
  return ParseMessage(request_->head.format, &request_->body);
}

// Decompresses the request, and gives all but its message to the controller.
[[gnu::always_inline]] inline flare::Status ServerCall::UnpackBody() {
  const RequestHead& head = request_->head;
  if (IsCompressed(head.compression)) {
    if (flare::Status status = Decompress(); !status.ok()) return status;
  }
  if (!request_->attachment.empty()) {
    controller_.request_attachment_ = std::move(request_->attachment);
    controller_.has_bytes_ = true;
  }
  if (request_->metadata != nullptr) [[unlikely]] {
    controller_.ForMetadata().request = std::move(*request_->metadata);
  }
  controller_.acceptable_compressions_ = head.acceptable_compressions;
  return flare::Status();
}

flare::Status ServerCall::Decompress() {
  ServerState& state = connection_->state();
  flare::Status status = DecompressRequest(state.protocols().limits(),
                                           protocol_->traits(), request_);
  if (!status.ok()) return status;
  controller_.request_compressed_ = true;
  admission_.CountUnpacked(&state,
                           request_->body.size() + request_->attachment.size());
  return status;
}

// The request's message, of which no more than `body` is left to read.
flare::Status ServerCall::ParseMessage(PayloadFormat format, Buffer* body) {
  request_bytes_ = body->size();
  const std::size_t growth =
      request_bytes_ * admission_.method()->memory_per_parsed_byte;
  if (growth > kLittleGrowth) [[unlikely]]
    return ParseMuch(format, body, growth);
  flare::Status status = ParsePayload(format, *body, messages_.request());
  body->Clear();
  return status;
}

// A request that is parsed may take many times the bytes that it came in: it is
// counted as it is then. `growth`: an upper bound of that.
flare::Status ServerCall::ParseMuch(PayloadFormat format, Buffer* body,
                                    std::size_t growth) {
  ServerState& state = connection_->state();
  std::unique_lock alone(state.large_parse(), std::defer_lock);
  if (!state.HasRoomFor(growth)) {
    if (controller_.deadline_ns_ == 0) {
      alone.lock();
    } else {
      static_cast<void>(
          alone.try_lock_until(ToTimePoint(controller_.deadline_ns_)));
    }
    // Requests of those who have left would only hold up the others.
    if (!alone.owns_lock() ||
        connection_->leavers() == CallConnection::Leavers::kAll) {
      body->Clear();
      return flare::Status(OverloadedCode(), kOverloadedText);
    }
  }
  flare::Status status = ParsePayload(format, *body, messages_.request());
  body->Clear();
  const std::size_t bytes = messages_.request()->SpaceUsedLong() +
                            controller_.request_attachment_.size();
  if (bytes <= kLittleMessage && admission_.held_bytes() == 0) return status;
  CountHeld(bytes);
  // The next call gets another message.
  request_bytes_ = std::max(request_bytes_, kMaxKeptBytes + 1);
  if (status.ok() && connection_->IsGreedy()) {
    return flare::Status(OverloadedCode(), kOverloadedText);
  }
  return status;
}

void ServerCall::FailParsing(const flare::Status& why) {
  if (why.code() == OverloadedCode()) return Fail(why, Failure::kOverloaded);
  if (why.code() == STATUS_TIMEOUT) return Fail(why, Failure::kOther);
  Fail(why, Failure::kMalformed, FailureDetail::kUnreadRequest);
}

// --- The stream of a streaming call ---

// False: the method has no streams, or has some, other than the caller thinks
// or the protocol carries. The call has failed.
bool ServerCall::AdmitStream(const Method& method) {
  const ServedStream::Mismatch mismatch =
      ServedStream::MismatchOf(method, *protocol_, ticket());
  if (mismatch.why.empty()) return true;
  Fail(flare::Status(STATUS_MALFORMED_DATA,
                     "Method [" + std::string(method.name()) + "] " +
                         std::string(mismatch.why)),
       Failure::kMalformed, mismatch.detail);
  return false;
}

// False: as many streams run as may. The call has failed.
bool ServerCall::TakeStreamPlace() {
  std::string_view why;
  if (admission_.EnterStream(connection_, &why)) return true;
  Fail(flare::Status(OverloadedCode(), std::string(why)), Failure::kOverloaded);
  return false;
}

// The messages of the call, of which a method that takes one gets the first.
// False: the call has failed.
bool ServerCall::BeginStream() {
  if (!TakeStreamPlace()) return false;
  stream_.Take(std::move(request_->stream));
  if (request_->metadata != nullptr) [[unlikely]] {
    controller_.ForMetadata().request = std::move(*request_->metadata);
  }
  GiveMetadataToStream();
  controller_.acceptable_compressions_ = request_->head.acceptable_compressions;
  stream_->SetCompressionSource([this] { return controller_.compression_; });
  messages_.Acquire(*admission_.method());
  request_bytes_ = 0;
  if (!admission_.method()->descriptor->client_streaming()) {
    Buffer message;
    flare::Status status = stream_.ReadSingle(
        connection_->state().options().message_timeout, &message);
    if (status.ok()) status = ParseMessage(stream_->format(), &message);
    if (!status.ok()) return FailParsing(status), false;
  }
  stream_->Accept();
  return true;
}

// The request was a single message, and the reply is a stream. False: the call
// has failed.
bool ServerCall::StreamReply() {
  if (!TakeStreamPlace()) return false;
  switch (stream_.OpenReply(connection_, protocol_, ticket(),
                            request_->head.format, controller_.deadline_ns_)) {
    case ServedStream::Opened::kOpen:
      break;
    case ServedStream::Opened::kRefused:
      Fail(flare::Status(STATUS_IO_ERROR, "the connection is closed"),
           Failure::kOther);
      return false;
    case ServedStream::Opened::kClosed:
      admission_.method()->counters.Refuse(fiber::GetCurrentWorkerIndex(),
                                           STATUS_IO_ERROR,
                                           /*overloaded=*/false);
      FinishUnanswered();
      return false;
  }
  GiveMetadataToStream();
  stream_->OnEnd(flare::Status());  // No request follows.
  return true;
}

void ServerCall::GiveMetadataToStream() {
  stream_->SetMetadataSource(
      [this](StreamWire::MetadataPlace place) -> Metadata* {
        auto* const metadata = controller_.metadata_.get();
        if (metadata == nullptr) return nullptr;
        if (place == StreamWire::MetadataPlace::kTrailing) {
          JoinTrailers(&metadata->response, &metadata->trailing);
        }
        return &metadata->response;
      });
}

// --- Waiting for the peer ---

// While the peer takes no replies, the request waits, which is mostly smaller
// than its reply. False: the connection is closed. Kept out of line: for few
// calls.
[[gnu::noinline]] bool ServerCall::WaitToBegin() {
  admission_.StopMetering(&connection_->state());
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

bool ServerCall::WaitToReply() {
  return connection_->HasRoom() || BlockToReply();
}

bool ServerCall::BlockToReply() {
  std::size_t bytes = 0;
  if (messages_.acquired()) {
    bytes += messages_.response()->ByteSizeLong();
  }
  if (controller_.has_bytes_) {
    bytes += controller_.response_attachment_.size();
    bytes += controller_.raw_bytes_.size();
  }
  admission_.HoldReply(connection_, bytes);
  if (!fiber::IsFiberWorker()) return true;
  // The time that it takes is the peer's, or that of earlier calls: neither
  // rules of admission nor the method's usual time count it.
  admission_.StopMetering(&connection_->state());
  const std::int64_t began_ns = NowNs();
  const bool is_open =
      connection_->WaitForTurn(protocol_, ticket(), /*patient=*/false);
  controller_.dispatched_ns_ += NowNs() - began_ns;
  return is_open;
}

// --- Requests that serve themselves ---

OwnCall ServerCall::MakeOwnCall() {
  return OwnCall({.connection = connection_,
                  .protocol = protocol_,
                  .ticket = &request_->ticket,
                  .received_ns = controller_.received_ns_,
                  .dispatched_ns = controller_.dispatched_ns_},
                 &admission_, &context_, &stream_, this);
}

void ServerCall::ServeOwn() {
  admission_.NoteBegun();  // It came parsed.
  OwnCall call = MakeOwnCall();
  request_->own->Serve(&call);
  completion_.ClaimByTask();
  Finish();
}

// Unless limits don't hold for it.
void ServerCall::RefuseOwn(std::string_view text, Failure failure) {
  if (request_->own->IsExempt()) {
    controller_.dispatched_ns_ = NowNs();
    return ServeOwn();
  }
  connection_->state().CountFailure(connection_->group(), failure);
  OwnCall call = MakeOwnCall();
  request_->own->Refuse(text, &call);
  Finish();
}

// --- The reply ---

void ServerCall::Respond(bool last) {
  if (stream_.expected()) [[unlikely]] {
    if (last) FinishStream();
    return;
  }
  if (std::exchange(responded_, true)) return;
  try {
    WaitToReply();
  } catch (const std::bad_alloc&) {  // It is made out of turn.
  }
  OutboundResponse response;
  if (flare::Status status = TryToFill(last, &response); !status.ok()) {
    NoteFailure(status);
    response = OutboundResponse();
  }
  response.status = controller_.error_code_;
  if (response.status != STATUS_SUCCESS) {
    response.description = controller_.error_text_;
    connection_->state().CountFailure(connection_->group(),
                                      ServerState::FailureOf(response.status));
  }
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  admission_.method()->counters.End(worker, response.status,
                                    controller_.received_ns_,
                                    controller_.dispatched_ns_);
  if (last) LeaveLimits(worker);
  SendOrClose([&] { protocol_->Write(ticket(), std::move(response)); });
}

void ServerCall::NoteFailure(const flare::Status& why) {
  controller_.error_code_ = why.code();
  try {
    controller_.error_text_ = why.message();
  } catch (const std::bad_alloc&) {  // The code has to do.
  }
}

// Calls send(), which sends a reply, or its end. Without memory the connection
// is closed.
template <class Send>
[[gnu::always_inline]] inline void ServerCall::SendOrClose(Send&& send) {
  try {
    send();
  } catch (const std::bad_alloc&) {
    connection_->CloseOutOfMemory();
    protocol_->GiveUp();
  }
}

// Fails the call if there is no memory for its reply: `done` is run by the
// service, which doesn't expect exceptions of it. The method has run, so not as
// a call that is refused, which may be made again.
[[gnu::always_inline]] inline flare::Status ServerCall::TryToFill(
    bool last, OutboundResponse* response) {
  try {
    return FillResponse(last, response);
  } catch (const std::bad_alloc&) {
    return NoMemoryForReply();
  }
}

flare::Status ServerCall::FillResponse(bool last, OutboundResponse* response) {
  // Interceptors look at an early response, too, when the method has returned.
  const bool keep = !last && admission_.method()->interceptors != nullptr;
  const auto take = [keep](Buffer& bytes) {
    return keep ? Buffer(bytes) : std::move(bytes);
  };
  if (controller_.has_bytes_ && controller_.has_raw_bytes_) {
    response->body = take(controller_.raw_bytes_);
  } else {
    flare::Status status =
        SerializePayload(format_, *messages_.response(), &response->body);
    if (status.ok()) {
      response_bytes_ = response->body.size();
    } else if (!controller_.Failed()) {
      return status;  // Nobody expects a message from a failed call.
    }
  }
  if (controller_.has_bytes_) {
    response->attachment = take(controller_.response_attachment_);
    if (auto* const metadata = controller_.metadata_.get()) {
      AddMetadata(*protocol_, ticket(), controller_.Failed(),
                  &metadata->response, &metadata->trailing, response);
    }
  }
  if (response->attachment.empty() && !IsCompressed(controller_.compression_) &&
      unasked_compression_ == CompressionAlgorithm::kNone) [[likely]] {
    return flare::Status();
  }
  return CompressResponse(response);
}

flare::Status ServerCall::CompressResponse(OutboundResponse* response) {
  const Limits& limits = connection_->state().protocols().limits();
  return CompressReply(
      *protocol_,
      {.algorithm = controller_.compression_,
       .attachment_precompressed = controller_.attachment_precompressed_,
       .acceptable = controller_.GetAcceptableCompressionAlgorithms(),
       .unasked = controller_.Failed() ? CompressionAlgorithm::kNone
                                       : unasked_compression_,
       .unasked_from = limits.compress_unasked_from},
      response);
}

// The method has ended.
void ServerCall::FinishStream() {
  const Method& method = *admission_.method();
  // The end comes once the places are given back, so that a client with it may
  // begin the next stream at once. The message may have to wait for the peer,
  // in its place.
  bool failed = controller_.Failed();
  if (!failed && !method.descriptor->server_streaming()) {
    failed = !TryToWrite();
  }
  const bool lost = !failed && !stream_->status().ok();
  if (failed || lost) {
    connection_->state().CountFailure(
        connection_->group(), ServerState::FailureOf(controller_.error_code_));
  }
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  method.counters.End(
      worker, failed ? controller_.error_code_ : stream_->status().code(),
      controller_.received_ns_, controller_.dispatched_ns_);
  LeaveLimits(worker);
  admission_.LeaveStream(connection_);
  SendOrClose([&] {
    stream_->Finish(
        failed ? flare::Status(controller_.error_code_, controller_.error_text_)
               : flare::Status());
  });
}

// The reply of a streaming method that has one. False: as in TryToFill().
bool ServerCall::TryToWrite() {
  try {
    if (!stream_->WriteMessage(*messages_.response(), /*last=*/false,
                               CallStream::kNever)) {
      controller_.error_code_ = STATUS_IO_ERROR;
    }
    return true;
  } catch (const std::bad_alloc&) {
    NoteFailure(NoMemoryForReply());
    return false;
  }
}

// Ignores the response's content: somebody may still be writing it [CE3].
void ServerCall::RespondThrown(const Method& method) {
  if (std::exchange(responded_, true)) return;
  connection_->state().CountFailure(connection_->group(), Failure::kOther);
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  method.counters.End(worker, controller_.error_code_, controller_.received_ns_,
                      controller_.dispatched_ns_);
  LeaveLimits(worker);
  admission_.LeaveStream(connection_);
  OutboundResponse response;
  response.status = controller_.error_code_;
  response.description = controller_.error_text_;
  SendOrClose([&] {
    if (stream_.Get() != nullptr) {
      stream_->Finish(
          flare::Status(controller_.error_code_, controller_.error_text_));
    } else {
      protocol_->Write(ticket(), std::move(response));
    }
  });
}

// --- Failures ---

// Answers with an error of our own, without a body.
void ServerCall::Fail(const flare::Status& status, Failure failure,
                      FailureDetail detail) {
  connection_->state().CountFailure(connection_->group(), failure);
  const std::size_t worker = fiber::GetCurrentWorkerIndex();
  const Method* const entered = admission_.method();
  if (const Method* method = entered != nullptr
                                 ? entered
                                 : connection_->FindMethod(request_->head)) {
    if (entered == nullptr) method->counters.Begin(worker);
    method->counters.Refuse(worker, status.code(),
                            failure == Failure::kOverloaded);
  }
  OutboundResponse response;
  response.detail = detail;
  response.status = status.code();
  response.description = status.message();
  LeaveLimits(worker);
  admission_.LeaveStream(connection_);
  if (stream_.Get() != nullptr) [[unlikely]] {
    stream_->Finish(status);
  } else {
    protocol_->Write(ticket(), std::move(response));
  }
  Finish();
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

void ServerCall::FailUnknown() {
  const std::string_view name = request_->head.method;
  Fail(MethodTable::ExplainMissing(name), Failure::kUnknown,
       connection_->state().methods.HasServiceOf(name)
           ? FailureDetail::kNone
           : FailureDetail::kNoService);
}

void ServerCall::FailWithoutMemory() {
  if (admission_.method() == nullptr) return GiveUp();
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
  if (const Method* const method = admission_.method()) {
    method->counters.Refuse(fiber::GetCurrentWorkerIndex(), STATUS_FAILED,
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

int ServerCall::OverloadedCode() const {
  return protocol_->traits().translates_codes
             ? STATUS_OVERLOADED
             : connection_->state().options().status_code_for_overloaded;
}

// --- Cancellation ---

bool ServerCall::IsCanceled() const {
  return context_.Get()->stop_requested() ||
         connection_->watched_calls().cause() != StopCause::kNone ||
         protocol_->CallerLeft(ticket()) ||
         (controller_.deadline_ns_ != 0 && NowNs() >= controller_.deadline_ns_);
}

void ServerCall::NotifyOnCancel(google::protobuf::Closure* callback) {
  context_.NotifyOnStop(callback);
}

StopCause ServerCall::OnWatched() {
  if (!completion_.Watch()) return StopCause::kNone;
  return context_.Watch(&connection_->watched_calls(), protocol_, ticket(),
                        controller_.deadline_ns_);
}

void ServerCall::EndWatch() {
  if (context_.EndWatch()) {
    connection_->state().CountCancelled(connection_->group());
  }
}

// --- The end ---

// Gives back its place under the limits. Called before the reply is sent: a
// caller with its reply may send the next call at once.
void ServerCall::LeaveLimits(std::size_t worker) {
  admission_.Leave(&connection_->state(), worker);
}

void ServerCall::DropStream() {
  admission_.LeaveStream(connection_);
  stream_.Detach();
  stream_.Reset();
}

void ServerCall::Finish() {
  if (admission_.held_bytes() != 0) [[unlikely]]
    CountHeld(0);
  if (admission_.has_place()) LeaveLimits(fiber::GetCurrentWorkerIndex());
  if (completion_.watched()) [[unlikely]]
    EndWatch();
  if (stream_.expected() || stream_.counted()) [[unlikely]]
    DropStream();
  ReleaseMessages();
  controller_.Reset();
  CallConnection* const connection = std::exchange(connection_, nullptr);
  const bool is_stream = stream_.counted();
  if (completion_.Released()) GiveBack();
  connection->CallFinished(is_stream);
}

// Releases the server's counts, and nothing that the method may have passed on
// [CE3].
void ServerCall::FinishThrown() {
  const std::size_t bytes = admission_.held_bytes();
  if (bytes != 0) CountHeld(0);
  if (admission_.has_place()) LeaveLimits(fiber::GetCurrentWorkerIndex());
  context_.EndWatch();
  context_.Drop();
  admission_.LeaveStream(connection_);
  stream_.Detach();
  controller_.call_ = nullptr;
  controller_.remote_peer_ = nullptr;
  CallConnection* const connection = std::exchange(connection_, nullptr);
  const bool is_stream = stream_.counted();
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

void ServerCall::ReleaseMessages() {
  if (!messages_.acquired()) return;
  // The response was not serialized if the call failed or answered with bytes.
  messages_.Release(request_bytes_, response_bytes_ != kUnknown
                                        ? response_bytes_
                                        : messages_.response()->ByteSizeLong());
  response_bytes_ = kUnknown;
}

}  // namespace flare::rpc

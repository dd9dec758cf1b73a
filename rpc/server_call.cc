#include "flare/rpc/server_call.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/object_pool.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_pieces.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/protocol/payload.h"
#include "flare/rpc/reply_turn_event.h"
#include "flare/rpc/server_connection.h"
#include "glog/logging.h"

namespace flare::rpc {

// There is one for each call that is under way
// (docs/decisions/0037-small-calls.md).
static_assert(sizeof(ServerCall) <= 640);

namespace {

using Failure = ServerState::Failure;

constexpr char kOverloadedText[] = "Server overloaded.";

bool IsCompressed(CompressionAlgorithm algorithm) {
  return algorithm != CompressionAlgorithm::kNone &&
         algorithm != CompressionAlgorithm::kUnknown;
}

flare::Status DecompressInPlace(CompressionAlgorithm algorithm,
                                std::size_t max_size, const char* what,
                                Buffer* bytes) {
  if (bytes->empty()) return flare::Status();
  auto plain = Decompress(algorithm, *bytes, max_size);
  if (!plain) {
    return flare::Status(
        STATUS_MALFORMED_DATA,
        std::string("The request's ") + what +
            " can't be decompressed: " + plain.error().message());
  }
  *bytes = *std::move(plain);
  return flare::Status();
}

flare::Status CompressInPlace(CompressionAlgorithm algorithm, Buffer* bytes) {
  if (bytes->empty()) return flare::Status();
  auto packed = Compress(algorithm, *bytes);
  if (!packed) {
    return flare::Status(
        STATUS_SERIALIZE_RESPONSE,
        "The response can't be compressed: " + packed.error().message());
  }
  *bytes = *std::move(packed);
  return flare::Status();
}

// As the published servers do: what a service adds for callers who can have it
// must not fail the calls of others.
void DropAttachment(std::string_view protocol, OutboundResponse* response) {
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "a response's attachment of " << response->attachment.size()
                 << " bytes is left out: protocol " << protocol
                 << " can't carry it" << LogThrottle::Note(*left_out);
  }
  response->attachment.Clear();
}

std::chrono::steady_clock::time_point ToTimePoint(std::int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace

ServerCall::ServerCall() {
  run = [](fiber::Task* self) { static_cast<ServerCall*>(self)->Serve(); };
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

// The task.
void ServerCall::Serve() {
  controller_.dispatched_ns_ = NowNs();
  if (!ParseHead()) return Finish();
  const std::int64_t max_wait_ns =
      connection_->state().options().max_request_queueing_delay.count();
  if (max_wait_ns != 0 &&
      controller_.dispatched_ns_ - controller_.received_ns_ > max_wait_ns) {
    return FailOverloaded();
  }
  request_->is_http ? ServeHttp() : ServeRpc();
}

void ServerCall::Refuse() {
  admitted_ = false;
  if (!ParseHead()) return Finish();
  FailOverloaded();
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

void ServerCall::ServeRpc() {
  const RequestHead& head = request_->head;
  if (IsCompressed(head.compression)) {
    if (!WaitToUnpack()) return Finish();
    if (!connection_->state().MayDecompress()) return FailOverloaded();
  }
  const std::int64_t waited_ns =
      controller_.dispatched_ns_ - controller_.received_ns_;
  if (head.timeout_ms != 0) {
    const std::int64_t timeout_ns = std::int64_t{head.timeout_ms} * 1'000'000;
    if (waited_ns > timeout_ns) return FailOverloaded(FailureDetail::kExpired);
    controller_.deadline_ns_ = controller_.received_ns_ + timeout_ns;
  }

  const Method* method = connection_->FindMethod(head.method);
  if (method == nullptr && head.short_service) {
    method = connection_->state().methods.FindByShortName(head.method);
  }
  if (method == nullptr) return FailUnknown();
  if (method->streaming()) {
    return Fail(flare::Status(STATUS_MALFORMED_DATA,
                              "Method [" + std::string(method->name()) +
                                  "] is a streaming method: it can't be "
                                  "called with a single message."),
                Failure::kMalformed);
  }
  if (waited_ns > method->max_wait_ns || !method->TryEnter()) {
    return FailOverloaded();
  }
  method_ = method;

  if (flare::Status parsed = ParseBody(); !parsed.ok()) {
    return Fail(parsed, Failure::kMalformed);
  }
  controller_.parsed_ns_ = NowNs();
  // Some replies repeat what only the request has.
  if (request_->ticket.request_header.empty()) {
    ticket_ = request_->ticket;
    ReleaseRequest();
  }
  method->service->CallMethod(method->descriptor, &controller_,
                              messages_.request(), messages_.response(), this);
  // Run() may have been called: nothing of this call is valid any more.
}

// A request may be a thousand times as large as what came, and so may be its
// reply: where others wait to answer, it stays as it came. False: its caller is
// gone. Not inlined: of few calls.
[[gnu::noinline]] bool ServerCall::WaitToUnpack() {
  if (!WaitToReply()) return false;
  controller_.dispatched_ns_ = NowNs();
  return true;
}

flare::Status ServerCall::ParseBody() {
  const RequestHead& head = request_->head;
  if (IsCompressed(head.compression)) {
    const std::size_t max_size =
        connection_->state().protocols().limits().max_decompressed_size;
    flare::Status status =
        DecompressInPlace(head.compression, max_size, "body", &request_->body);
    if (status.ok() && head.attachment_compressed) {
      status = DecompressInPlace(head.compression, max_size, "attachment",
                                 &request_->attachment);
    }
    if (!status.ok()) return status;
    decompressed_bytes_ = request_->body.size() + request_->attachment.size();
    connection_->state().AddDecompressed(decompressed_bytes_);
  }
  if (!request_->attachment.empty()) {
    controller_.request_attachment_ = std::move(request_->attachment);
    controller_.has_bytes_ = true;
  }
  controller_.acceptable_compressions_ = head.acceptable_compressions;

  messages_.Acquire(*method_);
  request_bytes_ = request_->body.size();
  flare::Status status =
      ParsePayload(head.format, request_->body, messages_.request());
  request_->body.Clear();
  return status;
}

void ServerCall::ServeHttp() {
  const ServerState& state = connection_->state();
  HttpServerContext context;
  context.remote_peer = connection_->peer();
  context.received = ToTimePoint(controller_.received_ns_);
  context.dispatched = ToTimePoint(controller_.dispatched_ns_);

  HttpPieces pieces(connection_, protocol_, request_, &http_response_);
  context.body = &pieces;

  const HttpRequest& request = request_->http;
  if (HttpHandler* handler = state.routes.Find(request.path())) {
    handler->HandleRequest(request, &http_response_, &context);
  } else {
    FillHttpError(HttpStatus::NotFound,
                  "There is nothing at " + std::string(request.path()) + ".",
                  &http_response_);
  }
  if (static_cast<int>(http_response_.status()) >= 400) {
    connection_->state().CountFailure(connection_->group(), Failure::kOther);
  }
  WaitToReply();
  Release();
  if (pieces.begun()) {
    pieces.End();
  } else {
    protocol_->WriteHttp(ticket(), std::move(http_response_));
  }
  Finish();
}

bool ServerCall::WaitToReply() {
  return connection_->HasRoom() || BlockToReply();
}

// Where many have replies ready they are made in the order in which they leave,
// if there is one: those made before their turn would only lie there.
bool ServerCall::BlockToReply() {
  if (!fiber::IsFiberWorker()) return true;
  if (!connection_->WaitForRoom()) return false;
  while (connection_->MuchHeld()) {
    ReplyTurnEvent turn;
    if (protocol_->AskToReply(ticket(), &turn) != ReplyTurn::kLater) break;
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

void ServerCall::FailOverloaded(FailureDetail detail) {
  if (!request_->is_http) {
    const int code = connection_->state().options().status_code_for_overloaded;
    return Fail(flare::Status(code, kOverloadedText), Failure::kOverloaded,
                detail);
  }
  connection_->state().CountFailure(connection_->group(), Failure::kOverloaded);
  FillHttpError(HttpStatus::ServiceUnavailable, kOverloadedText,
                &http_response_);
  protocol_->WriteHttp(ticket(), std::move(http_response_));
  Finish();
}

// Answers with an error of our own, without a body.
void ServerCall::Fail(const flare::Status& status, Failure failure,
                      FailureDetail detail) {
  connection_->state().CountFailure(connection_->group(), failure);
  OutboundResponse response;
  response.detail = detail;
  response.status = status.code();
  response.description = status.message();
  Release();
  protocol_->Write(ticket(), std::move(response));
  Finish();
}

void ServerCall::Run() {
  Respond(/*last=*/true);
  Finish();
}

void ServerCall::Respond(bool last) {
  if (std::exchange(responded_, true)) return;
  WaitToReply();
  OutboundResponse response;
  if (flare::Status status = FillResponse(&response); !status.ok()) {
    controller_.SetFailed(status.code(), status.message());
    response = OutboundResponse();
  }
  response.status = controller_.error_code_;
  if (response.status != STATUS_SUCCESS) {
    response.description = controller_.error_text_;
    connection_->state().CountFailure(connection_->group(), Failure::kOther);
  }
  if (last) Release();
  protocol_->Write(ticket(), std::move(response));
}

flare::Status ServerCall::FillResponse(OutboundResponse* response) {
  if (controller_.has_bytes_ && controller_.raw_bytes_) {
    response->body = *std::move(controller_.raw_bytes_);
  } else {
    flare::Status status = SerializePayload(
        ticket().format, *messages_.response(), &response->body);
    if (status.ok()) {
      response_bytes_ = response->body.size();
    } else if (!controller_.Failed()) {
      return status;  // Of a failed call nobody expects a message.
    }
  }
  if (controller_.has_bytes_) {
    response->attachment = std::move(controller_.response_attachment_);
  }
  if (response->attachment.empty() && !IsCompressed(controller_.compression_))
      [[likely]] {
    return flare::Status();
  }
  return FitToCaller(response);
}

// What the protocol or the caller can't have is left out, or refused; the rest
// is compressed as the service wants it. Not inlined: of few calls.
[[gnu::noinline]] flare::Status ServerCall::FitToCaller(
    OutboundResponse* response) {
  const ProtocolTraits traits = protocol_->traits();
  if (!traits.attachments && !response->attachment.empty()) {
    DropAttachment(protocol_->name(), response);
  }
  const CompressionAlgorithm algorithm = controller_.compression_;
  if (!IsCompressed(algorithm)) return flare::Status();
  const bool acceptable = controller_.GetAcceptableCompressionAlgorithms().test(
      static_cast<std::size_t>(algorithm));
  const bool usable = acceptable && traits.Compresses(algorithm);
  if (controller_.attachment_precompressed_ && !response->attachment.empty() &&
      !(usable && traits.attachment_compression)) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         "The response's attachment is compressed in a way "
                         "that the caller can't read.");
  }
  if (!usable) return flare::Status();
  response->compression = algorithm;
  Buffer body = std::move(response->body).ToBuffer();
  flare::Status status = CompressInPlace(algorithm, &body);
  response->body = std::move(body);
  if (status.ok() && traits.attachment_compression &&
      !response->attachment.empty()) {
    response->attachment_compressed = true;
    if (!controller_.attachment_precompressed_) {
      status = CompressInPlace(algorithm, &response->attachment);
    }
  }
  return status;
}

// Gives back its place under the limits. Before the reply is sent: whoever has
// got it may send the next call at once.
void ServerCall::Release() {
  if (method_ != nullptr) std::exchange(method_, nullptr)->Leave();
  if (std::exchange(admitted_, false)) {
    connection_->state().CallFinished(connection_->group());
  }
  if (decompressed_bytes_ != 0) [[unlikely]] {
    connection_->state().RemoveDecompressed(
        std::exchange(decompressed_bytes_, 0));
  }
}

void ServerCall::ReleaseMessages() {
  const google::protobuf::Message* const response = messages_.response();
  if (response == nullptr) return;
  // It was not serialized if the call failed or answered with bytes.
  messages_.Release(request_bytes_, response_bytes_ ? *response_bytes_
                                                    : response->ByteSizeLong());
  response_bytes_.reset();
}

void ServerCall::Finish() {
  ServerConnection* const connection = connection_;
  Release();
  ReleaseMessages();
  if (request_ != nullptr && request_->is_http) http_response_.clear();
  controller_.Reset();
  Recycle();
  connection->CallFinished();
}

}  // namespace flare::rpc

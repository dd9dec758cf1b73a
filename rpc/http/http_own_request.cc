#include "flare/rpc/http/http_own_request.h"

#include <cerrno>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/object_pool.h"
#include "flare/rpc/http/http_compression.h"
#include "flare/rpc/http/http_cors.h"
#include "flare/rpc/http/http_routes.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

namespace {

flare::Status Closed() {
  return flare::Status(STATUS_IO_ERROR, "the connection is closed");
}

flare::Status Stalled() {
  return flare::Status(STATUS_TIMEOUT,
                       "the client takes nothing of this reply "
                       "(Server::Options::output_timeout): its stream was "
                       "reset");
}

// In the place of one that isn't final.
HttpStatus StatusSent(HttpStatus status) {
  return static_cast<int>(status) < 200 ? HttpStatus::InternalServerError
                                        : status;
}

// For the counters.
int RpcStatusOfReply(HttpStatus status) {
  switch (status) {
    case HttpStatus::Unauthorized:
      return STATUS_UNAUTHENTICATED;
    case HttpStatus::Forbidden:
      return STATUS_PERMISSION_DENIED;
    default:
      return STATUS_FAILED;
  }
}

}  // namespace

HttpOwnRequest* HttpOwnRequest::New(const HttpUses* uses,
                                    HttpReplySender* sender, bool preflight) {
  HttpOwnRequest* const request = ObjectPool<HttpOwnRequest>::Get();
  request->uses_ = uses;
  request->sender_ = sender;
  request->preflight_ = preflight;
  return request;
}

void HttpOwnRequest::Recycle() {
  request_.clear();
  response_.clear();
  pieces_.reset();
  packer_.reset();
  ObjectPool<HttpOwnRequest>::Put(this);
}

void HttpOwnRequest::Serve(OwnRequestHost* host) {
  host_ = host;
  if (preflight_) [[unlikely]] {
    uses_->cors->AnswerPreflight(request_, &response_);
  } else {
    Answer();
  }
  if (IsFailure(response_.status()) && !pieces_) {
    host->CountFailure(RpcStatusOfReply(response_.status()));
  }
  host->WaitToReply(response_.body_size());
  host->LeaveLimits();
  if (pieces_) {
    host->LeaveStream();
    End();
  } else {
    sender_->WriteHttp(host->ticket().As<HttpTicket>(), std::move(response_));
  }
}

void HttpOwnRequest::Answer() {
  HttpRoutes::Found found{.handler = nullptr, .counters = nullptr};
  if (uses_->routes != nullptr) {
    found = uses_->routes->FindCounted(request_.path());
  }
  if (found.handler != nullptr) {
    CallHandler(found.handler);
  } else {
    FillHttpError(HttpStatus::NotFound,
                  "There is nothing at " + std::string(request_.path()) + ".",
                  &response_);
  }
  if (found.counters != nullptr) CountReply(found.counters);
}

void HttpOwnRequest::CountReply(HttpRequestCounters* counters) const {
  const HttpStatus status = StatusSent(response_.status());
  // Switch() has counted it.
  if (status != response_.status() && pieces_) [[unlikely]]
    return;
  counters->End(status, NowNs() - host_->received_ns());
}

void HttpOwnRequest::CallHandler(HttpHandler* handler) {
  HttpServerContext context;
  context.remote_peer = host_->peer();
  context.peer_identity = host_->peer_identity();
  context.received_at = ToTimePoint(host_->received_ns());
  context.dispatched_at = ToTimePoint(host_->dispatched_ns());
  context.compress_from = uses_->compress_from;
  context.body = this;
  context_ = &context;
  try {
    host_->Run([this, handler, &context] {
      handler->HandleRequest(request_, &response_, &context);
    });
    if (context.compress_from != 0 && !pieces_) {
      CompressReply(request_, context.compress_from, &response_);
    }
  } catch (...) {
    host_->LogException("the HTTP handler of " + std::string(request_.path()));
    host_->LeaveStream();
    if (pieces_) {
      host_->CountFailure(STATUS_FAILED);
      HttpTunnel* const tunnel = sender_->tunnel();
      // The other protocol has said its goodbye.
      if (tunnel != nullptr && tunnel->IsFor(this) && tunnel->opened()) return;
      return Abort();  // Or the sent part would be taken for all of it.
    }
    LeaveTunnel();
    FillHttpError(HttpStatus::InternalServerError, "The handler has failed.",
                  &response_);
  }
}

void HttpOwnRequest::Refuse(std::string_view text, OwnRequestHost* host) {
  FillHttpError(HttpStatus::ServiceUnavailable, std::string(text), &response_);
  sender_->WriteHttp(host->ticket().As<HttpTicket>(), std::move(response_));
}

bool HttpOwnRequest::IsExempt() const {
  return uses_->routes != nullptr && uses_->routes->IsExempt(request_.path());
}

flare::Status HttpOwnRequest::Write(Buffer piece) {
  if (!pieces_ && !Begin()) return Closed();
  if (pieces_->head_only) {
    return flare::Status(STATUS_IO_ERROR, "this reply has no body");
  }
  host_->WaitForRoom();
  bool stalled = false;
  if (sender_->replies_share() && host_->WaitForTurnOr(
                                      [this](ReplyTurnWaiter* waiter) {
                                        return sender_->AskForRoom(*pieces_,
                                                                   waiter);
                                      },
                                      [this, &stalled] {
                                        stalled = true;
                                        sender_->AbortHttp(*pieces_);
                                      }) != ReplyTurn::kNow) {
    return stalled ? Stalled() : Closed();
  }
  if (packer_ != nullptr) {
    auto packed = packer_->Write(piece);
    if (!packed) {
      Abort();
      return packed.error();
    }
    piece = *std::move(packed);
  }
  return sender_->WriteHttpPiece(*pieces_, std::move(piece)) ? flare::Status()
                                                             : Closed();
}

void HttpOwnRequest::End() {
  if (packer_ != nullptr) {
    auto last = packer_->Finish();
    if (!last) return Abort();
    // A few bytes, which wait for no room. If the reply was given up nothing
    // comes of them.
    sender_->WriteHttpPiece(*pieces_, *std::move(last));
  }
  sender_->EndHttp(*pieces_);
}

void HttpOwnRequest::Abort() {
  if (sender_->replies_share()) {
    return sender_->AbortHttp(pieces_ ? *pieces_
                                      : host_->ticket().As<HttpTicket>());
  }
  host_->Close(flare::Status(ECONNABORTED, "a handler gave its reply up"));
}

bool HttpOwnRequest::Begin() {
  // There are no chunks: the end of the connection is that of the body.
  if (request_.version() == HttpVersion::kHttp10) host_->ResetOnClose();
  HttpTicket ticket = host_->ticket().As<HttpTicket>();
  const CompressionAlgorithm coding =
      ChooseForPieces(request_, context_->compress_from, &response_);
  const ReplyTurn turn = host_->WaitForTurn([this,
                                             &ticket](ReplyTurnWaiter* waiter) {
    return sender_->BeginHttp(request_.version(), response_, &ticket, waiter);
  });
  if (turn != ReplyTurn::kNow) return false;
  pieces_ = ticket;
  if (IsFailure(response_.status())) {
    host_->CountFailure(RpcStatusOfReply(response_.status()));
  }
  return coding == CompressionAlgorithm::kNone || ticket.head_only ||
         MakePacker(coding);
}

// When it is the reply's turn: those that wait for theirs hold no context.
bool HttpOwnRequest::MakePacker(CompressionAlgorithm coding) {
  auto packer = StreamCompressor::New(coding);
  if (!packer) {
    Abort();
    return false;
  }
  packer_ = *std::move(packer);
  return true;
}

// --- other protocols ---------------------------------------------------------

Expected<HttpUpgrade::Link, flare::Status> HttpOwnRequest::Prepare() {
  HttpTunnel* const tunnel = sender_->tunnel();
  if (tunnel == nullptr || !tunnel->IsFor(this)) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         "the request doesn't ask for another protocol, or it "
                         "came over HTTP/2");
  }
  std::string_view why;
  if (!host_->EnterStream(&why)) {
    return flare::Status(STATUS_OVERLOADED, std::string(why));
  }
  const HttpTunnel::Reserved reserved = tunnel->Reserve();
  if (reserved == HttpTunnel::Reserved::kYes) {
    return Link{host_->connection(), tunnel->output()};
  }
  host_->LeaveStream();
  switch (reserved) {
    case HttpTunnel::Reserved::kStopping:
      return flare::Status(STATUS_OUT_OF_SERVICE, "the server stops");
    case HttpTunnel::Reserved::kEnded:
      return flare::Status(STATUS_MALFORMED_DATA,
                           "the client's input has ended");
    default:
      break;
  }
  return flare::Status(STATUS_MALFORMED_DATA,
                       "the client has sent more before it was answered");
}

flare::Status HttpOwnRequest::Switch(const HttpHeaders& fields,
                                     RefPtr<HttpTunnelReceiver> receiver) {
  HttpTicket ticket = host_->ticket().As<HttpTicket>();
  const ReplyTurn turn = host_->WaitForTurn([&](ReplyTurnWaiter* waiter) {
    return sender_->BeginTunnel(ticket, fields, waiter);
  });
  if (turn != ReplyTurn::kNow) {
    host_->LeaveStream();
    LeaveTunnel();
    return Closed();
  }
  ticket.head_only = true;  // There is no body to be written.
  ticket.close = true;
  pieces_ = ticket;
  if (uses_->routes != nullptr) {
    if (auto* const counters =
            uses_->routes->FindCounted(request_.path()).counters) {
      counters->End(HttpStatus::SwitchingProtocols,
                    NowNs() - host_->received_ns());
    }
  }
  sender_->tunnel()->Open(receiver);
  return {};
}

void HttpOwnRequest::LeaveTunnel() {
  HttpTunnel* const tunnel = sender_->tunnel();
  if (tunnel != nullptr && tunnel->IsFor(this)) tunnel->Leave();
}

}  // namespace flare::rpc

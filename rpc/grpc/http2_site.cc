#include "flare/rpc/grpc/http2_site.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "flare/rpc/grpc/http2_reply_wire.h"
#include "flare/rpc/http/http_call.h"
#include "flare/rpc/http/http_dialect.h"
#include "flare/rpc/http/http_metadata.h"
#include "flare/rpc/http/http_replies.h"
#include "flare/rpc/http/http_requests.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// Bytes of a reply in pieces that wait for the stream's window: no more are
// taken.
constexpr std::size_t kMostQueued = 64 << 10;

std::int32_t StreamIdOf(const HttpTicket& ticket) {
  return static_cast<std::int32_t>(ticket.order);
}

}  // namespace

void Http2Site::Begin(GrpcServerStream* stream) {
  stream->http = std::make_unique<Http2Exchange>();
  std::string& text = stream->http->head;
  text = head_.Take();
  session_->Take(stream, GrpcServerStream::Phase::kHttp);
  if (text.size() > limits_.max_head_size) {
    return Refuse(stream, {431, "the request head is too large"});
  }
  HttpHead head;
  if (const HttpFault fault =
          ParseRequestHead(text, limits_.max_head_fields, &head)) {
    return Refuse(stream, fault);
  }
  session_->SetKept(stream, text.size());
  const std::uint64_t announced = head.content_length.value.value_or(0);
  if (announced > limits_.max_packet_size) Skip(stream, announced);
}

void Http2Site::OnData(GrpcServerStream* stream, Buffer&& bytes) {
  Http2Exchange& http = *stream->http;
  stream->ungranted += bytes.size();
  if (http.too_large) {
    http.skipped += bytes.size();
    if (http.skipped > limits_.max_skipped) return RefuseSize(stream);
  } else {
    http.body.Append(std::move(bytes));
    http.compaction.AfterAppend(&http.body);
    const std::size_t size = http.head.size() + http.body.size();
    session_->SetKept(stream, size);
    if (size > limits_.max_packet_size) Skip(stream, 0);
  }
  if (stream->ungranted < StreamWindow::kInitial / 2) return;
  session_->session_->Grant(stream, std::exchange(stream->ungranted, 0));
}

bool Http2Site::Complete(GrpcServerStream* stream, InboundRequest* request) {
  Http2Exchange& http = *stream->http;
  if (http.too_large) {
    RefuseSize(stream);
    return false;
  }
  HttpHead head;
  HttpTicket& ticket = request->ticket.Emplace<HttpTicket>();
  ReadTicket(*stream, &head, &ticket);
  FillHttpRequest(uses_, head, this, request);
  if (head.has_others && ticket.is_call &&
      request->reject_status == STATUS_SUCCESS) {
    const std::string why =
        ReadMetadata(head.fields, limits_.metadata, &request->metadata);
    if (!why.empty()) RefuseHttpRequest(431, why, request);
  }
  request->wire_size = http.head.size() + http.body.size();
  if (request->own != nullptr) {
    HttpOf(*request).request().set_body(std::move(http.body));
  } else {
    request->body = std::move(http.body);
  }
  http.body.Clear();
  http.head = std::string();
  session_->Leave(stream, GrpcServerStream::Phase::kAnswered);
  return true;
}

void Http2Site::Refuse(GrpcServerStream* stream, const HttpFault& fault) {
  HttpTicket ticket;
  ticket.is_call = false;
  ticket.head_only = stream->head.is_head;
  Refuse(stream, fault, ticket);
}

void Http2Site::Refuse(GrpcServerStream* stream, const HttpFault& fault,
                       const HttpTicket& request) {
  HttpTicket ticket = request;
  ticket.http_status = static_cast<std::uint16_t>(fault.status);
  OutboundResponse response;
  response.status = RpcStatusOf(fault.status);
  response.description = fault.text;
  session_->Leave(stream, GrpcServerStream::Phase::kAnswered);
  stream->http->body.Clear();
  session_->SendHttp(stream, Format(ticket, std::move(response)));
}

// Some clients take an answer that comes before they have sent all for a
// failure of the connection.
void Http2Site::Skip(GrpcServerStream* stream, std::uint64_t announced) {
  if (announced > limits_.max_skipped) return RefuseSize(stream);
  Http2Exchange& http = *stream->http;
  http.too_large = true;
  http.skipped = http.body.size();
  http.body.Clear();
  session_->SetKept(stream, http.head.size());
}

void Http2Site::RefuseSize(GrpcServerStream* stream) {
  const std::string text = "the message has more than " +
                           std::to_string(limits_.max_packet_size) +
                           " bytes (" + std::string(kServerSizeLimit) + ")";
  HttpHead head;
  HttpTicket ticket;
  ReadTicket(*stream, &head, &ticket);
  if (ticket.is_call) ReadHttpFormat(uses_, head, &ticket);
  Refuse(stream, {413, text}, ticket);
}

// By the head that is kept, of which *head has views.
void Http2Site::ReadTicket(const GrpcServerStream& stream, HttpHead* head,
                           HttpTicket* ticket) const {
  // It was accepted before, so it is now.
  static_cast<void>(
      ParseRequestHead(stream.http->head, limits_.max_head_fields, head));
  FillHttpTicket(uses_, *head, ticket);
  ticket->order = static_cast<std::uint64_t>(stream.id());
  ticket->ordered = false;
  ticket->close = false;
}

// In the form of HTTP/1.1.
Buffer Http2Site::Format(const HttpTicket& ticket,
                         OutboundResponse&& response) const {
  Buffer bytes;
  if (IsDialect(ticket)) {
    bytes = uses_.dialect->FormatReply(ticket, std::move(response));
  } else {
    bytes = ticket.http_status != 0
                ? FormatRefusal(ticket, response)
                : FormatCallReply(ticket, std::move(response));
  }
  if (ticket.cors != 0) {
    bytes = InsertFields(uses_.cors->FieldsFor(ticket.cors), std::move(bytes));
  }
  return bytes;
}

bool Http2Site::Write(const HttpTicket& ticket, OutboundResponse&& response) {
  return Send(ticket, Format(ticket, std::move(response)));
}

void Http2Site::ReadBody(InboundRequest* request) const {
  if (request->reject_status != STATUS_SUCCESS) return;
  uses_.dialect->ReadBody(limits_, request);
}

std::string_view Http2Site::WhyNoReplyStream(const HttpTicket& ticket) const {
  return IsDialect(ticket) ? uses_.dialect->WhyNoStream(ticket) : "";
}

std::unique_ptr<StreamWire> Http2Site::OpenReplyStream(
    const HttpTicket& ticket) {
  return std::make_unique<Http2ReplyWire>(ticket, uses_, session_);
}

GrpcServerStream* Http2Site::Find(const HttpTicket& ticket) const {
  return session_->Find(StreamIdOf(ticket));
}

bool Http2Site::Send(const HttpTicket& ticket, Buffer&& http1) {
  ScopedLock guard(session_->lock_);
  GrpcServerStream* const stream = Find(ticket);
  if (stream == nullptr) return false;
  session_->SendHttp(stream, std::move(http1));
  session_->FlushReply(StreamIdOf(ticket));
  return true;
}

void Http2Site::WriteHttp(const HttpTicket& request, HttpResponse&& response) {
  HttpTicket ticket = request;
  Send(request, FormatHandlerReply(&ticket, std::move(response)));
}

ReplyTurn Http2Site::BeginHttp(HttpVersion version, const HttpResponse& head,
                               HttpTicket* ticket, ReplyTurnWaiter*) {
  const Http2Reply reply(FormatHandlerHead(version, head, ticket));
  ScopedLock guard(session_->lock_);
  GrpcServerStream* const stream = Find(*ticket);
  if (stream == nullptr) return ReplyTurn::kNever;
  stream->head_sent = true;
  session_->session_->SendHeaders(stream, reply.fields(), ticket->head_only);
  session_->FlushReply(StreamIdOf(*ticket));
  return ReplyTurn::kNow;
}

bool Http2Site::WriteHttpPiece(const HttpTicket& ticket, Buffer&& piece) {
  ScopedLock guard(session_->lock_);
  GrpcServerStream* const stream = Find(ticket);
  if (stream == nullptr) return false;
  if (!piece.empty()) session_->session_->SendData(stream, std::move(piece));
  return session_->FlushReply(StreamIdOf(ticket));
}

void Http2Site::EndHttp(const HttpTicket& ticket) {
  ScopedLock guard(session_->lock_);
  GrpcServerStream* const stream = Find(ticket);
  if (stream == nullptr || ticket.head_only) return;
  stream->status_sent = true;
  session_->session_->SendEnd(stream);
  session_->FlushReply(StreamIdOf(ticket));
}

ReplyTurn Http2Site::AskForRoom(const HttpTicket& ticket,
                                ReplyTurnWaiter* waiter) {
  ScopedLock guard(session_->lock_);
  GrpcServerStream* const stream = Find(ticket);
  if (stream == nullptr || session_->closed_) return ReplyTurn::kNever;
  if (stream->queued() < kMostQueued) return ReplyTurn::kNow;
  // The windows don't open any more.
  if (session_->input_over_) return ReplyTurn::kNever;
  stream->http->waiter = waiter;  // [GS6]
  return ReplyTurn::kLater;
}

void Http2Site::AbortHttp(const HttpTicket& ticket) {
  ScopedLock guard(session_->lock_);
  GrpcServerStream* const stream = Find(ticket);
  if (stream == nullptr) return;
  GrpcServerSession::Wake(stream);
  session_->session_->SendReset(stream, Http2Error::kInternalError);
  session_->FlushReply(StreamIdOf(ticket));
}

}  // namespace flare::rpc

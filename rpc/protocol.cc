#include "flare/rpc/protocol.h"

#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {

std::string SizeLimitText(std::string_view what, std::uint64_t size,
                          std::size_t limit, std::string_view by) {
  std::string text("a ");
  text.append(what).append(" of ").append(std::to_string(size));
  text.append(" bytes exceeds the limit of ").append(std::to_string(limit));
  text.append(" (").append(by).append(")");
  return text;
}

std::string_view ContiguousPrefix(const Buffer& in, std::size_t size,
                                  std::string* scratch) {
  if (in.FirstContiguous().size() < size) scratch->resize(size);
  return in.Peek(size, scratch->data());
}

void InboundRequest::Clear() {
  // Nobody touches it otherwise.
  if (std::exchange(is_http, false)) http.clear();
  head = RequestHead();
  body.Clear();
  attachment.Clear();
  ticket = ReplyTicket();
  reject_status = STATUS_SUCCESS;
  ClearKeeping(&reject_reason);
  wire_size = 0;
  wire.Clear();
  ClearKeeping(&scratch);
  meta_size = 0;
  body_size = 0;
}

void InboundResponse::Clear() {
  correlation_id = 0;
  status = STATUS_SUCCESS;
  description = {};
  compression = CompressionAlgorithm::kNone;
  attachment_compressed = false;
  body.Clear();
  attachment.Clear();
  last_on_connection = false;
  is_notice = false;
  wire_size = 0;
  wire.Clear();
  ClearKeeping(&scratch);
  meta_size = 0;
  body_size = 0;
}

void ServerProtocol::WriteHttp(const ReplyTicket&, HttpResponse&&) {
  sink_->Abort(flare::Status(STATUS_NOT_SUPPORTED,
                             "this protocol has no HTTP responses"));
}

ReplyTurn ServerProtocol::BeginHttp(HttpVersion, const HttpResponse&,
                                    ReplyTicket*, ReplyTurnWaiter*) {
  return ReplyTurn::kNever;
}

bool ServerProtocol::WriteHttpPiece(const ReplyTicket&, Buffer&&) {
  return false;
}

void ServerProtocol::EndHttp(const ReplyTicket&) {}

void ServerProtocol::WriteRejection(const InboundRequest& request) {
  OutboundResponse response;
  response.status = request.reject_status;
  response.description = request.reject_reason;
  Write(request.ticket, std::move(response));
}

}  // namespace flare::rpc

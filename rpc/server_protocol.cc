#include "flare/rpc/server_protocol.h"

#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {

void InboundRequest::Clear() {
  // Nobody touches it otherwise.
  if (std::exchange(is_http, false)) http.clear();
  if (stream != nullptr) [[unlikely]] {
    std::exchange(stream, nullptr)->Drop();
  }
  head = RequestHead();
  body.Clear();
  attachment.Clear();
  metadata.reset();
  reject_status = STATUS_SUCCESS;
  ClearKeeping(&reject_reason);
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

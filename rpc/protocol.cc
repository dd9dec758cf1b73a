#include "flare/rpc/protocol.h"

#include <utility>

namespace flare::rpc {

std::string_view ContiguousPrefix(const Buffer& in, std::size_t size,
                                  std::string* scratch) {
  if (in.FirstContiguous().size() < size) scratch->resize(size);
  return in.Peek(size, scratch->data());
}

void InboundRequest::Clear() {
  is_http = false;
  head = RequestHead();
  body.Clear();
  attachment.Clear();
  // Looked at only if is_http, but its body may hold blocks.
  http.clear();
  ticket = ReplyTicket();
  reject_status = STATUS_SUCCESS;
  reject_reason.clear();
  wire_size = 0;
  wire.Clear();
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
  wire_size = 0;
  wire.Clear();
  meta_size = 0;
  body_size = 0;
}

void ServerProtocol::WriteHttp(const ReplyTicket&, HttpResponse&&) {
  sink_->Abort(flare::Status(STATUS_NOT_SUPPORTED,
                             "this protocol has no HTTP responses"));
}

void ServerProtocol::WriteRejection(const InboundRequest& request) {
  OutboundResponse response;
  response.status = request.reject_status;
  response.description = request.reject_reason;
  Write(request.ticket, std::move(response));
}

}  // namespace flare::rpc

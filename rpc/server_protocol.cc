#include "flare/rpc/server_protocol.h"

#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {

// Kept out of line: most requests have none of it, and need no frame for it.
[[gnu::noinline]] void InboundRequest::ClearRare() {
  own.reset();
  if (stream != nullptr) std::exchange(stream, nullptr)->Drop();
  metadata.reset();
}

void InboundRequest::Clear() {
  if (own != nullptr || stream != nullptr || metadata != nullptr) [[unlikely]]
    ClearRare();
  head = RequestHead();
  body.Clear();
  attachment.Clear();
  reject_status = STATUS_SUCCESS;
  ClearKeeping(&reject_reason);
  wire_size = 0;
  wire.Clear();
  ClearKeeping(&scratch);
  meta_size = 0;
  body_size = 0;
}

void ServerProtocol::WriteRejection(const InboundRequest& request) {
  OutboundResponse response;
  response.status = request.reject_status;
  response.detail = FailureDetail::kUnreadRequest;
  response.description = request.reject_reason;
  Write(request.ticket, std::move(response));
}

}  // namespace flare::rpc

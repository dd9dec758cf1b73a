#include "flare/rpc/server_protocol.h"

#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {

void InboundRequest::Clear() {
  if (own != nullptr) [[unlikely]]
    own.reset();
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

void ServerProtocol::WriteRejection(const InboundRequest& request) {
  OutboundResponse response;
  response.status = request.reject_status;
  response.description = request.reject_reason;
  Write(request.ticket, std::move(response));
}

}  // namespace flare::rpc

#include "flare/rpc/client_protocol.h"

#include "flare/base/string.h"

namespace flare::rpc {

void InboundResponse::Clear() {
  correlation_id = 0;
  status = STATUS_SUCCESS;
  description = {};
  compression = CompressionAlgorithm::kNone;
  attachment_compressed = false;
  last_on_connection = false;
  is_notice = false;
  unreadable = false;
  oversized = false;
  unprocessed = false;
  body.Clear();
  attachment.Clear();
  metadata.reset();
  wire_size = 0;
  wire.Clear();
  ClearKeeping(&scratch);
  meta_size = 0;
  body_size = 0;
}

}  // namespace flare::rpc

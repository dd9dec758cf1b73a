// The compression of calls: of their requests, and of their replies as far as
// their callers can read that.
#ifndef FLARE_RPC_SERVER_CALL_COMPRESSION_H_
#define FLARE_RPC_SERVER_CALL_COMPRESSION_H_

#include <cstddef>

#include "flare/base/compression.h"
#include "flare/base/status.h"
#include "flare/rpc/compression_algorithm.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// Decompresses body and attachment of `request`, to at most the size that
// `limits` allow. Fails with a text.
flare::Status DecompressRequest(const Limits& limits,
                                const ProtocolTraits& traits,
                                InboundRequest* request);

// How one reply shall be compressed.
struct ReplyCompression {
  // The service's wish; kNone: it has none. The attachment may come compressed
  // already.
  CompressionAlgorithm algorithm = CompressionAlgorithm::kNone;
  bool attachment_precompressed = false;
  // Those that the caller can read.
  CompressionAlgorithmSet acceptable;
  // Without a wish: the one for a body of so many bytes or more, if that makes
  // it smaller; 0, kNone: none.
  CompressionAlgorithm unasked = CompressionAlgorithm::kNone;
  std::size_t unasked_from = 0;
};

// Compresses body and attachment of `response`. A wish that the protocol or the
// caller doesn't support is ignored; fails if the attachment came compressed by
// it. Leaves out, with a line in the log, an attachment that the protocol can't
// carry: as published servers do, since an addition of a service for some
// callers must not fail the calls of others. Takes the time of compressing.
flare::Status CompressReply(const ServerProtocol& protocol,
                            const ReplyCompression& how,
                            OutboundResponse* response);

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_COMPRESSION_H_

// Messages of streaming calls, compressed one by one.
//
// Functions are pure and thread-safe. CPU-bound; nothing blocks.
#ifndef FLARE_RPC_STREAM_MESSAGE_COMPRESSION_H_
#define FLARE_RPC_STREAM_MESSAGE_COMPRESSION_H_

#include <cstddef>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/status.h"
#include "flare/rpc/outbound_body.h"

namespace flare::rpc {

// False, with the message's bytes as they were: it doesn't get smaller.
[[nodiscard]] bool CompressMessage(CompressionAlgorithm algorithm,
                                   OutboundBody* message);

// Fails with STATUS_OVERLOADED if the message has more than `max_size` bytes,
// with STATUS_MALFORMED_DATA if it is corrupt; *message is as it was then.
[[nodiscard]] flare::Status DecompressMessage(CompressionAlgorithm algorithm,
                                              std::size_t max_size,
                                              Buffer* message);

}  // namespace flare::rpc

#endif  // FLARE_RPC_STREAM_MESSAGE_COMPRESSION_H_

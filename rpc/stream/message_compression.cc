#include "flare/rpc/stream/message_compression.h"

#include <cerrno>
#include <utility>

#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

bool CompressMessage(CompressionAlgorithm algorithm, OutboundBody* message) {
  Buffer bytes = std::move(*message).ToBuffer();
  auto compressed = Compress(algorithm, bytes);
  const bool smaller = compressed && compressed->size() < bytes.size();
  *message = OutboundBody(smaller ? *std::move(compressed) : std::move(bytes));
  return smaller;
}

flare::Status DecompressMessage(CompressionAlgorithm algorithm,
                                std::size_t max_size, Buffer* message) {
  auto bytes = Decompress(algorithm, *message, max_size);
  if (!bytes) {
    return flare::Status(bytes.error().code() == EMSGSIZE
                             ? STATUS_OVERLOADED
                             : STATUS_MALFORMED_DATA,
                         "a message of the stream can't be decompressed: " +
                             bytes.error().message());
  }
  *message = *std::move(bytes);
  return flare::Status();
}

}  // namespace flare::rpc

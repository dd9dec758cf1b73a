// The compression algorithms of the wire formats, on Buffers.
//
//   auto packed = Compress(CompressionAlgorithm::kZstd, body);
//   if (!packed) return packed.error();
//   auto body = Decompress(CompressionAlgorithm::kZstd, *packed, max_size);
//
// Formats: gzip = one gzip member of default level; lz4-frame = one LZ4 frame
// with default preferences; snappy = one raw (unframed) block; zstd = one zstd
// frame of default level; zlib = one zlib stream of default level. Empty stays
// empty, in both directions.
//
// Thread-safe. CPU-bound: nothing here waits or suspends a fiber, and the time
// is proportional to the input and output. The libraries' contexts are pooled.

#ifndef FLARE_BASE_COMPRESSION_H_
#define FLARE_BASE_COMPRESSION_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare {

// The values are those on the wire of `flare`, which has no zlib.
enum class CompressionAlgorithm {
  kUnknown = 0,
  kNone = 1,
  kGzip = 2,
  kLz4Frame = 3,
  kSnappy = 4,
  kZstd = 5,
  kZlib = 6,
};

// Returns whether bytes with this algorithm are compressed.
constexpr bool IsCompressed(CompressionAlgorithm algorithm) {
  return algorithm != CompressionAlgorithm::kNone &&
         algorithm != CompressionAlgorithm::kUnknown;
}

// Compresses. Fails with ENOTSUP for an algorithm that is none (such as
// kUnknown or a value off the wire), EFBIG for more than snappy can hold
// (4 GiB - 1), ENOMEM if a library runs out of memory.
[[nodiscard]] Expected<Buffer, Status> Compress(CompressionAlgorithm algorithm,
                                                const Buffer& data);

// Decompresses data from an untrusted source. Fails with EBADMSG if `data` is
// corrupt, truncated, or followed by other bytes; with EMSGSIZE as soon as the
// output turns out to exceed `max_output` bytes (memory for it is not taken
// beyond the next block); with ENOTSUP and ENOMEM as Compress() does.
[[nodiscard]] Expected<Buffer, Status> Decompress(
    CompressionAlgorithm algorithm, const Buffer& data, std::size_t max_output);

// Compresses one message of a WebSocket with the extension permessage-deflate
// (RFC 7692, 7.2): a deflate stream without a wrapper, up to a flush, without
// the four bytes at the end of that. `window_bits`, 9 to 15, bounds the window
// that it takes to decompress it. Fails with ENOMEM.
[[nodiscard]] Expected<Buffer, Status> DeflateMessage(const Buffer& data,
                                                      int window_bits);

// Decompresses such a message, with any window. Fails as Decompress() does,
// except that a message which is cut off within a block that isn't compressed
// may end with some bytes of the flush.
[[nodiscard]] Expected<Buffer, Status> InflateMessage(Buffer data,
                                                      std::size_t max_output);

// Compresses a stream whose end isn't known yet, piece by piece:
//
//   auto stream = StreamCompressor::New(CompressionAlgorithm::kGzip);
//   if (!stream) return stream.error();
//   while (...) Send(*(*stream)->Write(piece));
//   Send(*(*stream)->Finish());
//
// The receiver can unpack each piece as soon as it has its output. Small pieces
// pack worse than the whole: each costs some bytes. Holds a context of the
// library, 256 KiB for gzip and 1.6 MiB for zstd. By one thread at a time.
class StreamCompressor {
 public:
  virtual ~StreamCompressor() = default;

  // kGzip, kZlib or kZstd. Fails with ENOTSUP for others, and with ENOMEM.
  [[nodiscard]] static Expected<std::unique_ptr<StreamCompressor>, Status> New(
      CompressionAlgorithm algorithm);

  // The bytes behind those of earlier calls; none for an empty piece. Fails
  // with ENOMEM, and the stream can't go on then.
  [[nodiscard]] virtual Expected<Buffer, Status> Write(const Buffer& piece) = 0;
  // The last bytes. Once.
  [[nodiscard]] virtual Expected<Buffer, Status> Finish() = 0;
};

// By name: "gzip", "lz4-frame", "snappy", "zstd", "zlib", and "none" or ""
// for none.
std::optional<CompressionAlgorithm> ParseCompressionAlgorithm(
    std::string_view name);

// The name that ParseCompressionAlgorithm takes; "unknown" for other values.
std::string_view ToString(CompressionAlgorithm algorithm);

}  // namespace flare

#endif  // FLARE_BASE_COMPRESSION_H_

// Codings of HTTP contents (RFC 9110, 8.4.1): names in Content-Encoding and
// Accept-Encoding <-> our algorithms. Pure; nothing allocates or blocks.
#ifndef FLARE_RPC_HTTP_HTTP_CODING_H_
#define FLARE_RPC_HTTP_HTTP_CODING_H_

#include <cstdint>
#include <string_view>

#include "flare/base/compression.h"

namespace flare::rpc {

// "gzip" or "x-gzip", "deflate"; kUnknown for all others. ("deflate" is a zlib
// stream. Senders that leave out the header of zlib are wrong.)
CompressionAlgorithm HttpCodingOf(std::string_view name);

// "gzip", "deflate"; empty for algorithms that HTTP has no name for.
std::string_view HttpCodingName(CompressionAlgorithm algorithm);

// The one of HttpCodings::usable() to choose, if there is one.
CompressionAlgorithm PreferredHttpCoding(std::uint8_t usable);

// The codings that Accept-Encoding names, among those that we know.
class HttpCodings {
 public:
  static constexpr std::uint8_t BitOf(CompressionAlgorithm algorithm) {
    return static_cast<std::uint8_t>(1u << static_cast<int>(algorithm));
  }
  // The bits of those that we know.
  static constexpr std::uint8_t kKnown =
      1u << static_cast<int>(CompressionAlgorithm::kGzip) |
      1u << static_cast<int>(CompressionAlgorithm::kZlib);

  // Reads one field; there may be several.
  void Add(std::string_view value);

  // Whether usable() may be other than 0.
  bool named() const { return accepted_ != 0; }

  // Bit n: CompressionAlgorithm n may be used. 0 if there was no such field.
  std::uint8_t usable() const;

 private:
  std::uint8_t accepted_ = 0;
  std::uint8_t refused_ = 0;  // Those with a weight of 0.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_CODING_H_

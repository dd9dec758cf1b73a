// The algorithms that calls may be compressed with, by the names of the wire
// and of the published framework.
//
//   controller->SetCompressionAlgorithm(flare::rpc::COMPRESSION_ALGORITHM_ZSTD);
//   if (controller->GetAcceptableCompressionAlgorithms()
//           [flare::rpc::COMPRESSION_ALGORITHM_GZIP]) ...
//
// Plain values: nothing blocks.
#ifndef FLARE_RPC_COMPRESSION_ALGORITHM_H_
#define FLARE_RPC_COMPRESSION_ALGORITHM_H_

#include <bitset>
#include <cstddef>

#include "flare/base/compression.h"

namespace flare {

// One bit per value of CompressionAlgorithm.
class CompressionAlgorithmSet : public std::bitset<64> {
 public:
  using std::bitset<64>::bitset;
  using std::bitset<64>::operator[];
  using std::bitset<64>::test;

  // Returns whether it has `algorithm`; false for a value that is none.
  bool operator[](CompressionAlgorithm algorithm) const {
    const auto bit = static_cast<std::size_t>(algorithm);
    return bit < size() && (*this)[bit];
  }
  bool test(CompressionAlgorithm algorithm) const { return (*this)[algorithm]; }
  void Add(CompressionAlgorithm algorithm) {
    set(static_cast<std::size_t>(algorithm));
  }
};

namespace rpc {

using flare::CompressionAlgorithm;

inline constexpr auto COMPRESSION_ALGORITHM_UNKNOWN =
    CompressionAlgorithm::kUnknown;
inline constexpr auto COMPRESSION_ALGORITHM_NONE = CompressionAlgorithm::kNone;
inline constexpr auto COMPRESSION_ALGORITHM_GZIP = CompressionAlgorithm::kGzip;
inline constexpr auto COMPRESSION_ALGORITHM_LZ4_FRAME =
    CompressionAlgorithm::kLz4Frame;
inline constexpr auto COMPRESSION_ALGORITHM_SNAPPY =
    CompressionAlgorithm::kSnappy;
inline constexpr auto COMPRESSION_ALGORITHM_ZSTD = CompressionAlgorithm::kZstd;

}  // namespace rpc
}  // namespace flare

#endif  // FLARE_RPC_COMPRESSION_ALGORITHM_H_

// The numbers by which a wire format calls things that have names here.
//
//   constexpr WireNumbers<PayloadFormat, 2> kFormats{
//       {{0, PayloadFormat::kProtobuf}, {2, PayloadFormat::kProto3Json}}};
//   kFormats.Find(2)                                // kProto3Json
//   kFormats.NumberOf(PayloadFormat::kProto3Json)   // 2
#ifndef FLARE_RPC_WIRE_WIRE_NUMBERS_H_
#define FLARE_RPC_WIRE_WIRE_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "flare/base/compression.h"
#include "flare/rpc/outbound_body.h"

namespace flare::rpc {

// The first entry is for all things without a number of their own. If one thing
// has several numbers, the first is sent.
template <class T, std::size_t N>
struct WireNumbers {
  std::pair<std::int64_t, T> entries[N];

  // Nullopt for numbers without a meaning here.
  constexpr std::optional<T> Find(std::int64_t number) const {
    for (const auto& [known, value] : entries) {
      if (known == number) return value;
    }
    return std::nullopt;
  }

  constexpr std::int32_t NumberOf(T value) const {
    for (const auto& [number, known] : entries) {
      if (known == value) return static_cast<std::int32_t>(number);
    }
    return static_cast<std::int32_t>(entries[0].first);
  }
};

// For ProtocolTraits::compressions.
template <std::size_t N>
constexpr std::uint64_t CompressionBits(
    const WireNumbers<CompressionAlgorithm, N>& numbers) {
  std::uint64_t bits = 0;
  for (const auto& [number, algorithm] : numbers.entries) {
    bits |= std::uint64_t{1} << static_cast<int>(algorithm);
  }
  return bits;
}

// The number for a body that was compressed with `algorithm`. An empty body
// stays empty, which some peers couldn't decompress.
template <std::size_t N>
std::int32_t CompressionNumber(
    const WireNumbers<CompressionAlgorithm, N>& numbers,
    CompressionAlgorithm algorithm, const OutboundBody& body) {
  return numbers.NumberOf(body.empty() ? CompressionAlgorithm::kNone
                                       : algorithm);
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_WIRE_NUMBERS_H_

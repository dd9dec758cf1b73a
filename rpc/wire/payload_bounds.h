// How large the text or JSON of a message may become.
#ifndef FLARE_RPC_WIRE_PAYLOAD_BOUNDS_H_
#define FLARE_RPC_WIRE_PAYLOAD_BOUNDS_H_

#include <algorithm>
#include <cstddef>

namespace flare::rpc {

// Text and JSON name fields, and some JSON lists all of them, so two bytes of a
// message may become kilobytes. This bounds the memory for that in proportion
// to the message's `binary_size`, while small messages have room to grow.
inline std::size_t MaxConvertedSize(std::size_t binary_size) {
  constexpr std::size_t kGrowth = 32;
  constexpr std::size_t kAlwaysAllowed = 16 << 20;
  return std::max(kAlwaysAllowed, kGrowth * binary_size);
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_PAYLOAD_BOUNDS_H_

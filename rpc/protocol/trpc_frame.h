// What both sides of the `trpc` protocol share: the frame, and the numbers that
// stand for formats, compressions and outcomes. Pure functions; nothing blocks.
#ifndef FLARE_RPC_PROTOCOL_TRPC_FRAME_H_
#define FLARE_RPC_PROTOCOL_TRPC_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/compression.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

// As framing.h describes.
struct TrpcFrame {
  static constexpr std::string_view kName = "trpc";
  static constexpr std::string_view kMagic = "\x09\x30";
  static constexpr std::size_t kHeaderSize = 16;
  // Of the protobuf header, whose size has 16 bits.
  static constexpr std::size_t kMaxMetaSize = 65535;
  static constexpr std::uint8_t kUnary = 0;
  static constexpr std::uint8_t kStream = 1;
  static constexpr std::uint8_t kStreamClose = 4;

  std::uint8_t type = kUnary;
  std::uint8_t stream_type = 0;
  std::uint32_t size = 0;  // of all
  std::uint32_t meta_size = 0;
  std::uint32_t stream_id = 0;

  void Read(const char* header);
  std::string Check() const;
  std::size_t head_size() const { return kHeaderSize + meta_size; }
  std::size_t total() const { return size; }
};

// Writes the header and returns its end.
char* PutTrpcHeader(const TrpcFrame& frame, char* out);

// Body and attachment, which must not be larger than what a frame can hold
// together with its head.
bool TooLargeForTrpc(const Buffer& body, const Buffer& attachment);

extern const ProtocolTraits kTrpcTraits;

// Nullopt for numbers without a meaning here.
std::optional<CompressionAlgorithm> CompressionFromTrpc(std::uint32_t number);
// Nothing stays nothing, which some peers couldn't decompress.
std::uint32_t CompressionToTrpc(CompressionAlgorithm algorithm,
                                const Buffer& body);

std::optional<PayloadFormat> FormatFromTrpc(std::uint32_t content_type);
std::uint32_t FormatToTrpc(PayloadFormat format);

// An outcome: one of both is not 0 in a failure.
struct TrpcCodes {
  std::int32_t ret = 0;
  std::int32_t func_ret = 0;
};
TrpcCodes StatusToTrpc(int status);
int StatusFromTrpc(TrpcCodes codes);

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_TRPC_FRAME_H_

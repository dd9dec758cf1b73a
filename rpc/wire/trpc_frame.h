// Shared by both sides of the `trpc` protocol: the frame, and the numbers that
// stand for formats, compressions and outcomes. Pure functions; nothing blocks.
#ifndef FLARE_RPC_WIRE_TRPC_FRAME_H_
#define FLARE_RPC_WIRE_TRPC_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/compression.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/wire/wire_numbers.h"

namespace flare::rpc {

// As framing.h describes.
struct TrpcFrame {
  static constexpr std::string_view kName = "trpc";
  static constexpr std::string_view kMagic = "\x09\x30";
  static constexpr std::size_t kHeaderSize = 16;
  // The limit of the protobuf header, whose size has 16 bits.
  static constexpr std::size_t kMaxMetaSize = 65535;
  static constexpr std::uint8_t kUnary = 0;
  static constexpr std::uint8_t kStream = 1;
  // Values of stream_type.
  static constexpr std::uint8_t kStreamInit = 1;
  static constexpr std::uint8_t kStreamData = 2;
  static constexpr std::uint8_t kStreamFeedback = 3;
  static constexpr std::uint8_t kStreamClose = 4;

  std::uint8_t type = kUnary;
  std::uint8_t stream_type = 0;
  std::uint32_t size = 0;  // of all
  std::uint32_t meta_size = 0;
  std::uint32_t stream_id = 0;  // a unary call's id, in version 1
  std::uint8_t version = 0;     // of this header

  CutResult Read(std::string_view bytes, std::size_t* need, std::string* error);
  std::size_t kept_size() const { return kHeaderSize + meta_size; }
  std::size_t total() const { return size; }
};

// Writes the header and returns its end.
char* PutTrpcHeader(const TrpcFrame& frame, char* out);

// There are others, of no use here. Number 2 is deprecated: a block, too, as
// the C++ peer has it.
inline constexpr WireNumbers<CompressionAlgorithm, 6> kTrpcCompressions{
    {{0, CompressionAlgorithm::kNone},
     {1, CompressionAlgorithm::kGzip},
     {5, CompressionAlgorithm::kSnappy},
     {2, CompressionAlgorithm::kSnappy},
     {3, CompressionAlgorithm::kZlib},
     {6, CompressionAlgorithm::kLz4Frame}}};
inline constexpr WireNumbers<PayloadFormat, 2> kTrpcFormats{
    {{0, PayloadFormat::kProtobuf}, {2, PayloadFormat::kVerboseJson}}};

inline constexpr ProtocolTraits kTrpcTraits{
    .attachments = true,
    .metadata = true,
    .compression = true,
    .one_way = true,
    .compressions = CompressionBits(kTrpcCompressions),
    .attachment_compression = false,
    .translates_codes = true,
    .streams_share = true};

// An outcome: one of both is not 0 in a failure.
struct TrpcCodes {
  std::int32_t ret = 0;
  std::int32_t func_ret = 0;
};
TrpcCodes StatusToTrpc(int status, FailureDetail detail = FailureDetail::kNone);
int StatusFromTrpc(TrpcCodes codes);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_TRPC_FRAME_H_

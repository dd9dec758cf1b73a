// Shared by both sides of the `baidu-std` protocol and its streams: the frame,
// and the numbers that stand for formats, compressions and outcomes. Pure
// functions; nothing blocks.
#ifndef FLARE_RPC_WIRE_BAIDU_STD_FRAME_H_
#define FLARE_RPC_WIRE_BAIDU_STD_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/wire/baidu_std_meta.h"
#include "flare/rpc/wire/wire_numbers.h"

namespace flare::rpc {

// As framing.h describes. A frame of a stream differs in its magic, and in the
// message that its meta is.
struct BaiduStdFrame {
  static constexpr std::string_view kName = "baidu-std";
  static constexpr std::string_view kMagic = "PRPC";
  static constexpr std::string_view kStreamMagic = "STRM";
  static constexpr std::size_t kHeaderSize = 12;

  bool is_stream = false;
  std::uint32_t size = 0;  // behind the header
  std::uint32_t meta_size = 0;

  CutResult Read(std::string_view bytes, std::size_t* need, std::string* error);
  std::size_t kept_size() const { return kHeaderSize + meta_size; }
  std::size_t total() const { return kHeaderSize + std::size_t{size}; }
};

// Writes the header and returns its end.
char* PutBaiduStdHeader(std::string_view magic, std::size_t meta_size,
                        std::size_t size, char* out);

// A call's frame.
void AppendBaiduStd(const BaiduStdMeta& meta, OutboundBody&& body,
                    Buffer&& attachment, BufferBuilder* out);

// There are others, of no use here.
inline constexpr WireNumbers<CompressionAlgorithm, 4> kBaiduStdCompressions{
    {{0, CompressionAlgorithm::kNone},
     {1, CompressionAlgorithm::kSnappy},
     {2, CompressionAlgorithm::kGzip},
     {3, CompressionAlgorithm::kZlib}}};
// 1 is JSON of brpc's own kind.
inline constexpr WireNumbers<PayloadFormat, 3> kBaiduStdFormats{
    {{0, PayloadFormat::kProtobuf},
     {2, PayloadFormat::kLenientJson},
     {3, PayloadFormat::kProtobufText}}};

// As ProtocolTraits has it.
bool IsFromBaiduStdService(int code);

inline constexpr ProtocolTraits kBaiduStdTraits{
    .attachments = true,
    .metadata = true,
    .compression = true,
    .compressions = CompressionBits(kBaiduStdCompressions),
    .attachment_compression = false,
    .streams_share = true,
    .is_from_service = IsFromBaiduStdService};

// Says in *meta, which is a response's, how the call ended. `text` may hold any
// bytes; its remaining part may lie in *scratch.
void SetBaiduStdOutcome(int status, FailureDetail detail, std::string_view text,
                        std::string* scratch, BaiduStdMeta* meta);
// How the call ended, as the meta of a response says it.
inline int BaiduStdOutcome(const BaiduStdMeta& meta) {
  return meta.error_code != 0 && meta.own_error_code != 0 ? meta.own_error_code
                                                          : meta.error_code;
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_BAIDU_STD_FRAME_H_

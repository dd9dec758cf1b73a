// The frames of `flare`: [header 16][meta][body][attachment], where the header
// is "CPRF" and the sizes of the three, each of 32 bits, least significant byte
// first.
//
// Pure functions; nothing blocks.
#ifndef FLARE_RPC_WIRE_FLARE_FRAME_H_
#define FLARE_RPC_WIRE_FLARE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/wire/framing.h"
#include "flare/rpc/wire/rpc_meta.h"

namespace flare::rpc {

inline std::uint32_t ReadLittleEndian(const char* at) {
  const auto byte = [at](int i) {
    return std::uint32_t{static_cast<std::uint8_t>(at[i])} << (8 * i);
  };
  return byte(0) | byte(1) | byte(2) | byte(3);  // One load, to compilers.
}

inline char* PutLittleEndian(std::size_t value, char* out) {
  out[0] = static_cast<char>(value);
  out[1] = static_cast<char>(value >> 8);
  out[2] = static_cast<char>(value >> 16);
  out[3] = static_cast<char>(value >> 24);
  return out + 4;
}

struct FlareFrame {
  static constexpr std::string_view kName = "flare";
  static constexpr std::string_view kMagic = "CPRF";
  static constexpr std::size_t kHeaderSize = 16;

  std::uint32_t meta_size = 0;
  std::uint32_t body_size = 0;
  std::uint32_t attachment_size = 0;

  CutResult Read(std::string_view bytes, std::size_t* need,
                 std::string* /*error*/) {
    const CutResult result = MatchHeader(bytes, kMagic, kHeaderSize, need);
    if (result != CutResult::kMessage) return result;
    meta_size = ReadLittleEndian(bytes.data() + 4);
    body_size = ReadLittleEndian(bytes.data() + 8);
    attachment_size = ReadLittleEndian(bytes.data() + 12);
    return CutResult::kMessage;
  }
  std::size_t kept_size() const { return kHeaderSize + meta_size; }
  std::size_t total() const {
    return kept_size() + std::size_t{body_size} + attachment_size;
  }
};

// Whether the meta begins with the field `heeds_resets`: in front of the
// others, so that IsPlainlySingle() finds it without looking for it.
enum class FlareAsk { kNothing, kForResets };

// That field, or nothing.
template <FlareAsk kAsk>
inline constexpr std::string_view kFlareBefore =
    kAsk == FlareAsk::kForResets ? "\xb8\x3f\x01" : "";

template <FlareAsk kAsk = FlareAsk::kNothing>
inline void AppendFlare(const RpcMeta& meta, OutboundBody&& body,
                        Buffer&& attachment, BufferBuilder* out) {
  const std::size_t body_size = body.size();
  const std::size_t attachment_size = attachment.size();
  // How long the meta is, is known when it has been written.
  const auto put_head = [&](char* header) {
    char* const encoded = header + FlareFrame::kHeaderSize;
    if constexpr (kAsk == FlareAsk::kForResets) {
      kFlareBefore<kAsk>.copy(encoded, kFlareBefore<kAsk>.size());
    }
    char* const end = EncodeRpcMeta(meta, encoded + kFlareBefore<kAsk>.size());
    char* at = header + FlareFrame::kMagic.copy(header, 4);
    at = PutLittleEndian(static_cast<std::size_t>(end - encoded), at);
    at = PutLittleEndian(body_size, at);
    PutLittleEndian(attachment_size, at);
    return end;
  };
  AppendFrame(
      FlareFrame::kHeaderSize + kFlareBefore<kAsk>.size() + RpcMetaBound(meta),
      put_head, std::move(body), std::move(attachment), out);
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_FLARE_FRAME_H_

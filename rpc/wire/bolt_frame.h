// Frames of Bolt v1, the protocol of SOFARPC and MOSN, for both sides. All
// numbers are big-endian.
//
//   request   1 type command:2 version id:4 codec timeout:4
//             class_size:2 headers_size:2 content_size:4         22 bytes
//   response  1 type command:2 version id:4 codec status:2
//             class_size:2 headers_size:2 content_size:4         20 bytes
//
// then the class name, the header map and the content. The peers of v2 are told
// that this is v1; its fixed parts are read, too, and its frames skipped:
//
//   request   2 protocol_version type command:2 version id:4 codec switch ...
//             (then as in v1)                                  24 bytes
//   response  (with one byte more at the same place)           22 bytes
//
// and 4 more bytes behind the content, a CRC, if protocol_version is 2 and bit
// 0 of the switch is set. Functions here are pure and never block.
#ifndef FLARE_RPC_WIRE_BOLT_FRAME_H_
#define FLARE_RPC_WIRE_BOLT_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/wire/framing.h"

namespace flare::rpc {

inline constexpr std::size_t kBoltRequestSize = 22;   // of the fixed part
inline constexpr std::size_t kBoltResponseSize = 20;  // likewise
inline constexpr std::size_t kBoltMoreInVersion2 = 2;
inline constexpr std::size_t kMaxBoltHeadersSize = 65535;

// Values of BoltFrame::type.
inline constexpr std::uint8_t kBoltTypeResponse = 0;
inline constexpr std::uint8_t kBoltTypeRequest = 1;
inline constexpr std::uint8_t kBoltTypeOneWay = 2;

// Values of BoltFrame::command.
inline constexpr std::uint16_t kBoltHeartbeat = 0;
inline constexpr std::uint16_t kBoltRpcRequest = 1;
inline constexpr std::uint16_t kBoltRpcResponse = 2;
inline constexpr std::uint16_t kBoltGoAway = 100;  // MOSN: send no more

// Why a connection ends after FloodGuard::kMaxNotices frames that aren't calls.
inline constexpr std::string_view kBoltNoticesWithoutEnd =
    "bolt: heartbeats or go-aways without end";

// The codec for protobuf messages; and Hessian, SOFARPC's default, of which
// only failures are written. (Others are Java's: 2 java, 3 top, 4 hessian2.)
inline constexpr std::uint8_t kBoltCodecProtobuf = 11;
inline constexpr std::uint8_t kBoltCodecHessian = 1;

// Keys of the header map. The service is "package.Service:version".
inline constexpr std::string_view kBoltService = "service";
inline constexpr std::string_view kBoltTargetService =
    "sofa_head_target_service";
inline constexpr std::string_view kBoltMethod = "sofa_head_method_name";
// By which SOFARPC's clients are known: those of Java send the first, those of
// node the second alone.
inline constexpr std::string_view kBoltJavaCaller = "protocol";
inline constexpr std::string_view kBoltNodeCaller = "sofa_head_target_app";
// "true": the call failed, whatever the status says; the content is the error's
// text.
inline constexpr std::string_view kBoltResponseError =
    "sofa_head_response_error";
// Our own, in responses of failed calls, named as in `http+pb`: the status code
// as a decimal number, and, where it isn't the content, the error's text.
inline constexpr std::string_view kBoltErrorCode = "Rpc-Error-Code";
inline constexpr std::string_view kBoltErrorReason = "Rpc-Error-Reason";

// A header of the first requests: the client takes a go-away. SOFARPC's close
// the connection on it, with all calls.
inline constexpr std::string_view kBoltTakesGoAway = "Rpc-Takes-Go-Away";
inline constexpr std::string_view kBoltTrue = "true";

// Whether the protocol needs a key for itself, so that metadata can't have it.
bool IsBoltKey(std::string_view key);

// The fixed part. Its id tells whose a frame is, so that is all that is read of
// one that is too large (see framing.h).
struct BoltFrame {
  static constexpr std::string_view kName = "bolt";
  static constexpr std::size_t kHeaderSize =
      kBoltRequestSize + kBoltMoreInVersion2;

  std::uint8_t type = 0;
  std::uint16_t command = 0;
  std::uint32_t id = 0;
  std::uint8_t codec = 0;
  std::int32_t timeout_ms = 0;  // requests
  std::uint16_t status = 0;     // responses
  std::uint16_t class_size = 0;
  std::uint16_t headers_size = 0;
  std::uint32_t content_size = 0;
  std::uint8_t protocol_version = 0;  // 1 or 2 in v2, 0 in v1
  bool has_crc = false;

  bool version2() const { return protocol_version != 0; }
  std::size_t fixed_size() const {
    return (type == kBoltTypeResponse ? kBoltResponseSize : kBoltRequestSize) +
           (version2() ? kBoltMoreInVersion2 : 0);
  }
  // Everything before the content.
  std::size_t head_size() const {
    return fixed_size() + class_size + headers_size;
  }
  std::size_t total() const {
    return head_size() + content_size + (has_crc ? 4 : 0);
  }

  // As framing.h wants them.
  CutResult Read(std::string_view bytes, std::size_t* need, std::string* error);
  std::size_t kept_size() const { return fixed_size(); }
};

// That of a frame that was cut off before.
BoltFrame DecodeBoltFrame(const Buffer& wire);

// The server stops: send no call any more.
std::string BoltGoAway();
// The answer to a heartbeat, in v1.
std::string BoltHeartbeatReply(const BoltFrame& frame);

// Goes through a header map: pairs of strings, each with its size (4 bytes)
// before it. A size of all ones stands for null: the pair is dropped, and a key
// comes next.
class BoltHeaderReader {
 public:
  explicit BoltHeaderReader(std::string_view bytes) : rest_(bytes) {}

  // False: there are no more, or they are malformed.
  bool Next();
  std::string_view key() const { return key_; }
  std::string_view value() const { return value_; }
  bool malformed() const { return malformed_; }

 private:
  std::optional<std::string_view> Take();

  std::string_view rest_;
  std::string_view key_;
  std::string_view value_;
  bool malformed_ = false;
};

constexpr std::size_t BoltHeaderSize(std::size_t key, std::size_t value) {
  return 4 + key + 4 + value;
}
// Writes the pair except the last `open` bytes of the value, which are the
// caller's to append; returns the place behind them.
char* PutBoltHeader(std::string_view key, std::string_view value, char* out,
                    std::size_t open = 0);

// Metadata as pairs of a header map, values as text; nothing for null. Entries
// whose names are keys of the protocol's (IsBoltKey()) are left out.
std::string BoltMetadata(const Metadata* metadata);
// A header map's pairs as metadata, without the protocol's. As ReadMetadata()
// of HTTP. The map must be well.
[[nodiscard]] std::string ReadBoltMetadata(std::string_view headers,
                                           const MetadataLimits& limits,
                                           std::unique_ptr<Metadata>* metadata);

// A call's outcome as a response status, and the meaning of a status where
// there is no kBoltErrorCode; total, but of course not each other's inverse. 6
// is "no processor" of SOFARPC's servers, and "no healthy upstream" of MOSN's.
std::uint16_t BoltStatusFor(int status);
int StatusFromBolt(std::uint16_t bolt_status);
// "no processor" for 6; "unknown" for other numbers than the protocol's.
std::string_view BoltStatusText(std::uint16_t bolt_status);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_BOLT_FRAME_H_

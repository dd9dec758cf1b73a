// The meta part of a `flare` packet: the protobuf message flare.rpc.RpcMeta
// (see rpc_meta.proto), read and written by a table of its fields because
// generated code would allocate two messages and a string per call.
//
// Pure functions on memory of the caller: nothing allocates, blocks or locks.
#ifndef FLARE_RPC_WIRE_RPC_META_H_
#define FLARE_RPC_WIRE_RPC_META_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

// Values of RpcMeta::method_type.
inline constexpr std::int32_t kMethodTypeSingle = 1;
inline constexpr std::int32_t kMethodTypeStream = 2;

// Bits of RpcMeta::flags.
inline constexpr std::uint64_t kFlagStartOfStream = 1;
inline constexpr std::uint64_t kFlagEndOfStream = 2;
inline constexpr std::uint64_t kFlagNoPayload = 4;

// Fields of our own, which published peers pass over.
//   1001 metadata  entries, of requests and replies; of a stream in the first
//                packet of the caller, and in the first and the last one of the
//                server
//   1011 hello   "I know these fields"
//   1012 window  bytes of messages that the sender takes on this stream before
//                it grants more; in the first packet of either direction. A
//                peer that has sent one heeds that of the other. On a
//                connection of its own (ids below 2^32) a caller sends without
//                limit until it has the server's, which comes at once, in a
//                packet of its own
//   1013 credit  so many bytes more
//   1014 reset   the caller gives the stream up, with this status; or, without
//                request_meta, the call of one message with that id
//   1015 heeds_resets   of calls of one message: a caller asks by it whether
//                the server does, which says so in a frame with id 0 and
//                neither request_meta nor response_meta. In front of the other
//                fields (AppendFlare)
//   1016 notice  a message beside all calls (its id is 0, it has no body), for
//                a client that has sent hello or heeds_resets: one of the
//                numbers below. Others are passed over
inline constexpr std::uint32_t kNoticeStopping = 1;  // Send no more calls.

// Views point into the bytes that were decoded. When encoding, the optional
// fields with value 0 (false, empty) are left out; request_meta and
// response_meta are written if `has_request` and `has_response` say so, the
// required fields always.
struct RpcMeta {
  std::uint64_t correlation_id = 0;
  std::int32_t method_type = 0;
  std::int32_t compression_algorithm = 0;
  std::uint64_t flags = 0;
  bool attachment_compressed = false;
  bool hello = false;
  std::uint32_t window = 0;
  std::uint32_t credit = 0;
  std::int32_t reset = 0;
  bool heeds_resets = false;
  std::uint32_t notice = 0;
  // Whether a required field or a submessage was present.
  bool has_correlation_id = false;
  bool has_method_type = false;
  bool has_request = false;
  bool has_method_name = false;
  bool has_response = false;
  bool has_status = false;

  // request_meta
  std::string_view method_name;
  std::string_view tracing_context;
  std::uint64_t acceptable_compression_algorithms = 0;
  std::uint32_t request_id = 0;
  std::uint32_t timeout = 0;  // milliseconds

  // response_meta
  std::int32_t status = 0;
  bool trace_forcibly_sampled = false;
  std::string_view description;

  // For requests and responses; our own, in a field that other peers skip.
  MetadataFields metadata;
};

// Decodes `bytes` into *meta, which must be fresh. Returns an empty text or the
// encoding's fault; *meta then holds the fields in front of the fault, so that
// a correlation id may be there. Accepts the same input as protobuf's own
// parser, except that groups (which no version of the schema has) are errors.
// Unknown fields are skipped. Missing required fields and unknown enum values
// are no errors here; the has_ flags and the raw numbers tell.
[[nodiscard]] std::string_view DecodeRpcMeta(std::string_view bytes,
                                             RpcMeta* meta);

// Whether it is of a stream, as far as can be told without decoding all of it:
// false for malformed ones.
[[nodiscard]] bool IsStreamMeta(std::string_view bytes);

// Whether the meta has one of the fields for resets, or a notice, as far as a
// look without full decoding tells: false for malformed bytes.
[[nodiscard]] bool SpeaksOfResets(std::string_view bytes);

// True only if the meta isn't that of a stream and has no field for resets;
// false if the two functions above must look. Recognises the usual shape of
// unary calls and their replies: a correlation id, a short request_meta or
// response_meta, and the method's type.
[[nodiscard]] inline bool IsPlainlySingle(std::string_view bytes) {
  std::size_t at = 1;
  const auto byte = [&bytes, &at](std::size_t i) {
    return static_cast<std::uint8_t>(bytes[at + i]);
  };
  if (bytes.size() < 6 || bytes[0] != 0x08) return false;
  while (byte(0) >= 0x80) {
    if (++at + 5 > bytes.size()) return false;
  }
  ++at;
  const std::size_t size = byte(1);
  if ((byte(0) != 0x2a && byte(0) != 0x32) || size >= 0x80) return false;
  at += 2 + size;
  return at + 2 <= bytes.size() && byte(0) == 0x38 &&
         byte(1) == kMethodTypeSingle;
}

// No encoding of the meta has more bytes; quicker to say than how many it has.
std::size_t RpcMetaBound(const RpcMeta& meta);

// Writes at most RpcMetaBound(meta) bytes to `out` and returns their end.
char* EncodeRpcMeta(const RpcMeta& meta, char* out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_RPC_META_H_

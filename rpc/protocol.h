// Between bytes and messages: the interface that a wire format implements and
// connections call, a server's (server_protocol.h) and a client's
// (client_protocol.h). This file has the part common to both sides. No IO and
// no fibers in any of the three.
//
// Rules every implementation keeps:
//   - Limits are enforced on announced sizes, before bytes are gathered.
//   - A bad message whose sender can be told is answered (see ParseResult),
//     else the connection is closed with a text. No input crashes or is
//     ignored.
//   - In steady state neither direction calls the general allocator.
#ifndef FLARE_RPC_PROTOCOL_H_
#define FLARE_RPC_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

// The largest limit: with the numbers that are added to it it is still a number
// of its type.
inline constexpr std::size_t kMaxLimit =
    std::numeric_limits<std::size_t>::max() / 2;

// Limits of the metadata that peers send.
struct MetadataLimits {
  std::size_t entries = Metadata::kMaxEntries;
  std::size_t bytes = Metadata::kMaxBytes;
};

// Limits of the input that a connection accepts. Sizes in bytes.
struct Limits {
  // Header, meta, body and attachment of one message together.
  std::size_t max_packet_size = 4 << 20;
  // A larger message of up to this size is skipped as it comes, once its call
  // has failed. An even larger one closes the connection: the messages behind
  // it would wait for long, or for ever if the size is wrong.
  std::size_t max_skipped = 64 << 20;
  // The protobuf message that describes a call in binary protocols. Larger ones
  // close the connection, before they are gathered.
  std::size_t max_meta_size = 64 << 10;
  // The head of a message that begins with lines of text: its first line and
  // its header fields.
  std::size_t max_head_size = 8192;
  std::size_t max_head_fields = 100;
  // Requests that must be answered in order and aren't yet; one more is refused
  // and closes the connection. (A Server stops reading before.)
  std::size_t max_pipeline = 1024;
  // Replies held back because an earlier one isn't ready. From an eighth of it
  // on, calls that can wait do so before they make their own; more closes the
  // connection.
  std::size_t max_reorder_bytes = 256 << 20;
  // More fails the call, before there is memory for it.
  MetadataLimits metadata = {};
  // For the code that decompresses bodies and attachments.
  std::size_t max_decompressed_size = 64 << 20;
  // Replies of so many bytes are compressed where RequestHead allows that
  // though the service doesn't ask for it; 0: none are.
  std::size_t compress_unasked_from = 0;
};

// Options that set max_packet_size, as texts of failures name them: so callers
// see on which side it is too small.
inline constexpr std::string_view kServerSizeLimit =
    "flare_rpc_server_max_packet_size";
inline constexpr std::string_view kClientSizeLimit =
    "flare_rpc_channel_max_packet_size";
// "a <what> of <size> bytes exceeds the limit of <limit> (<by>)".
std::string SizeLimitText(std::string_view what, std::uint64_t size,
                          std::size_t limit, std::string_view by);

// Those of a client: peers may describe failures as lengthily as a packet has
// room for, and a connection is shared by many calls.
inline Limits ClientLimits(std::size_t max_packet_size) {
  return {.max_packet_size = max_packet_size,
          .max_meta_size = max_packet_size,
          .max_head_size = max_packet_size};
}

// The form of messages in `body`; see wire/payload.h for the conversion.
enum class PayloadFormat : std::uint8_t {
  kProtobuf,      // binary
  kProtobufText,  // text format, on one line
  kProto3Json,    // the protobuf library's JSON
  kLenientJson,   // likewise; fields that the message lacks are passed over
  // Read as kLenientJson. Written with the names of the .proto file, enums as
  // numbers, and 0 or "" where nothing is set, as servers of other frameworks
  // do.
  kVerboseJson,
};

// The abilities of a protocol. Where it can't compress, messages go
// uncompressed. Where it can't carry attachments, a request with one fails
// (STATUS_NOT_SUPPORTED), and a response is sent without it, with a line in the
// log.
struct ProtocolTraits {
  bool attachments = false;
  // As with attachments.
  bool metadata = false;
  bool compression = false;
  // Several calls at once on one connection, replies in any order.
  bool multiplexed = true;
  // Calls without a reply.
  bool one_way = false;
  // Where there is compression: bit n for CompressionAlgorithm n, and whether
  // attachments are compressed too.
  std::uint64_t compressions = 0;
  bool attachment_compression = true;
  // A compressed body may have Limits::max_packet_size bytes unpacked, no more.
  bool unpacked_within_packet = false;
  // A reply has a place for metadata behind its message, too.
  bool trailers = false;
  // A failed call's reply may bring message and attachment, too.
  bool failures_have_messages = false;
  // Codes of failed calls are translated into those of the protocol, so that
  // another in place of STATUS_OVERLOADED would be taken for a service's own.
  bool translates_codes = false;
  // Streams share connections with other calls, with any server.
  bool streams_share = false;
  // Which codes of failed calls are a service's own, and not to be retried.
  bool (*is_from_service)(int code) = IsFromService;

  bool Compresses(CompressionAlgorithm algorithm) const {
    return compression && (compressions >> static_cast<int>(algorithm) & 1);
  }
};

enum class CutResult {
  kMessage,   // one message was taken off the input
  kHandled,   // bytes were taken and dealt with by the protocol itself, such as
              // a heartbeat or a message of a stream: there is no message; ask
              // again
  kNeedMore,  // it is this protocol's, but incomplete
  kUnsure,    // too few bytes to tell; nothing was taken
  kNotMine,   // not this protocol; nothing was taken
  kError,     // broken beyond an answer: close the connection with *error
};

enum class ParseResult {
  kOk,
  // Server: call WriteRejection (reject_status and reject_reason have the
  // error); the connection goes on unless the protocol closes it after the
  // reply. Client: the call whose id is in the response fails with `status` and
  // `description`, which are filled in.
  kReject,
  // The peer can't be answered (no correlation id): close the connection with
  // reject_reason (server) or description (client) as the text.
  kClose,
};

// The first `size` bytes of `in` (which has them), copied to *scratch.
std::string_view CopyPrefix(const Buffer& in, std::size_t size,
                            std::string* scratch);

// For protocols: the first `size` bytes of `in` (which has them) in one piece,
// where they are if they lie in one block, else copied to *scratch.
inline std::string_view ContiguousPrefix(const Buffer& in, std::size_t size,
                                         std::string* scratch) {
  const std::string_view first = in.FirstContiguous();
  if (first.size() < size) [[unlikely]]
    return CopyPrefix(in, size, scratch);
  return {first.data(), size};
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_H_

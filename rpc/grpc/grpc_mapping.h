// Between gRPC's form of a call over HTTP/2 and ours: names of methods,
// timeouts, texts of failures, compressions, metadata, and the messages with
// their prefix of five bytes. For the server's and the client's protocol.
//
// No IO; nothing blocks. Functions are pure and thread-safe.
#ifndef FLARE_RPC_GRPC_GRPC_MAPPING_H_
#define FLARE_RPC_GRPC_GRPC_MAPPING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/status.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

// --- names of methods ---

// "/package.Service/Method" for "package.Service.Method", into *path. False if
// it has no such parts.
bool GrpcPathOf(std::string_view method, std::string* path);
// The reverse, into *method. False for other paths.
bool MethodOfGrpcPath(std::string_view path, std::string* method);

// --- the type of content ---

// "application/grpc", "application/grpc+proto", "application/grpc+json", maybe
// with parameters behind a semicolon. Nullopt for others.
std::optional<PayloadFormat> ParseGrpcContentType(std::string_view type);
inline constexpr std::string_view kGrpcContentType = "application/grpc";
std::string_view GrpcContentTypeOf(PayloadFormat format);
// Whether it begins as gRPC's do, so that a refusal is gRPC's, too.
bool IsGrpcContentType(std::string_view type);

// --- grpc-timeout ---

// At most eight digits and a unit. Rounded up; larger values become the largest
// one.
std::string GrpcTimeout(std::uint32_t ms);
// In nanoseconds; nullopt if it isn't one. Too much is the largest number.
std::optional<std::int64_t> ParseGrpcTimeout(std::string_view text);

// --- grpc-message ---

// Printable ASCII as it is, except '%', and blanks at the begin and the end,
// which no field may have; %XX for all other bytes.
std::string EncodeGrpcMessage(std::string_view text);
// The reverse. A '%' without two hexadecimal digits is taken as it is.
std::string DecodeGrpcMessage(std::string_view text);

// --- grpc-status, and rpc-error-code beside it ---

// The field in which our servers say a status that gRPC has no code for.
inline constexpr std::string_view kGrpcExactStatusField = "rpc-error-code";

// The status that a response states: `exact` is the field above, which counts
// if gRPC's code is the one that belongs to it. An unknown or malformed code is
// STATUS_FAILED, as gRPC says.
int StatusOfGrpcFields(std::string_view grpc_status, std::string_view exact);

// --- compression ---

// The names of gRPC. "gzip" is the format gzip, "deflate" the format zlib;
// "snappy" (one raw block) and "zstd" are understood among our own.
std::optional<CompressionAlgorithm> ParseGrpcEncoding(std::string_view name);
// Empty for those without a name in gRPC.
std::string_view GrpcEncodingOf(CompressionAlgorithm algorithm);
// Bit n: CompressionAlgorithm n; without unknown ones.
std::uint64_t ParseGrpcAcceptEncoding(std::string_view list);
inline constexpr std::string_view kGrpcAcceptEncoding =
    "identity,deflate,gzip,zstd,snappy";
// For ProtocolTraits::compressions.
std::uint64_t GrpcCompressions();

// --- messages ---

inline constexpr std::size_t kGrpcPrefixSize = 5;

// Appends prefix and message. `compressed`: `body` is so, by grpc-encoding.
// False, with nothing appended: it is 4 GiB or more.
bool AppendGrpcMessage(OutboundBody&& body, bool compressed,
                       BufferBuilder* out);

// A message in a Buffer of its own; nothing if it is 4 GiB or more.
std::optional<Buffer> MakeGrpcMessage(OutboundBody&& body, bool compressed);

struct GrpcMessage {
  bool compressed = false;
  Buffer body;
};

// Cuts messages off the bytes of one direction of a stream. Not thread-safe.
class GrpcMessageCutter {
 public:
  enum class Result { kMessage, kNeedMore, kTooLarge, kError };

  // Messages of more bytes, as they come, are too large. `by` names the limit's
  // option and must be a literal.
  GrpcMessageCutter(std::size_t max_size, std::string_view by)
      : max_size_(max_size), by_(by) {}

  void Add(Buffer&& bytes) {
    in_.Append(std::move(bytes));
    compaction_.AfterAppend(&in_);
  }
  void Add(std::string_view bytes) {
    in_.Append(bytes);
    compaction_.AfterAppend(&in_);
  }
  void Clear() { in_.Clear(); }
  // The next message. kError, from then on: *error says why.
  Result Next(GrpcMessage* message, flare::Status* error);
  // Bytes that the message lacks which has begun, as far as its prefix says; 0:
  // none has.
  std::size_t missing() const;
  // No part of a message is left.
  bool empty() const { return in_.empty(); }

 private:
  std::size_t max_size_;
  std::string_view by_;
  Buffer in_;
  PacedCompaction compaction_;
};

// Whether the message may be compressed, if it is. `encoding` is the stream's
// grpc-encoding. Fails with the status for its call: of a message that is
// compressed without or by an unknown encoding.
[[nodiscard]] flare::Status CheckGrpcCompression(
    const GrpcMessage& message, std::optional<CompressionAlgorithm> encoding);

// --- metadata ---

// Whether a field belongs to HTTP/2 or gRPC itself, and is no metadata.
bool IsGrpcField(std::string_view name);

// Calls add(name, value) for each entry; binary values are base64. Bytes that
// no field may have, which a received value may, are blanks, or left out at its
// begin and its end.
template <class Add>
void ForEachGrpcField(const Metadata& metadata, Add&& add);
// An entry's value as a field's; mostly without a copy, else in *scratch.
std::string_view GrpcFieldValue(Metadata::Entry entry, std::string* scratch);

// Gathers metadata from fields, within limits.
class GrpcMetadataReader {
 public:
  explicit GrpcMetadataReader(const MetadataLimits& limits) : limits_(limits) {}

  // Passes over fields that are no metadata.
  void Add(std::string_view name, std::string_view value);
  // There has been none since Take().
  bool empty() const { return count_.entries == 0; }
  // Returns an empty text, or why it is too much. *metadata stays null if there
  // is none. The reader is then empty.
  [[nodiscard]] std::string Take(std::unique_ptr<Metadata>* metadata);

 private:
  void AddValue(std::string_view name, std::string_view value);

  MetadataLimits limits_;
  MetadataCount count_;
  std::unique_ptr<Metadata> taken_;
};

template <class Add>
void ForEachGrpcField(const Metadata& metadata, Add&& add) {
  std::string scratch;
  for (const Metadata::Entry entry : metadata) {
    add(entry.name, GrpcFieldValue(entry, &scratch));
  }
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_GRPC_GRPC_MAPPING_H_

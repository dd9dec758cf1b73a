// The meta part of a `baidu-std` packet: the protobuf message RpcMeta of brpc
// (see baidu_std_meta.proto), read and written by a table of its fields because
// generated code would allocate messages and strings for each call.
//
// Pure functions on memory of the caller: nothing allocates, blocks or locks.
#ifndef FLARE_RPC_WIRE_BAIDU_STD_META_H_
#define FLARE_RPC_WIRE_BAIDU_STD_META_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

// Views point into the bytes that were decoded. When encoding, the request and
// the response are written if `has_request` and `has_response` say so, with
// their names and the error code; the correlation id always; compress_type if
// it isn't 0 or there is a request (as published clients do); other fields that
// are 0 or empty are left out.
struct BaiduStdMeta {
  std::int32_t compress_type = 0;
  std::int32_t attachment_size = 0;
  std::uint64_t correlation_id = 0;  // an int64 on the wire
  std::int32_t content_type = 0;
  std::int32_t checksum_type = 0;
  std::string_view checksum_value;
  bool checksum_with_attachment = false;
  // Whether a field was present.
  bool has_correlation_id = false;
  bool has_request = false;
  bool has_service_name = false;
  bool has_method_name = false;
  bool has_response = false;
  bool has_stream_settings = false;

  // request
  std::string_view service_name;  // with its package
  std::string_view method_name;   // without the service
  std::uint64_t log_id = 0;       // an int64 on the wire; 0: none
  std::int32_t timeout_ms = 0;

  // response
  std::int32_t error_code = 0;
  std::string_view error_text;
  // In user_fields, as "Rpc-Error-Code": the code that error_code is a
  // translation of; 0: none.
  std::int32_t own_error_code = 0;

  // stream_settings, of both: of the sender's end of the stream that comes with
  // the call. Written if has_stream_settings says so.
  std::uint64_t stream_id = 0;         // an int64 on the wire
  bool stream_needs_feedback = false;  // the sender stops without FEEDBACK
  bool stream_writable = false;        // the sender takes messages
  // A field of our own: bytes that the sender takes unread; 0: it isn't ours.
  std::uint32_t stream_window = 0;

  // A field of our own: see stop_notice.h.
  std::uint32_t notice = 0;

  // For requests and responses: the other user_fields, values as text.
  MetadataFields metadata;
};

// Decodes `bytes` into *meta, which must be fresh. Returns an empty text or the
// encoding's fault; *meta then holds the fields in front of the fault. Accepts
// the same input as protobuf's own parser, except that groups are errors.
// Unknown fields are skipped; missing required ones are no errors here.
[[nodiscard]] std::string_view DecodeBaiduStdMeta(std::string_view bytes,
                                                  BaiduStdMeta* meta);

// Whether there are stream settings, or a notice, in an encoded meta, and its
// correlation id, 0 if there is none: cheaper than to decode it. Bytes behind a
// fault aren't looked at.
bool HasStreamSettings(std::string_view bytes);
bool HasNotice(std::string_view bytes);
std::uint64_t CorrelationIdOf(std::string_view bytes);

// Size of the encoding in bytes.
std::size_t BaiduStdMetaSize(const BaiduStdMeta& meta);

// Writes BaiduStdMetaSize(meta) bytes to `out` and returns the end.
char* EncodeBaiduStdMeta(const BaiduStdMeta& meta, char* out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_BAIDU_STD_META_H_

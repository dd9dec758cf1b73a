// The protobuf headers of `trpc` frames: the messages RequestProtocol and
// ResponseProtocol (see trpc_meta.proto), read and written by tables of
// their fields because generated code would allocate strings and maps for each
// call.
//
// Pure functions on memory of the caller: nothing allocates, blocks or locks.
#ifndef FLARE_RPC_WIRE_TRPC_META_H_
#define FLARE_RPC_WIRE_TRPC_META_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

// Values of call_type.
inline constexpr std::uint32_t kTrpcUnary = 0;
inline constexpr std::uint32_t kTrpcOneWay = 1;

// Values of ret: the framework's codes, of servers.
inline constexpr std::int32_t kTrpcDecodeError = 1;
inline constexpr std::int32_t kTrpcEncodeError = 2;
inline constexpr std::int32_t kTrpcNoService = 11;
inline constexpr std::int32_t kTrpcNoMethod = 12;
inline constexpr std::int32_t kTrpcTimeout = 21;
inline constexpr std::int32_t kTrpcOverloaded = 22;
inline constexpr std::int32_t kTrpcRateLimited = 23;
inline constexpr std::int32_t kTrpcBudgetSpent = 24;
inline constexpr std::int32_t kTrpcSystemError = 31;

// Views point into the bytes that were decoded. Fields that are 0 or empty are
// left out when encoding.
struct TrpcRequestMeta {
  std::uint32_t version = 0;
  std::uint32_t call_type = kTrpcUnary;
  std::uint32_t request_id = 0;
  std::uint32_t timeout = 0;  // milliseconds
  std::string_view caller;
  std::string_view callee;
  // "/service/method". Encoding goes by the parts; decoding leaves them empty
  // if `func` is something else.
  std::string_view func;
  std::string_view service;
  std::string_view method;
  std::uint32_t message_type = 0;
  std::uint32_t content_type = 0;
  std::uint32_t content_encoding = 0;
  std::uint32_t attachment_size = 0;
  MetadataFields metadata;   // trans_info
  std::uint32_t notice = 0;  // our own: see stop_notice.h
  std::string_view bytes;    // decoding: all of them
};

struct TrpcResponseMeta {
  std::uint32_t version = 0;
  std::uint32_t call_type = kTrpcUnary;
  std::uint32_t request_id = 0;
  std::int32_t ret = 0;
  std::int32_t func_ret = 0;
  std::string_view error_msg;
  std::uint32_t message_type = 0;
  std::uint32_t content_type = 0;
  std::uint32_t content_encoding = 0;
  std::uint32_t attachment_size = 0;
  MetadataFields metadata;   // trans_info
  std::uint32_t notice = 0;  // our own: see stop_notice.h
  // When encoding: the encoded RequestProtocol whose trans_info is repeated, in
  // front of the entries of `metadata`.
  std::string_view request;
};

// Decode `bytes` into *meta, which must be fresh. Return an empty text or the
// encoding's fault; *meta then holds the fields in front of the fault. Accept
// the same input as protobuf's own parser, except that groups are errors.
// Unknown fields are skipped.
[[nodiscard]] std::string_view DecodeTrpcRequest(std::string_view bytes,
                                                 TrpcRequestMeta* meta);
[[nodiscard]] std::string_view DecodeTrpcResponse(std::string_view bytes,
                                                  TrpcResponseMeta* meta);

// Whether an encoded request has a notice: cheaper than to decode it.
bool TrpcRequestHasNotice(std::string_view bytes);

// Sizes of the encodings in bytes.
std::size_t TrpcRequestSize(const TrpcRequestMeta& meta);
std::size_t TrpcResponseSize(const TrpcResponseMeta& meta);

// Cheaper: as many at most.
std::size_t TrpcRequestBound(const TrpcRequestMeta& meta);
std::size_t TrpcResponseBound(const TrpcResponseMeta& meta);

// Write the encoding to `out` and return its end.
char* EncodeTrpcRequest(const TrpcRequestMeta& meta, char* out);
char* EncodeTrpcResponse(const TrpcResponseMeta& meta, char* out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_TRPC_META_H_

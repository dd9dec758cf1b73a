// HTTP/1.x message heads, read strictly: whatever two parsers could take
// differently (which is how requests are smuggled) is an error. Bare CR or LF,
// folded fields, blanks before a colon, two lengths, a length besides chunks:
// all refused.
//
//   HttpHead head;
//   auto size = PeekRequestHead(in.FirstContiguous(), 8192, 100, &head);
//
// reads the usual head, which is complete, in one piece and well, in one pass.
// For all others, and to learn their faults:
//
//   std::size_t scanned = 0, size = 0;
//   if (FindHeadEnd(in, 8192, &scanned, &size) == HeadEnd::kFound) {
//     HttpFault fault = ParseRequestHead(bytes_of_head, 100, &head);
//
// Heads aren't copied: an HttpHead consists of views into the bytes given.
// Nothing here allocates, blocks or locks.
#ifndef FLARE_RPC_HTTP_HTTP_PARSER_H_
#define FLARE_RPC_HTTP_HTTP_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/rpc/http/http_coding.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

// The fault of a message, and the status that tells a client so.
struct HttpFault {
  int status = 0;  // 0: nothing
  std::string_view text;

  explicit operator bool() const { return status != 0; }
};

enum class HeadEnd {
  kFound,
  kIncomplete,
  kTooLarge,  // more than `limit` bytes and no end
  kBareLf,    // a line that ends without CR
};

// Looks for the empty line that ends a head. On kFound *size is the size of the
// head with that line. *scanned (0 at first) remembers where to go on when more
// bytes have come, so that a head which trickles in costs linear time. Unless
// it is found, that is the beginning of the line that isn't complete, or wrong.
HeadEnd FindHeadEnd(const Buffer& in, std::size_t limit, std::size_t* scanned,
                    std::size_t* size);

// A field that should be a number.
struct HttpNumber {
  std::string_view text;               // as received; see below
  std::optional<std::uint64_t> value;  // nullopt: absent, or no number

  // Whether the field is there.
  explicit operator bool() const { return text.data() != nullptr; }
};

// The contents of the start line and of the fields that matter to us. Absent
// texts are empty views with data() == nullptr.
struct HttpHead {
  // Request line.
  HttpMethod method = HttpMethod::Unspecified;
  std::string_view method_name;
  std::string_view target;
  std::string_view path;  // PathOfTarget(target)
  // Status line.
  int status = 0;
  std::string_view reason;
  int minor_version = 1;  // of HTTP/1.x

  HttpNumber content_length;  // always a number, if it is there
  bool chunked = false;
  bool close = false;       // Connection: close, or Upgrade: websocket
  bool keep_alive = false;  // Connection: keep-alive
  bool expect_continue = false;
  bool has_host = false;
  bool repeats_length = false;  // several Content-Length, all the same
  bool encoded = false;         // Content-Encoding: not identity
  bool has_others = false;      // a field that isn't read into this struct
  // Of a body that is `encoded`. kUnknown: in another way, or in several.
  CompressionAlgorithm encoding = CompressionAlgorithm::kNone;
  HttpCodings accept_encoding;
  std::string_view content_type;
  std::string_view origin;  // In a request.
  HttpNumber rpc_seq_no;
  HttpNumber rpc_timeout;
  std::string_view rpc_error_code;
  std::string_view rpc_error_reason;

  // The lines of all fields, as HttpHeaders::AssignLines() takes them.
  std::string_view fields;
};

// `head` must end with the empty line. On a fault *head is valid as far as it
// was read. Faults: 400, 417 (an expectation other than 100-continue), 431 (too
// many fields), 501 (transfer coding, CONNECT), 505 (version).
HttpFault ParseRequestHead(std::string_view head, std::size_t max_fields,
                           HttpHead* out);
// Faults have status 502: the other side is wrong.
HttpFault ParseResponseHead(std::string_view head, std::size_t max_fields,
                            HttpHead* out);

// The size of the head at the start of `bytes`, which it is parsed from, if it
// is all there, has at most `limit` bytes and no fault. Otherwise *out must not
// be used.
std::optional<std::size_t> PeekRequestHead(std::string_view bytes,
                                           std::size_t limit,
                                           std::size_t max_fields,
                                           HttpHead* out);
std::optional<std::size_t> PeekResponseHead(std::string_view bytes,
                                            std::size_t limit,
                                            std::size_t max_fields,
                                            HttpHead* out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_PARSER_H_

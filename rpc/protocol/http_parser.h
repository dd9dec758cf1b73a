// HTTP/1.x message heads and chunked bodies, read strictly: whatever two
// parsers could take differently (which is how requests are smuggled) is an
// error. Bare CR or LF, folded fields, blanks before a colon, two lengths, a
// length besides chunks: all refused.
//
//   std::size_t scanned = 0, size = 0;
//   if (FindHeadEnd(in, 8192, &scanned, &size) == HeadEnd::kFound) {
//     HttpHead head;
//     HttpFault fault = ParseRequestHead(bytes_of_head, 100, &head);
//
// Heads aren't copied: an HttpHead consists of views into the bytes given.
// Nothing here allocates (but for a chunked body's blocks), blocks or locks.
#ifndef FLARE_RPC_PROTOCOL_HTTP_PARSER_H_
#define FLARE_RPC_PROTOCOL_HTTP_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

// What is wrong with a message, and the status that tells a client so.
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
// bytes have come, so that a head which trickles in costs linear time.
HeadEnd FindHeadEnd(const Buffer& in, std::size_t limit, std::size_t* scanned,
                    std::size_t* size);

// What the start line and the fields that matter to us say. Absent texts are
// empty views with data() == nullptr.
struct HttpHead {
  // Request line.
  HttpMethod method = HttpMethod::Unspecified;
  std::string_view method_name;
  std::string_view target;
  // Status line.
  int status = 0;
  std::string_view reason;
  int minor_version = 1;  // of HTTP/1.x

  bool has_content_length = false;
  std::uint64_t content_length = 0;
  bool chunked = false;
  bool close = false;       // Connection: close
  bool keep_alive = false;  // Connection: keep-alive
  bool expect_continue = false;
  bool has_host = false;
  std::string_view content_type;
  std::string_view rpc_seq_no;
  std::string_view rpc_timeout;
  std::string_view rpc_error_code;
  std::string_view rpc_error_reason;

  // All fields, as HeaderFieldReader reads them.
  std::string_view fields;
};

// `head` must end with the empty line. On a fault *head is valid as far as it
// was read. Faults: 400, 417 (an expectation other than 100-continue), 431 (too
// many fields), 501 (transfer coding), 505 (version).
HttpFault ParseRequestHead(std::string_view head, std::size_t max_fields,
                           HttpHead* out);
// Faults have status 502: the other side is wrong.
HttpFault ParseResponseHead(std::string_view head, std::size_t max_fields,
                            HttpHead* out);

// Walks over fields that a parse function accepted.
class HeaderFieldReader {
 public:
  explicit HeaderFieldReader(std::string_view fields) : rest_(fields) {}
  bool Next(std::string_view* name, std::string_view* value);

 private:
  std::string_view rest_;
};

// The path in a request target, without query: also that of the absolute form
// ("http://host/path?query" -> "/path").
std::string_view PathOfTarget(std::string_view target);

// Takes a chunked body off the input, as it comes.
class ChunkedDecoder {
 public:
  enum class Result { kDone, kNeedMore, kError, kTooLarge };

  // Starts a new body of at most `max_body` bytes, whose trailer section and
  // chunk-size lines (each) take at most `max_line_bytes`.
  void Start(std::size_t max_body, std::size_t max_line_bytes);

  // Consumes from `in` what belongs to the body and appends the payload to
  // *body. After kDone `in` begins behind the body; after kError and kTooLarge
  // the object must be started anew. Trailer fields are read and dropped.
  Result Feed(Buffer& in, Buffer* body);

 private:
  enum class State : std::uint8_t {
    kSize,       // hex digits
    kExtension,  // ignored, up to CR
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,  // at the start of a line
    kTrailer,       // inside one
    kTrailerLf,
    kEndLf,
  };

  // Handles one byte of framing; false if it can't be there.
  bool Step(char c);
  bool StepSize(char c);
  void TakeData(Buffer& in, Buffer* body);

  State state_ = State::kSize;
  bool has_digit_ = false;
  bool done_ = false;
  std::uint64_t chunk_left_ = 0;
  std::size_t body_left_ = 0;
  std::size_t line_left_ = 0;
  std::size_t max_line_bytes_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_HTTP_PARSER_H_

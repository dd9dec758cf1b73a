// Takes the response to one plain request off the input of a connection, as it
// comes: heads by http_parser.h, as strictly as that reads them, bodies by
// RFC 9112, 6.3. HttpResponseReader, in contrast, is for calls: it gathers
// whole responses, and reads the odd heads of servers of calls.
//
//   reader.Start(/*to_head=*/false, max_body);
//   switch (reader.Read(in, &response, &body)) ...   // At each input.
//   if (reader.EndsWithConnection()) ...             // At the end of input.
//
// Used by one task at a time; nothing blocks.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP_REPLY_READER_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP_REPLY_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/http/chunked_decoder.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

// The error for a response with more bytes.
flare::Status HttpBodyTooLarge(std::size_t max_body);

class HttpReplyReader {
 public:
  static constexpr std::size_t kMaxHead = 64 << 10;
  static constexpr std::size_t kMaxFields = 256;
  static constexpr int kMaxInterim = 100;

  enum class Result { kNeedMore, kDone, kFailed };

  // Begins with the response to a request of method HEAD (`to_head`), or of
  // another one. `may_switch`: 101 is a response.
  void Start(bool to_head, std::size_t max_body, bool may_switch = false);

  // Takes the bytes of the response off `in`. Fills in *response without its
  // body once the head is there, and appends the body's bytes to *body. Passes
  // over interim responses. kFailed: see failure(); nothing more can be read.
  // kDone: `in` begins behind the response.
  Result Read(Buffer& in, HttpResponse* response, Buffer* body);

  // The head has come.
  bool has_head() const { return body_ != Body::kNoHead; }
  // The end of the connection, in good order, ends the response.
  bool EndsWithConnection() const { return body_ == Body::kUntilClose; }
  // The response is 101: what follows isn't HTTP.
  bool switched() const { return switched_; }
  // Another request may follow over the connection.
  bool keeps_alive() const { return keeps_alive_; }
  // So many more bytes are known to come; a hint.
  std::size_t expected() const {
    return body_ == Body::kLength ? static_cast<std::size_t>(left_) : 0;
  }
  // ERROR_PARSE_RESPONSE or ERROR_RESPONSE_TOO_LARGE.
  const flare::Status& failure() const { return failure_; }

 private:
  enum class Body : std::uint8_t {
    kNoHead,
    kNone,
    kLength,
    kChunks,
    kUntilClose,
  };

  // kDone: the head of the final response is read.
  Result ReadHead(Buffer& in, HttpResponse* response);
  Result FindHead(const Buffer& in, std::size_t* size);
  Result ReadBody(Buffer& in, Buffer* body);
  Result ReadChunks(Buffer& in, Buffer* body);
  void TakeBytes(Buffer& in, std::size_t n, Buffer* body);
  // Decides how the end of the body is found.
  Result BeginBody(const HttpHead& head);

  Result Malformed(std::string_view why);
  Result TooLarge();

  bool to_head_ = false;
  bool may_switch_ = false;
  bool switched_ = false;
  std::size_t max_body_ = 0;
  Body body_ = Body::kNoHead;
  bool keeps_alive_ = false;
  std::size_t scanned_ = 0;  // See FindHeadEnd().
  int interim_ = 0;
  // kLength: of the body; kUntilClose: until it is too large.
  std::uint64_t left_ = 0;
  ChunkedDecoder chunks_;
  PacedCompaction compaction_;
  flare::Status failure_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_REPLY_READER_H_

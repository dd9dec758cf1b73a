// Cuts the responses on one HTTP connection off its input, with length or in
// chunks. Responses of the published servers are read, too: they write the
// reason of a failure as it is, line feeds and all, so behind the first line a
// control byte counts as a blank, a line without a colon goes on with the field
// before, as a folded one does, and only an empty line ends the head.
//
//   HttpHead head;
//   if (reader.Read(in, &scratch, &head, &need, &error) ==
//       CutResult::kMessage) {
//     Use(head);
//     reader.Take(in, &body);  // The next one begins.
//   }
//
// Used by one task at a time; nothing blocks.
#ifndef FLARE_RPC_HTTP_HTTP_RESPONSE_READER_H_
#define FLARE_RPC_HTTP_HTTP_RESPONSE_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/rpc/http/chunked_decoder.h"
#include "flare/rpc/http/http_head_memo.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

class HttpResponseReader {
 public:
  static constexpr int kMaxInterim = 100;

  explicit HttpResponseReader(const Limits& limits) : limits_(limits) {}

  // As ServerProtocol::Cut, but never returns kUnsure or kNotMine, and leaves
  // the response to Take(). kMessage: one is there, and *head, which must have
  // been a new one, is its head; the views in there are valid until Take(), as
  // long as neither `in` nor *scratch changes. Interim responses are passed
  // over, up to kMaxInterim in a row; 101, for which nobody asks, isn't.
  CutResult Read(Buffer& in, std::string* scratch, HttpHead* head,
                 std::size_t* need, std::string* error);
  // Takes the response that Read() has found off the input. *body must be
  // empty.
  void Take(Buffer& in, Buffer* body);

  // The response that was found: the size of head and body together, whether
  // that exceeds Limits::max_packet_size, and the fault. The body of a faulty
  // one isn't waited for: it is empty, and its bytes are skipped.
  std::uint64_t size() const { return head_size_ + body_size_; }
  bool too_large() const { return size() > limits_.max_packet_size; }
  std::string TooLarge() const;
  // It is so much too large that the end isn't looked for, or that isn't known:
  // no other response is found behind it.
  bool is_last() const { return is_last_; }

  // More is to come of a body that is taken as it comes, or skipped.
  bool within_body() const { return in_chunks_ || skip_ != 0; }

 private:
  // Heads. kMessage: *head is read, head_size_ is known.
  CutResult ReadHead(const Buffer& in, std::string* scratch, HttpHead* head,
                     std::string* error);
  CutResult ReadUnusualHead(const Buffer& in, std::string* scratch,
                            HttpHead* head, std::string* error);
  CutResult FindHead(const Buffer& in, std::string* error);
  HeadEnd FindHeadEndOrEmptyLine(const Buffer& in);
  void ForgetHead();

  // Bodies.
  CutResult ReadChunks(Buffer& in, std::string* scratch, HttpHead* head,
                       std::string* error);
  CutResult ReadLength(const Buffer& in, const HttpHead& head,
                       std::size_t* need, std::string* error);
  bool SkipRest(Buffer& in);

  static CutResult Fail(std::string_view text, std::string* error);

  const Limits limits_;
  HttpHeadMemo memo_{PeekResponseHead};
  // For the response at hand.
  std::size_t scanned_ = 0;      // see FindHeadEnd
  bool by_empty_line_ = false;   // How the end of its head is looked for.
  std::size_t head_size_ = 0;    // 0: not known yet
  std::uint64_t body_size_ = 0;  // if head_size_ is known
  bool in_chunks_ = false;
  bool is_last_ = false;
  int interim_ = 0;  // Responses of that kind since the last other one.
  Buffer chunked_head_;
  Buffer chunked_body_;
  ChunkedDecoder chunks_;
  std::uint64_t skip_ = 0;  // still to come of one before that was too large
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_RESPONSE_READER_H_

// Reads the message heads of one connection, which are mostly alike: a client
// sends the same fields again and again, a server answers with the same ones.
// A head that is the last one once more isn't parsed but compared with it, but
// for the digits of its numbers, which are read. That takes two fifths of the
// time for a call's head, less for those of browsers with all their fields.
//
//   HttpHeadMemo memo(PeekRequestHead);     // one for a connection
//   std::optional<HttpHead> parsed;
//   auto found = memo.Peek(in.FirstContiguous(), 8192, 100, &parsed);
//
// A compared head has the same meaning as a parsed one:
// [HM1] The remembered head was parsed without a fault, and all of it is
//       compared, except the digits of the fields Content-Length, Rpc-SeqNo and
//       Rpc-Timeout.
// [HM2] Each of those is there once and a number, so the blanks or the CRLF
//       around its digits are compared, and other digits make it another number
//       and change nothing else. A field that isn't so is compared as it is.
// [HM3] A number has 1 to 19 digits, which always fit; others are parsed.
//
// Remembering takes half as long as parsing. So the first head isn't, of which
// there may be no second, and where heads are hardly ever alike only one in
// kMaxMisses + 1 is.
//
// Used by one task at a time; nothing blocks. A remembered head takes 300 bytes
// and its own size, up to kMaxSize; before that the memo takes next to nothing.
#ifndef FLARE_RPC_HTTP_HTTP_HEAD_MEMO_H_
#define FLARE_RPC_HTTP_HTTP_HEAD_MEMO_H_

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flare/rpc/http/http_parser.h"

namespace flare::rpc {

class HttpHeadMemo {
 public:
  // Longer heads are parsed each time.
  static constexpr std::size_t kMaxSize = 1024;
  static constexpr int kMaxMisses = 15;

  // `parse` is PeekRequestHead or PeekResponseHead.
  explicit HttpHeadMemo(decltype(&PeekRequestHead) parse) : parse_(parse) {}
  HttpHeadMemo(const HttpHeadMemo&) = delete;
  HttpHeadMemo& operator=(const HttpHeadMemo&) = delete;

  struct Found {
    const HttpHead* head = nullptr;  // Null: none, as `parse` says.
    std::size_t size = 0;

    explicit operator bool() const { return head != nullptr; }
  };

  // As `parse`, with the same `max_fields` each time. The head is in *parsed,
  // or remembered here, and its views point into `bytes` or into this object:
  // it is valid until the next call, at most.
  Found Peek(std::string_view bytes, std::size_t limit, std::size_t max_fields,
             std::optional<HttpHead>* parsed);

 private:
  // Digits that may be others.
  struct Hole {
    std::size_t begin;
    std::size_t end;
    HttpNumber HttpHead::*number;
  };

  struct Known {
    std::string text;  // of a head
    // The parsed form. Its views point into `text`; the numbers and `fields`
    // are of the head that was compared last.
    HttpHead head;
    std::size_t fields_begin = 0;  // in `text`
    std::array<Hole, 3> holes;
    std::size_t hole_count = 0;

    void Assign(std::string_view new_text, const HttpHead& new_head);
    void AddHole(HttpNumber HttpHead::*number);
    // The size of the head that `bytes` begin with if it is this one, which
    // then is `head`; else 0.
    std::size_t Match(std::string_view bytes, std::size_t limit);
  };

  Found Parse(std::string_view bytes, std::size_t limit, std::size_t max_fields,
              std::optional<HttpHead>* parsed);
  // Called with a head that was parsed.
  void OnMiss(std::string_view text, const HttpHead& head);

  decltype(&PeekRequestHead) const parse_;
  std::unique_ptr<Known> known_;  // nullptr: none
  int misses_to_pass_ = 1;        // That many are not remembered.
  int next_misses_ = 0;           // ... after the next one that is
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_HEAD_MEMO_H_

// Reads the message heads of one connection, which are mostly alike: a client
// sends the same fields again and again, a server answers with the same ones.
// A head that is the last one once more isn't parsed but compared with it, but
// for the digits of its numbers, which are read. That takes two fifths of the
// time for a call's head, less for those of browsers with all their fields.
//
//   HttpHeadMemo memo(PeekRequestHead);     // one for a connection
//   HttpHead head;
//   auto size = memo.Peek(in.FirstContiguous(), 8192, 100, &head);
//
// That what was compared means what parsing it would have said:
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
// Used by one task at a time; nothing blocks. What is remembered takes 300
// bytes and those of the head, up to kMaxSize; before that there is next to
// nothing.
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

  // As `parse`, with the same `max_fields` each time. The views in *out point
  // into `bytes` or into this object: they are valid until the next call, at
  // most.
  std::optional<std::size_t> Peek(std::string_view bytes, std::size_t limit,
                                  std::size_t max_fields, HttpHead* out);

 private:
  // Digits that may be others.
  struct Hole {
    std::size_t begin;
    std::size_t end;
    HttpNumber HttpHead::*number;
  };

  struct Known {
    std::string text;  // of a head
    HttpHead head;     // what it says; its views point into `text`
    std::array<Hole, 3> holes;
    std::size_t hole_count = 0;

    void Assign(std::string_view new_text, const HttpHead& new_head);
    void AddHole(HttpNumber HttpHead::*number);
    std::optional<std::size_t> Match(std::string_view bytes, std::size_t limit,
                                     HttpHead* out) const;
  };

  std::optional<std::size_t> Match(std::string_view bytes, std::size_t limit,
                                   HttpHead* out);
  // Of a head that was parsed.
  void OnMiss(std::string_view text, const HttpHead& head);

  decltype(&PeekRequestHead) const parse_;
  std::unique_ptr<Known> known_;  // nullptr: none
  int misses_to_pass_ = 1;        // That many are not remembered.
  int next_misses_ = 0;           // ... after the next one that is
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_HEAD_MEMO_H_

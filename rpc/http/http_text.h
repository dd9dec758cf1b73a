// The bytes that parts of HTTP's text may have, and functions to find one's way
// in it. Thread-safe; nothing blocks, and nothing but HttpHostOf() allocates.
#ifndef FLARE_RPC_HTTP_HTTP_TEXT_H_
#define FLARE_RPC_HTTP_HTTP_TEXT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "flare/base/string.h"

namespace flare::rpc {

// Whether `text` may be the name of a field or of a method: it isn't empty.
bool IsHttpToken(std::string_view text);
bool IsHttpTokenChar(char c);

// Whether `text` may be the value of the field Host: a name, or an address in
// brackets, and a port (RFC 3986, 3.2.2). Name and port may be missing; numbers
// and addresses may be wrong ones.
bool MayBeHttpHost(std::string_view text);

// Whether `text`, unescaped, may be part of a path: visible ASCII without the
// begin of a query or a fragment, and not empty.
bool IsHttpPathText(std::string_view text);

// Whether a field's value may have `c`: any byte except control bytes; tabs are
// allowed.
inline bool IsHttpValueChar(char c) {
  return (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) || c == '\t';
}

// Finds the bytes that give a header its structure, colons and control bytes
// (below 0x20, and 0x7f), in [begin, end), many at a time.
//
//   HttpScanner scanner(begin, end);
//   while ((at = scanner.Next()) != end) ...
class HttpScanner {
 public:
  HttpScanner(const char* begin, const char* end)
      : begin_(begin), next_(begin), end_(end) {}

  // The next one; `end` if there is none left, and not to be called after that.
  const char* Next() {
    while (found_ == 0) {
      if (next_ == end_) return end_;
      Scan();
    }
    const char* const at = window_ + std::countr_zero(found_);
    found_ &= found_ - 1;
    return at;
  }

 private:
  static constexpr std::ptrdiff_t kBlock = 16;
  static constexpr std::ptrdiff_t kWindow = 64;

  // Looks at the next window, or at the available part of it.
  void Scan() {
    window_ = next_;
    if (end_ - next_ >= kWindow) {
      found_ = MaskOf(next_) | MaskOf(next_ + kBlock) << kBlock |
               MaskOf(next_ + 2 * kBlock) << 2 * kBlock |
               MaskOf(next_ + 3 * kBlock) << 3 * kBlock;
      next_ += kWindow;
      return;
    }
    found_ = 0;
    for (; end_ - next_ >= kBlock; next_ += kBlock) {
      found_ |= MaskOf(next_) << (next_ - window_);
    }
    const std::ptrdiff_t left = end_ - next_;
    if (end_ - begin_ >= kBlock) {
      // The last block laps over the one before.
      found_ |= MaskOf(end_ - kBlock) >> (kBlock - left) << (next_ - window_);
    } else {
      for (std::ptrdiff_t i = 0; i != left; ++i) {
        found_ |= std::uint64_t{IsMark(next_[i])} << (next_ + i - window_);
      }
    }
    next_ = end_;
  }

  static bool IsMark(char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == ':';
  }

  // Bit n says whether block[n] is one of them.
  static std::uint64_t MaskOf(const char* block) {
    using Bytes = std::uint8_t __attribute__((vector_size(kBlock)));
    Bytes bytes;
    std::memcpy(&bytes, block, sizeof(bytes));
    const auto marks = (bytes < 0x20) | (bytes == 0x7f) | (bytes == ':');
#ifdef __SSE2__
    using Chars = char __attribute__((vector_size(kBlock)));
    return static_cast<std::uint32_t>(
        __builtin_ia32_pmovmskb128(reinterpret_cast<Chars>(marks)));
#else
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t halves[2];  // 0xff for each such byte.
    std::memcpy(halves, &marks, sizeof(halves));
    return BitsOf(halves[0]) | BitsOf(halves[1]) << 8;
#endif
  }

#ifndef __SSE2__
  // The lowest bits of the eight bytes, side by side.
  static std::uint64_t BitsOf(std::uint64_t bytes) {
    return ((bytes & 0x0101010101010101) * 0x0102040810204080) >> 56;
  }
#endif

  const char* begin_;
  const char* next_;  // bytes from here on are unread
  const char* end_;
  const char* window_ = nullptr;  // the origin of found_
  std::uint64_t found_ = 0;       // those that weren't told yet
};

// Without the blanks (spaces and tabs) at both ends; points into `text`.
inline std::string_view TrimBlanks(std::string_view text) {
  // As a rule there is one, in front.
  if (text.size() > 1 && text[0] == ' ' && text[1] > ' ' && text.back() > ' ')
      [[likely]] {
    return text.substr(1);
  }
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

// Calls `f` with each member of a list, as the values of some fields are ("a,
// b" has two), without the blanks around it. Members may be empty.
template <class F>
void ForEachListMember(std::string_view list, F&& f) {
  while (true) {
    const std::size_t comma = list.find(',');
    f(TrimBlanks(list.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    list.remove_prefix(comma + 1);
  }
}

// Whether `member` is in the list, in capitals or not.
inline bool HasListMember(std::string_view list, std::string_view member) {
  bool found = false;
  ForEachListMember(list, [&](std::string_view each) {
    found = found || IEquals(each, member);
  });
  return found;
}

// A server as URIs name it ("host:port"), as the field Host names it. For
// "unix:/path" that is "localhost", as such a socket has no name there; for
// "[fe80::1%2]:80" it is "[fe80::1]:80", as the zone of an IPv6 address means
// nothing to others (RFC 6874).
std::string HttpHostOf(std::string_view server);

// Whether `target` is well as one of the absolute form: "http://" or
// "https://", and a host, behind which anything may come.
bool IsAbsoluteTarget(std::string_view target);

// The host in a target of the absolute form, with its port if it names one
// ("http://host:80/path" -> "host:80"); empty for other targets.
std::string_view HostOfTarget(std::string_view target);

// The path in a request target, without query: also that of the absolute form
// ("http://host/path?query" -> "/path", also with "https"). Points into
// `target`, or is "/", or is `nothing` if there is neither path nor query
// ("http://host").
std::string_view PathOfTarget(std::string_view target,
                              std::string_view nothing = "/");

// The query in a request target, without its question mark; empty if there is
// none.
std::string_view QueryOfTarget(std::string_view target);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_TEXT_H_

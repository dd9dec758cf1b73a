// Checks text that comes in pieces for being UTF-8: sequences may be split over
// pieces, and the first wrong byte is found as soon as it comes.
//
//   Utf8Checker checker;
//   for (std::string_view slice : buffer) {
//     if (!checker.Feed(slice)) return Fail();
//   }
//   if (!checker.complete()) return Fail();
//
// A value; nothing blocks or allocates.
#ifndef FLARE_RPC_WEBSOCKET_UTF8_CHECKER_H_
#define FLARE_RPC_WEBSOCKET_UTF8_CHECKER_H_

#include <cstdint>
#include <string_view>

#include "flare/base/buffer.h"

namespace flare::rpc {

class Utf8Checker {
 public:
  // False: with these bytes the text can't be UTF-8, whatever follows. Overlong
  // forms and surrogates aren't.
  [[nodiscard]] bool Feed(std::string_view bytes);
  // No sequence is open at the end.
  bool complete() const { return left_ == 0; }

 private:
  [[nodiscard]] bool Begin(unsigned char byte);

  std::uint8_t left_ = 0;  // Bytes that the open sequence lacks.
  // Bounds of the next one of them.
  std::uint8_t min_ = 0x80;
  std::uint8_t max_ = 0xbf;
};

// Whether all of `text` is UTF-8.
bool IsUtf8(const Buffer& text);
bool IsUtf8(std::string_view text);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEBSOCKET_UTF8_CHECKER_H_

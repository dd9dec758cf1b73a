// Error texts on their way into fields that must hold UTF-8: some peers refuse
// other bytes, and an error text may quote a client's input.
#ifndef FLARE_RPC_WIRE_UTF8_H_
#define FLARE_RPC_WIRE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace flare::rpc {

// `text` itself if it is ASCII; else a copy in *scratch with `other` in place
// of each byte that doesn't belong to a UTF-8 sequence. Most calls succeed, and
// have no text.
std::string_view NonEmptyAsUtf8(std::string_view text, std::string* scratch,
                                std::string_view other);
inline std::string_view AsUtf8(std::string_view text, std::string* scratch,
                               std::string_view other = "?") {
  return text.empty() ? text : NonEmptyAsUtf8(text, scratch, other);
}

// The first `max_size` bytes of `text`; up to three fewer where that is within
// a UTF-8 sequence.
std::string_view CutUtf8(std::string_view text, std::size_t max_size);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_UTF8_H_

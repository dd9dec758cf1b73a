// Escapes of URIs: "%41" for 'A' (RFC 3986, 2.1).
//
// Any thread; nothing blocks.
#ifndef FLARE_BASE_PERCENT_H_
#define FLARE_BASE_PERCENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/string.h"

namespace flare {

// The byte of an escape at `text[at]`. Nothing: there is none, a
// '%' without two hex digits included.
inline std::optional<char> PercentEscapeAt(std::string_view text,
                                           std::size_t at) {
  if (text[at] != '%' || text.size() - at < 3) return std::nullopt;
  const auto byte = TryParse<std::uint8_t>(text.substr(at + 1, 2), 16);
  if (!byte) return std::nullopt;
  return static_cast<char>(*byte);
}

// Leaves a '%' without two hex digits as it is.
inline std::string UnescapePercentLeniently(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i != text.size(); ++i) {
    const auto escaped = PercentEscapeAt(text, i);
    out += escaped.value_or(text[i]);
    if (escaped) i += 2;
  }
  return out;
}

// Nothing: a '%' isn't followed by two hex digits.
inline std::optional<std::string> UnescapePercent(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i != text.size(); ++i) {
    const auto escaped = PercentEscapeAt(text, i);
    if (text[i] == '%' && !escaped) return std::nullopt;
    out += escaped.value_or(text[i]);
    if (escaped) i += 2;
  }
  return out;
}

}  // namespace flare

#endif  // FLARE_BASE_PERCENT_H_

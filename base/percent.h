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

// Nothing: a '%' isn't followed by two hex digits.
inline std::optional<std::string> UnescapePercent(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i != text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const auto byte = TryParse<std::uint8_t>(text.substr(i + 1, 2), 16);
    if (!byte || text.size() - i < 3) return std::nullopt;
    out += static_cast<char>(*byte);
    i += 2;
  }
  return out;
}

}  // namespace flare

#endif  // FLARE_BASE_PERCENT_H_

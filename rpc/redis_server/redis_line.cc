#include "flare/rpc/redis_server/redis_line.h"

#include <cstddef>
#include <cstdint>
#include <optional>

#include "flare/base/string.h"

namespace flare::rpc {
namespace {

bool IsBlank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\v' || c == '\f' ||
         c == '\r' || c == '\0';
}

// Behind a backslash in "...": the character, and how many were read for it.
struct Escaped {
  char value;
  std::size_t size;
};
Escaped ReadEscape(std::string_view text) {
  switch (text[0]) {
    case 'n':
      return {'\n', 1};
    case 'r':
      return {'\r', 1};
    case 't':
      return {'\t', 1};
    case 'b':
      return {'\b', 1};
    case 'a':
      return {'\a', 1};
    case 'x':
      if (text.size() >= 3) {
        if (const auto byte = TryParse<std::uint8_t>(text.substr(1, 2), 16)) {
          return {static_cast<char>(*byte), 3};
        }
      }
      break;
    default:
      break;
  }
  return {text[0], 1};
}

// `text`: behind the opening quote. Returns how many characters it is, with the
// closing one; nothing: there is none.
std::optional<std::size_t> ReadQuoted(std::string_view text, char quote,
                                      std::string* word) {
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i++];
    if (c == quote) return i;
    const bool more = i < text.size();
    if (c == '\\' && more && quote == '"') {
      const Escaped escaped = ReadEscape(text.substr(i));
      *word += escaped.value;
      i += escaped.size;
    } else if (c == '\\' && more && text[i] == '\'') {
      *word += text[i++];
    } else {
      *word += c;
    }
  }
  return std::nullopt;
}

}  // namespace

bool SplitRedisLine(std::string_view line, std::vector<std::string>* words) {
  for (std::size_t i = 0; i != line.size();) {
    if (IsBlank(line[i])) {
      ++i;
      continue;
    }
    std::string& word = words->emplace_back();
    while (i != line.size() && !IsBlank(line[i])) {
      const char c = line[i++];
      if (c != '"' && c != '\'') {
        word += c;
        continue;
      }
      const auto quoted = ReadQuoted(line.substr(i), c, &word);
      if (!quoted) return false;
      i += *quoted;
      if (i != line.size() && !IsBlank(line[i])) return false;
    }
  }
  return true;
}

}  // namespace flare::rpc

// Small functions on text. ASCII only: letters are A to Z and a to z whatever
// the locale, white space is space, \t, \r, \n, \v and \f.
//
// Any thread, as long as the text is the caller's alone; nothing blocks.

#ifndef FLARE_BASE_STRING_H_
#define FLARE_BASE_STRING_H_

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace flare {

// Pieces of `text` between separators; they point into it. "a,,b" has two, or
// three with keep_empty. An empty text has none, or an empty one with
// keep_empty.
std::vector<std::string_view> Split(std::string_view text, char separator,
                                    bool keep_empty = false);
std::vector<std::string_view> Split(std::string_view text,
                                    std::string_view separator,
                                    bool keep_empty = false);

std::string Join(const std::vector<std::string>& pieces,
                 std::string_view separator);
std::string Join(const std::vector<std::string_view>& pieces,
                 std::string_view separator);
std::string Join(std::initializer_list<std::string_view> pieces,
                 std::string_view separator);

// The bytes kept of a text's memory, or of the like, in an object that is used
// again and again.
inline constexpr std::size_t kMaxKeptBytes = 4096;

// Frees the memory that an empty `text` has kept.
void FreeCapacity(std::string* text);

// Makes `text` empty. Its memory is kept for the next use, unless it is more
// than `max_capacity` bytes: one large value must not cost memory for ever.
inline void ClearKeeping(std::string* text,
                         std::size_t max_capacity = kMaxKeptBytes) {
  text->clear();
  if (text->capacity() > max_capacity) [[unlikely]]
    FreeCapacity(text);
}

// "1 worker", "2 workers".
std::string CountOf(std::size_t n, std::string_view what);

// Without white space at both ends; points into `text`.
std::string_view Trim(std::string_view text);

constexpr char ToLower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}
constexpr char ToUpper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - ('a' - 'A')) : c;
}
std::string ToLower(std::string_view text);
std::string ToUpper(std::string_view text);

// Returns whether the texts are equal, except for the case of letters.
bool IEquals(std::string_view left, std::string_view right);

constexpr bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix);
}
constexpr bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix);
}

// The whole of `text` as a number (of `base`, 2 to 36, for integers), with an
// optional '-' for signed types; nullopt if anything else is in it, it is
// empty, or it doesn't fit.
template <class T>
requires(std::integral<T> && !std::is_same_v<T, bool>)
    std::optional<T> TryParse(std::string_view text, int base = 10) {
  if constexpr (std::is_unsigned_v<T>) {
    // Takes a third of from_chars' time; 19 digits fit into 64 bits.
    if (base == 10 && !text.empty() && text.size() <= 19) [[likely]] {
      std::uint64_t number = 0;
      for (char c : text) {
        if (c < '0' || c > '9') return std::nullopt;
        number = number * 10 + static_cast<std::uint64_t>(c - '0');
      }
      if (number > std::numeric_limits<T>::max()) return std::nullopt;
      return static_cast<T>(number);
    }
  }
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

template <std::floating_point T>
std::optional<T> TryParse(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

// "true", "false", "1", "0", "yes", "no", "y", "n", "on", "off" in any case.
template <class T>
requires std::is_same_v<T, bool> std::optional<T> TryParse(
    std::string_view text) {
  for (std::string_view word : {"true", "1", "yes", "y", "on"}) {
    if (IEquals(text, word)) return true;
  }
  for (std::string_view word : {"false", "0", "no", "n", "off"}) {
    if (IEquals(text, word)) return false;
  }
  return std::nullopt;
}

// A number of bytes: "4096", "4K", "16M", "1G", "2T" (powers of 1024; the unit
// in any case, "KiB" and "KB" are the same). nullopt if it is anything else or
// exceeds 64 bits.
std::optional<std::uint64_t> ParseSize(std::string_view text);

// The length of the UTF-8 sequence that `text`, which isn't empty, begins with;
// 0 if it begins with none. Overlong forms and surrogates are none, either.
std::size_t Utf8SequenceLength(std::string_view text);

// Two digits, in lower case: "0a" for 10.
constexpr std::array<char, 2> HexOf(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return {kDigits[byte >> 4], kDigits[byte & 15]};
}

// `text` with its control characters as \x0a, so that outside text is one line
// wherever it is printed.
std::string OneLine(std::string_view text);

// `text` as a JSON string, quotes included. Bytes that are no UTF-8 are
// replaced by U+FFFD.
std::string JsonString(std::string_view text);

}  // namespace flare

#endif  // FLARE_BASE_STRING_H_

#include "flare/base/string.h"

#include <algorithm>
#include <limits>

namespace flare {
namespace {

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

template <class Separator>
std::vector<std::string_view> SplitBy(std::string_view text,
                                      Separator separator, std::size_t width,
                                      bool keep_empty) {
  std::vector<std::string_view> pieces;
  for (;;) {
    // An empty separator is found everywhere; it separates nothing.
    const std::size_t at = width == 0 ? text.npos : text.find(separator);
    const std::string_view piece = text.substr(0, at);
    if (keep_empty || !piece.empty()) pieces.push_back(piece);
    if (at == text.npos) return pieces;
    text.remove_prefix(at + width);
  }
}

template <class Pieces>
std::string JoinAll(const Pieces& pieces, std::string_view separator) {
  std::string text;
  bool first = true;
  for (const auto& piece : pieces) {
    if (!first) text += separator;
    first = false;
    text += piece;
  }
  return text;
}

}  // namespace

std::vector<std::string_view> Split(std::string_view text, char separator,
                                    bool keep_empty) {
  return SplitBy(text, separator, 1, keep_empty);
}

std::vector<std::string_view> Split(std::string_view text,
                                    std::string_view separator,
                                    bool keep_empty) {
  return SplitBy(text, separator, separator.size(), keep_empty);
}

std::string Join(const std::vector<std::string>& pieces,
                 std::string_view separator) {
  return JoinAll(pieces, separator);
}

std::string Join(const std::vector<std::string_view>& pieces,
                 std::string_view separator) {
  return JoinAll(pieces, separator);
}

std::string Join(std::initializer_list<std::string_view> pieces,
                 std::string_view separator) {
  return JoinAll(pieces, separator);
}

void FreeCapacity(std::string* text) { text->shrink_to_fit(); }

std::string CountOf(std::size_t n, std::string_view what) {
  std::string text = std::to_string(n);
  text.append(" ").append(what);
  if (n != 1) text += 's';
  return text;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::string ToLower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = ToLower(c);
  return lower;
}

std::string ToUpper(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = ToUpper(c);
  return upper;
}

bool IEquals(std::string_view left, std::string_view right) {
  if (left == right) return true;  // As a rule, and quickly seen.
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](char a, char b) { return ToLower(a) == ToLower(b); });
}

std::optional<std::uint64_t> ParseSize(std::string_view text) {
  const std::size_t digits =
      std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = TryParse<std::uint64_t>(text.substr(0, digits));
  if (!number) return std::nullopt;
  const std::string unit = ToLower(text.substr(digits));
  if (unit.empty() || unit == "b") return number;
  constexpr std::string_view kUnits = "kmgtpe";
  const std::size_t rank = kUnits.find(unit[0]);
  const std::string_view rest = std::string_view(unit).substr(1);
  if (rank == kUnits.npos || !(rest.empty() || rest == "b" || rest == "ib")) {
    return std::nullopt;
  }
  const int shift = 10 * (static_cast<int>(rank) + 1);
  if (*number > std::numeric_limits<std::uint64_t>::max() >> shift) {
    return std::nullopt;
  }
  return *number << shift;
}

std::size_t Utf8SequenceLength(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0   ? 4
                             : first >= 0xe0 ? 3
                             : first >= 0xc2 ? 2
                                             : 0;
  if (length == 0 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i != length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong =
      (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool too_large = first == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

std::string OneLine(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      line += c;
    } else {
      const auto hex = HexOf(byte);
      line += {'\\', 'x', hex[0], hex[1]};
    }
  }
  return line;
}

std::string JsonString(std::string_view text) {
  std::string json = "\"";
  while (!text.empty()) {
    const std::size_t length = Utf8SequenceLength(text);
    const char c = text[0];
    if (length == 0) {
      json += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (c >= 0 && c < 0x20) {
      const auto hex = HexOf(static_cast<unsigned char>(c));
      json += "\\u00";
      json.append(hex.data(), hex.size());
    } else {
      json += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return json + '"';
}

}  // namespace flare

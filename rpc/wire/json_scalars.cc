#include "flare/rpc/wire/json_scalars.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <system_error>
#include <utility>
#include <vector>

namespace flare::rpc {

namespace {

int Base64Digit(char c) {
  if ('A' <= c && c <= 'Z') return c - 'A';
  if ('a' <= c && c <= 'z') return c - 'a' + 26;
  if ('0' <= c && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  if (c == '/' || c == '_') return 63;
  return -1;
}

bool IsUpper(char c) { return 'A' <= c && c <= 'Z'; }
bool IsLower(char c) { return 'a' <= c && c <= 'z'; }

// "userName" -> "user_name"; text in quotes, the keys of maps, stays.
std::string SnakeCase(std::string_view path) {
  std::string snake;
  bool quoted = false;
  bool escaped = false;
  for (std::size_t i = 0; i != path.size(); ++i) {
    const char c = path[i];
    if (quoted) {
      quoted = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      quoted = true;
    } else if (IsUpper(c)) {
      const char before = i == 0 ? '.' : path[i - 1];
      const bool word =
          before != '.' && before != '_' &&
          (!IsUpper(before) || (i + 1 != path.size() && IsLower(path[i + 1])));
      if (word) snake += '_';
      snake += static_cast<char>(c - 'A' + 'a');
      continue;
    }
    snake += c;
  }
  return snake;
}

// The end of the key of a map that begins at `from` with ["; npos if it has
// none.
std::size_t EndOfMapKey(std::string_view text, std::size_t from) {
  for (std::size_t i = from + 2; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return text.substr(i).starts_with("\"]") ? i + 2 : text.npos;
    }
  }
  return text.npos;
}

}  // namespace

std::optional<double> ParseJsonReal(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (at != end || text.empty()) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    value = std::strtod(std::string(text).c_str(), nullptr);
  } else if (error != std::errc()) {
    return std::nullopt;
  }
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<float> NarrowJsonReal(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  // A number less than half a step above the largest float is rounded to it.
  constexpr double kHalfStep = 0x1p103;
  if (std::abs(value) >= kMax + kHalfStep) return std::nullopt;
  if (std::abs(value) > kMax) value = std::copysign(kMax, value);
  return static_cast<float>(value);
}

std::array<char, 4> Base64Digits(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t count = std::min<std::size_t>(bytes.size(), 3);
  std::uint32_t group = 0;
  for (std::size_t i = 0; i != 3; ++i) {
    group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[i]) : 0);
  }
  std::array<char, 4> digits;
  for (std::size_t i = 0; i != 4; ++i) {
    digits[i] = i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return digits;
}

std::optional<std::string> ParseBase64(std::string_view text) {
  for (int i = 0; i != 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    const int digit = Base64Digit(c);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count);
  }
  if ((bits & ((1u << count) - 1)) != 0) return std::nullopt;
  return bytes;
}

std::optional<JsonDuration> ParseJsonDuration(std::string_view text) {
  if (!text.ends_with('s')) return std::nullopt;
  text.remove_suffix(1);
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const auto dot = text.find('.');
  const std::string_view fraction =
      dot == text.npos ? "" : text.substr(dot + 1);
  const auto seconds = TryParse<std::uint64_t>(text.substr(0, dot));
  constexpr std::uint64_t kMaxSeconds = 315'576'000'000;
  if (!seconds || *seconds > kMaxSeconds || fraction.size() > 9) {
    return std::nullopt;
  }
  std::uint32_t nanos = 0;
  if (!fraction.empty()) {
    const auto digits = TryParse<std::uint32_t>(fraction);
    if (!digits) return std::nullopt;
    nanos = *digits;
    for (std::size_t i = fraction.size(); i != 9; ++i) nanos *= 10;
  }
  const int sign = negative ? -1 : 1;
  return JsonDuration{sign * static_cast<std::int64_t>(*seconds),
                      sign * static_cast<std::int32_t>(nanos)};
}

std::string ForEachMaskPath(std::string_view text,
                            const std::function<void(std::string)>& add) {
  std::vector<std::string> prefixes = {""};
  std::size_t room = 1024 + 16 * text.size();
  std::size_t from = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i == text.size() ? ',' : text[i];
    if (c == '[') {
      const std::size_t end =
          text.substr(i).starts_with("[\"") ? EndOfMapKey(text, i) : text.npos;
      if (end == text.npos) return "a key of a map is written [\"key\"]";
      i = end - 1;
      continue;
    }
    if (c != ',' && c != '(' && c != ')') continue;
    const std::string_view segment = text.substr(from, i - from);
    from = i + 1;
    if (c == '(' || !segment.empty()) {
      std::string path = prefixes.back();
      if (!path.empty() && !segment.empty() && !segment.starts_with("[\"")) {
        path += '.';
      }
      path += segment;
      if (path.size() + 1 > room) return "its paths are too long together";
      room -= path.size() + 1;
      if (c == '(') {
        prefixes.push_back(std::move(path));
      } else {
        add(SnakeCase(path));
      }
    }
    if (c == ')') {
      if (prefixes.size() == 1) return "a parenthesis isn't open";
      prefixes.pop_back();
    }
  }
  return prefixes.size() == 1 ? "" : "a parenthesis isn't closed";
}

}  // namespace flare::rpc

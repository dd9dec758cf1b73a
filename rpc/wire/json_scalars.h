// Values in JSON, given as their text, that aren't objects or lists.
//
// Thread-safe; nothing blocks.
#ifndef FLARE_RPC_WIRE_JSON_SCALARS_H_
#define FLARE_RPC_WIRE_JSON_SCALARS_H_

#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/string.h"

namespace flare::rpc {

// A number as JSON has it. nullopt: it isn't one, or exceeds the range.
std::optional<double> ParseJsonReal(std::string_view text);

// As doubles are rounded to floats; those out of range give nullopt.
std::optional<float> NarrowJsonReal(double value);

// An integer, maybe in the form of a real number ("1e3", "5.0").
template <std::integral T>
std::optional<T> ParseJsonInteger(std::string_view text) {
  if (text.find_first_of(".eE") == text.npos) {
    if (const auto value = TryParse<T>(text)) return value;
  }
  const auto real = ParseJsonReal(text);
  if (!real || std::trunc(*real) != *real ||
      *real < static_cast<double>(std::numeric_limits<T>::min()) ||
      *real >= std::ldexp(1.0, std::numeric_limits<T>::digits)) {
    return std::nullopt;
  }
  return static_cast<T>(*real);
}

// The digits of the first three bytes, of which there may be fewer: missing
// ones are '='. There must be one.
std::array<char, 4> Base64Digits(std::string_view bytes);

// Either alphabet, with or without padding.
std::optional<std::string> ParseBase64(std::string_view text);

// Seconds and nanoseconds of "-1.5s".
struct JsonDuration {
  std::int64_t seconds;
  std::int32_t nanos;
};
std::optional<JsonDuration> ParseJsonDuration(std::string_view text);

// Calls `add` for each path of a FieldMask, "userName,a(b,c)": "user_name",
// "a.b", "a.c". Returns the fault, or "". All paths together may be 16 times as
// long as `text` and a kilobyte.
std::string ForEachMaskPath(std::string_view text,
                            const std::function<void(std::string)>& add);

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_JSON_SCALARS_H_

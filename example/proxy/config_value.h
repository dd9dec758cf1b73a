// Values of settings, from their text. All functions are thread-safe and none
// blocks; their errors (EINVAL) say the text's fault and a right form, but not
// which setting it is.

#ifndef EXAMPLE_PROXY_CONFIG_VALUE_H_
#define EXAMPLE_PROXY_CONFIG_VALUE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example::proxy {

// "250ms", "5s", "1.5h": a number and one of ns, us, ms, s, m, h, d. Zero needs
// no unit. At least 0, and within 64 bits of nanoseconds.
flare::Expected<std::chrono::nanoseconds> ParseDuration(std::string_view text);

// "4096", "64KiB", "1M": powers of 1024.
flare::Expected<std::uint64_t> ParseByteCount(std::string_view text);

// A whole number.
flare::Expected<std::int64_t> ParseInteger(std::string_view text);

// The shortest that ParseDuration() reads back as the same: "250ms", "90s".
std::string FormatDuration(std::chrono::nanoseconds duration);

// The error for a text that is none of `choices`.
flare::Status NoSuchChoice(std::string_view text,
                           const std::vector<std::string_view>& choices);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_CONFIG_VALUE_H_

#include "example/proxy/config_value.h"

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <optional>

#include "flare/base/string.h"

namespace example::proxy {
namespace {

using flare::Status;

struct Unit {
  std::string_view name;
  std::int64_t ns;
};

// From the largest to the smallest.
constexpr Unit kUnits[] = {
    {"d", 86'400'000'000'000},
    {"h", 3'600'000'000'000},
    {"m", 60'000'000'000},
    {"s", 1'000'000'000},
    {"ms", 1'000'000},
    {"us", 1'000},
    {"ns", 1},
};

Status Bad(std::string_view text, const std::string& what) {
  return Status(EINVAL, "'" + std::string(text) + "' " + what);
}

std::optional<std::int64_t> NsPerUnit(std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (unit.name == name) return unit.ns;
  }
  return std::nullopt;
}

}  // namespace

flare::Expected<std::chrono::nanoseconds> ParseDuration(std::string_view text) {
  const std::size_t end = text.find_first_not_of("0123456789.");
  const auto number = flare::TryParse<double>(text.substr(0, end));
  if (!number) {
    return Bad(text,
               "is not a duration; write a number and a unit: 250ms, 5s, "
               "2m");
  }
  if (end == std::string_view::npos) {
    if (*number == 0) return std::chrono::nanoseconds(0);
    return Bad(text, "has no unit; write 250ms, 5s, 2m, 1h or the like");
  }
  const auto unit = NsPerUnit(text.substr(end));
  if (!unit) {
    return Bad(text, "has no known unit; there are ns, us, ms, s, m, h and d");
  }
  const double ns = *number * static_cast<double>(*unit);
  // The largest double below 2^63.
  if (ns > 9223372036854774784.0) {
    return Bad(text, "is too long; at most 106751d can be told");
  }
  return std::chrono::nanoseconds(std::llround(ns));
}

flare::Expected<std::uint64_t> ParseByteCount(std::string_view text) {
  if (const auto bytes = flare::ParseSize(text)) return *bytes;
  return Bad(text,
             "is not a size; write a number of bytes, or one with a "
             "unit: 65536, 64KiB, 1MiB");
}

flare::Expected<std::int64_t> ParseInteger(std::string_view text) {
  if (const auto number = flare::TryParse<std::int64_t>(text)) return *number;
  return Bad(text, "is not a whole number");
}

std::string FormatDuration(std::chrono::nanoseconds duration) {
  const std::int64_t ns = duration.count();
  if (ns == 0) return "0";
  for (const Unit& unit : kUnits) {
    // 90s rather than 1.5m; 2m rather than 120s.
    if (ns % unit.ns == 0) {
      return std::to_string(ns / unit.ns) + std::string(unit.name);
    }
  }
  return std::to_string(ns) + "ns";
}

Status NoSuchChoice(std::string_view text,
                    const std::vector<std::string_view>& choices) {
  std::string list;
  for (std::size_t i = 0; i != choices.size(); ++i) {
    if (i != 0) list += i + 1 == choices.size() ? " and " : ", ";
    list += choices[i];
  }
  return Bad(text, "is not known; there are " + list);
}

}  // namespace example::proxy

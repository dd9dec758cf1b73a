// W3C Baggage (https://www.w3.org/TR/baggage/): names and values of programs
// that travel along a trace, in the header `baggage`.
//
//   baggage: tenant=the%20north,user=7;property=1
//
// Pure functions: any thread, nothing blocks.
#ifndef FLARE_RPC_TRACING_BAGGAGE_H_
#define FLARE_RPC_TRACING_BAGGAGE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flare {

inline constexpr std::string_view kBaggage = "baggage";

// The sizes up to which the standard demands that baggage is handed on whole.
inline constexpr std::size_t kMaxBaggageMembers = 64;
inline constexpr std::size_t kMaxBaggageBytes = 8192;
// Less, by default: many servers take 8 KiB for a whole head of HTTP.
inline constexpr std::size_t kDefaultBaggageBytes = 4096;

struct JoinedBaggage {
  std::string text;
  std::size_t dropped = 0;  // Members that would exceed a limit.
};

// Joins the values of all `baggage` headers of a request, without blanks
// between their parts. Malformed members are left out, and those that would
// exceed a limit; the order stays.
JoinedBaggage JoinBaggage(const std::vector<std::string_view>& values,
                          std::size_t max_bytes);

// How many members joined baggage has.
std::size_t CountBaggage(std::string_view baggage);

// The value of the first member of that name in joined baggage, as UTF-8:
// without percent-escapes, unless one of them is malformed, and without
// properties. nullopt: there is none.
std::optional<std::string> FindBaggage(std::string_view baggage,
                                       std::string_view name);

}  // namespace flare

#endif  // FLARE_RPC_TRACING_BAGGAGE_H_

// Limits by rate, as a file in JSON has them (docs/admission.md).
//
//   {"limits": [
//     {"name": "all", "rate": 10000, "burst": 500},
//     {"name": "search", "method": ["shop.Catalog.*", "/search"],
//      "per": "caller", "rate": 20, "only_count": true},
//     {"name": "tenant", "per": "metadata:x-tenant", "rate": 50}
//   ]}
#ifndef FLARE_RPC_ADMISSION_RATE_LIMIT_RULES_H_
#define FLARE_RPC_ADMISSION_RATE_LIMIT_RULES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/rpc/rate_limit.h"

namespace flare::rpc {

inline constexpr std::size_t kMaxRateLimitsBytes = 1 << 20;

// Fails with a text that begins with the line and the column of the mistake:
// "3:14: rate: ...".
Expected<std::vector<RateLimit>> ParseRateLimits(std::string_view json);

// Empty, or the fault of the limit: "rate: ...".
std::string MistakeOf(const RateLimit& limit);

// Whether one of the limit's patterns is for `method`.
bool IsLimitFor(const std::vector<std::string>& patterns,
                std::string_view method);

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMISSION_RATE_LIMIT_RULES_H_

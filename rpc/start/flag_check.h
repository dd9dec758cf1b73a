// Checks of flags, for the files that define them.
#ifndef FLARE_RPC_START_FLAG_CHECK_H_
#define FLARE_RPC_START_FLAG_CHECK_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "flare/base/status.h"

namespace flare::rpc {

struct FlagRange {
  const char* flag;
  const std::int32_t* value;
  int min;
  int max;
};

inline constexpr int kNoMaxFlag = std::numeric_limits<int>::max();
// 366 days: more is refused, so that deadlines can be added up safely.
inline constexpr int kMaxFlagSeconds = 366 * 24 * 3600;

// "--flag=value: must be <wanted>."
flare::Status BadFlag(const std::string& flag, const std::string& value,
                      const std::string& wanted);

// The BadFlag of the first that lies outside of its range, if any.
flare::Status CheckFlagRanges(std::span<const FlagRange> ranges);

}  // namespace flare::rpc

#endif  // FLARE_RPC_START_FLAG_CHECK_H_

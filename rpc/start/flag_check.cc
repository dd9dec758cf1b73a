#include "flare/rpc/start/flag_check.h"

#include <cerrno>

namespace flare::rpc {

flare::Status BadFlag(const std::string& flag, const std::string& value,
                      const std::string& wanted) {
  return flare::Status(EINVAL,
                       "--" + flag + "=" + value + ": must be " + wanted + ".");
}

flare::Status CheckFlagRanges(std::span<const FlagRange> ranges) {
  for (const FlagRange& range : ranges) {
    if (*range.value >= range.min && *range.value <= range.max) continue;
    const std::string wanted = range.max == kNoMaxFlag
                                   ? "at least " + std::to_string(range.min)
                                   : "from " + std::to_string(range.min) +
                                         " to " + std::to_string(range.max);
    return BadFlag(range.flag, std::to_string(*range.value), wanted);
  }
  return flare::Status();
}

}  // namespace flare::rpc

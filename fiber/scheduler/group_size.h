// How many workers a scheduling group may have.

#ifndef FLARE_FIBER_GROUP_SIZE_H_
#define FLARE_FIBER_GROUP_SIZE_H_

#include <cstddef>

namespace flare::fiber {

// Bits of the group's idle mask.
inline constexpr std::size_t kMaxGroupSize = 64;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_GROUP_SIZE_H_

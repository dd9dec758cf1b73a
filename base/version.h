// The version of this library and of the programs that come with it.

#ifndef FLARE_BASE_VERSION_H_
#define FLARE_BASE_VERSION_H_

namespace flare {

// The version by the rules of semver.org. The only place that has it.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace flare

#endif  // FLARE_BASE_VERSION_H_

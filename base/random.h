// Random numbers for tests and for spreading load: fast, reproducible, and of
// no use against attackers that want to guess them.
//
//   std::uint64_t next = MixBits(seed + n);   // The n-th of a sequence.

#ifndef FLARE_BASE_RANDOM_H_
#define FLARE_BASE_RANDOM_H_

#include <cstdint>

namespace flare {

// A different, random-looking number for each x, always the same one: one step
// of splitmix64 (Steele, Lea and Flood, 2014).
constexpr std::uint64_t MixBits(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace flare

#endif  // FLARE_BASE_RANDOM_H_

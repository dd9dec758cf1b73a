#include "flare/base/random.h"

#include <bit>
#include <set>

#include "gtest/gtest.h"

namespace flare {
namespace {

// The first numbers of splitmix64 with seed 0, as published with it.
TEST(MixBitsTest, IsSplitmix64) {
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;
  EXPECT_EQ(MixBits(0 * kStep), 0xe220a8397b1dcdafU);
  EXPECT_EQ(MixBits(1 * kStep), 0x6e789e6aa1b965f4U);
  EXPECT_EQ(MixBits(2 * kStep), 0x06c45d188009454fU);
}

// Neighbours have nothing in common: about half of the bits differ, and small
// remainders are dealt evenly.
TEST(MixBitsTest, SpreadsNeighbours) {
  constexpr int kNumbers = 10'000;
  std::set<std::uint64_t> seen;
  std::int64_t differing = 0;
  int remainders[7] = {};
  for (std::uint64_t i = 0; i < kNumbers; ++i) {
    seen.insert(MixBits(i));
    differing += std::popcount(MixBits(i) ^ MixBits(i + 1));
    ++remainders[MixBits(i) % 7];
  }
  EXPECT_EQ(seen.size(), std::size_t{kNumbers});
  EXPECT_NEAR(static_cast<double>(differing) / kNumbers, 32, 0.5);
  for (const int count : remainders) EXPECT_NEAR(count, kNumbers / 7, 200);
}

}  // namespace
}  // namespace flare

// Random damage to valid input: see payload_fuzzing.h for the invariants.
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/sanitizer.h"
#include "flare/rpc/wire/payload_fuzzing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::CheckPayload;
using testing::PayloadSeeds;

#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
constexpr int kDamaged = 500;
#else
constexpr int kDamaged = 5000;
#endif

std::string DamagedPayload(std::string bytes, const std::string& other,
                           std::mt19937* rng) {
  for (unsigned n = (*rng)() % 4; n != 0; --n) {
    const std::size_t at = bytes.empty() ? 0 : (*rng)() % bytes.size();
    const std::string piece = bytes.substr(at, 1 + (*rng)() % 60);
    switch ((*rng)() % 6) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>((*rng)());
        break;
      case 1:
        bytes.insert(at, 1, "{}[]<>\"',:\\-0e\xff"[(*rng)() % 15]);
        break;
      case 2:
        bytes.erase(at, 1 + (*rng)() % 4);
        break;
      case 3:
        for (unsigned i = (*rng)() % 100; i != 0; --i) bytes.insert(at, piece);
        break;
      case 4:
        bytes.insert(at, other);
        break;
      default:
        bytes.resize(at);
    }
  }
  return bytes;
}

TEST(PayloadMutation, DamagedInputIsReadAndWrittenOrRefused) {
  std::mt19937 rng(3);
  const std::vector<std::string> seeds = PayloadSeeds();
  const auto any = [&] { return seeds[rng() % seeds.size()]; };
  for (int i = 0; i != kDamaged; ++i) {
    CheckPayload(DamagedPayload(any(), any(), &rng));
  }
}

TEST(PayloadMutation, EveryTruncationOfEverySeed) {
  for (const std::string& seed : PayloadSeeds()) {
    for (std::size_t size = 0; size < seed.size(); size += 1 + size / 50) {
      CheckPayload(std::string_view(seed).substr(0, size));
    }
  }
}

// The seeds are valid.
TEST(PayloadMutation, SeedsAreValid) {
  for (const std::string& seed : PayloadSeeds()) {
    bool valid = false;
    for (PayloadFormat format : testing::kAllFormats) {
      testing::AllTypes all;
      testing::OldTypes old;
      const Buffer bytes = testing::SlicedBuffer(seed, 99);
      valid |= ParsePayload(format, bytes, &all).ok() ||
               ParsePayload(format, bytes, &old).ok();
    }
    EXPECT_TRUE(valid) << seed;
  }
}

}  // namespace
}  // namespace flare::rpc

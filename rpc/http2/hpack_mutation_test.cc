// HPACK beside libnghttp2's: hpack_fuzzing.h says what must hold.
#include <cstddef>
#include <random>
#include <string>

#include "flare/base/sanitizer.h"
#include "flare/rpc/http2/hpack_fuzzing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
constexpr int kHpackRounds = 1000;
#else
constexpr int kHpackRounds = 10000;
#endif

std::string RandomBytes(std::size_t max_size, std::mt19937* rng) {
  std::string bytes((*rng)() % max_size, '\0');
  for (char& c : bytes) c = static_cast<char>((*rng)());
  return bytes;
}

TEST(HpackMutation, EncodesAndDecodesAnyFields) {
  std::mt19937 rng(20261129);
  for (int i = 0; i != kHpackRounds / 16; ++i) {
    SCOPED_TRACE(i);
    testing::CheckHpackFields(RandomBytes(600, &rng));
  }
}

TEST(HpackMutation, DecodesAnyBytes) {
  std::mt19937 rng(20261129);
  for (int i = 0; i != kHpackRounds; ++i) {
    SCOPED_TRACE(i);
    testing::CheckHpackBytes(RandomBytes(200, &rng));
  }
}

// Blocks that are nearly good ones come further than random bytes.
TEST(HpackMutation, DecodesDamagedBlocks) {
  std::mt19937 rng(20261129);
  for (int i = 0; i != kHpackRounds; ++i) {
    SCOPED_TRACE(i);
    testing::ReferenceEncoder encoder;
    std::string bytes;
    for (int n = 0; n != 3; ++n) {
      const std::string choices = RandomBytes(100, &rng);
      testing::HpackScript script(choices);
      testing::HpackFields fields;
      for (int k = 0; k != 3; ++k) {
        fields.emplace_back(testing::HpackTextOf(&script, true).substr(0, 30),
                            testing::HpackTextOf(&script, false).substr(0, 30));
      }
      const std::string block = encoder.Encode(fields);
      bytes.push_back(static_cast<char>(block.size()));
      bytes.append(block);
    }
    bytes[rng() % bytes.size()] = static_cast<char>(rng());
    testing::CheckHpackBytes(bytes);
  }
}

}  // namespace
}  // namespace flare::rpc

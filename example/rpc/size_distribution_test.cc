#include "example/rpc/size_distribution.h"

#include <cstdint>
#include <map>
#include <string>

#include "flare/base/random.h"
#include "gtest/gtest.h"

namespace example {
namespace {

std::map<std::size_t, int> DrawMany(const std::string& text, int times) {
  const auto sizes = ParseSizeDistribution(text);
  EXPECT_TRUE(sizes) << text;
  std::map<std::size_t, int> drawn;
  for (int i = 0; i != times; ++i) ++drawn[sizes->Draw(flare::MixBits(i))];
  return drawn;
}

TEST(SizeDistribution, OneSize) {
  for (const char* text : {"100", "100-100", "100:7", "100,100:2"}) {
    const auto sizes = ParseSizeDistribution(text);
    ASSERT_TRUE(sizes) << text;
    EXPECT_TRUE(sizes->fixed());
    EXPECT_EQ(sizes->largest(), 100u);
    for (std::uint64_t random : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      EXPECT_EQ(sizes->Draw(random), 100u);
    }
  }
}

TEST(SizeDistribution, RangeIncludesBothEnds) {
  const auto drawn = DrawMany("3-5", 3000);
  EXPECT_EQ(drawn.size(), 3u);
  for (std::size_t size : {3, 4, 5}) EXPECT_NEAR(drawn.at(size), 1000, 260);
  EXPECT_FALSE(ParseSizeDistribution("3-5")->fixed());
}

TEST(SizeDistribution, WeightsAreKept) {
  const auto drawn = DrawMany("16:9,65536", 10'000);
  EXPECT_EQ(drawn.size(), 2u);
  EXPECT_NEAR(drawn.at(65536), 1000, 300);
  EXPECT_EQ(ParseSizeDistribution("16:9,65536")->largest(), 65536u);
}

TEST(SizeDistribution, EveryRandomNumberGivesASize) {
  const auto sizes = ParseSizeDistribution("1:0.1,2:0.2,3:0.3,4-9:1e-9");
  ASSERT_TRUE(sizes);
  for (std::uint64_t random = 1; random != 0; random <<= 1) {
    for (std::uint64_t number : {random, random - 1, ~random}) {
      const std::size_t size = sizes->Draw(number);
      EXPECT_GE(size, 1u);
      EXPECT_LE(size, 9u);
    }
  }
}

TEST(SizeDistribution, ErrorsNameThePiece) {
  for (const std::string bad :
       {"", "-1", "-", "x", "1x", "1-", "5-3", "1:", "1:0", "1:-1", "1:nan",
        "1:inf", "1:x", "1 ", "1073741825", "99999999999999999999"}) {
    for (const std::string& text : {bad, "7," + bad}) {
      const auto sizes = ParseSizeDistribution(text);
      ASSERT_FALSE(sizes) << text;
      EXPECT_NE(sizes.error().message().find('"' + bad + '"'),
                std::string::npos)
          << sizes.error();
    }
  }
  EXPECT_TRUE(ParseSizeDistribution("0-1073741824"));
}

}  // namespace
}  // namespace example

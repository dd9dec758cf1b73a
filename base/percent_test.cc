#include "flare/base/percent.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(PercentTest, EscapesStandForBytes) {
  for (auto unescape : {+[](std::string_view s) { return UnescapePercent(s); },
                        +[](std::string_view s) {
                          return std::optional(UnescapePercentLeniently(s));
                        }}) {
    EXPECT_EQ(unescape(""), "");
    EXPECT_EQ(unescape("a+b c"), "a+b c");
    EXPECT_EQ(unescape("%41%7e%7E"), "A~~");
    EXPECT_EQ(unescape("%2541"), "%41");  // Once.
    EXPECT_EQ(unescape("x%00%ff"), std::string("x\0\xff", 3));
  }
}

TEST(PercentTest, OthersAreFaultsOrText) {
  for (const char* text :
       {"%", "a%4", "%4g", "%g4", "%%41", "% 1", "%+1", "%-1", "%0x41"}) {
    EXPECT_EQ(UnescapePercent(text), std::nullopt) << text;
  }
  EXPECT_EQ(UnescapePercentLeniently("%"), "%");
  EXPECT_EQ(UnescapePercentLeniently("a%4"), "a%4");
  EXPECT_EQ(UnescapePercentLeniently("%4g%g4%+1"), "%4g%g4%+1");
  EXPECT_EQ(UnescapePercentLeniently("%%41"), "%A");
}

}  // namespace
}  // namespace flare

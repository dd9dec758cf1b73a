#include "flare/rpc/websocket/utf8_checker.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "flare/base/string.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

// As Utf8SequenceLength(), which others rely on, sees it.
bool IsUtf8ByOther(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = Utf8SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

TEST(Utf8CheckerTest, KnowsAllSequencesOfThreeBytes) {
  for (int first = 0; first != 256; ++first) {
    for (int second = 0; second != 256; ++second) {
      // The third byte has one interesting bound on each side.
      for (const int third : {0x00, 0x41, 0x7f, 0x80, 0xbf, 0xc0, 0xff}) {
        const std::string text = {static_cast<char>(first),
                                  static_cast<char>(second),
                                  static_cast<char>(third)};
        ASSERT_EQ(IsUtf8(text), IsUtf8ByOther(text)) << first << ' ' << second;
        ASSERT_EQ(IsUtf8(text.substr(0, 2)), IsUtf8ByOther(text.substr(0, 2)));
      }
    }
  }
}

TEST(Utf8CheckerTest, KnowsTheBoundsOfFourBytes) {
  EXPECT_TRUE(IsUtf8("\xf0\x90\x80\x80"));
  EXPECT_FALSE(IsUtf8("\xf0\x8f\xbf\xbf"));  // Overlong.
  EXPECT_TRUE(IsUtf8("\xf4\x8f\xbf\xbf"));
  EXPECT_FALSE(IsUtf8("\xf4\x90\x80\x80"));  // Beyond U+10FFFF.
  EXPECT_FALSE(IsUtf8("\xf5\x80\x80\x80"));
  EXPECT_FALSE(IsUtf8("\xf0\x90\x80"));
  EXPECT_FALSE(IsUtf8("\xed\xa0\x80"));  // A surrogate.
  EXPECT_FALSE(IsUtf8("\xc0\x80"));
  EXPECT_TRUE(IsUtf8(std::string_view("\0", 1)));
  EXPECT_TRUE(IsUtf8(std::string_view()));
}

TEST(Utf8CheckerTest, PiecesMaySplitSequences) {
  const std::string text =
      "plain ascii, \xc3\xa4, \xe2\x82\xac and "
      "\xf0\x9f\x99\x82, and ascii again";
  for (std::size_t size = 1; size != text.size(); ++size) {
    Utf8Checker checker;
    for (std::size_t at = 0; at < text.size(); at += size) {
      ASSERT_TRUE(checker.Feed(std::string_view(text).substr(at, size)));
    }
    EXPECT_TRUE(checker.complete());
  }
}

TEST(Utf8CheckerTest, FailsAtTheFirstWrongByte) {
  Utf8Checker checker;
  EXPECT_TRUE(checker.Feed("\xf4"));
  EXPECT_FALSE(checker.complete());
  EXPECT_FALSE(checker.Feed("\x90"));  // The third byte isn't waited for.
}

TEST(Utf8CheckerTest, LooksBehindLongAscii) {
  for (std::size_t n = 0; n != 40; ++n) {
    EXPECT_TRUE(IsUtf8(std::string(n, 'a') + "\xc3\xa4" + std::string(n, 'b')));
    EXPECT_FALSE(IsUtf8(std::string(n, 'a') + "\xff" + std::string(n, 'b')));
  }
  Buffer text = CreateBufferSlow("\xc3");
  text.Append(MakeForeignBuffer("\xa4" + std::string(300, 'x')));
  EXPECT_TRUE(IsUtf8(text));
  text.Append(CreateBufferSlow("\xc3"));
  EXPECT_FALSE(IsUtf8(text));
}

}  // namespace
}  // namespace flare::rpc

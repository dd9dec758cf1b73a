#include "flare/base/string.h"

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

using Pieces = std::vector<std::string_view>;

TEST(Split, ByCharacter) {
  EXPECT_EQ(Split("a,b,c", ','), (Pieces{"a", "b", "c"}));
  EXPECT_EQ(Split("abc", ','), (Pieces{"abc"}));
  EXPECT_EQ(Split(",a,,b,", ','), (Pieces{"a", "b"}));
  EXPECT_EQ(Split(",a,,b,", ',', true), (Pieces{"", "a", "", "b", ""}));
  EXPECT_EQ(Split("", ','), Pieces{});
  EXPECT_EQ(Split("", ',', true), (Pieces{""}));
  EXPECT_EQ(Split(",", ',', true), (Pieces{"", ""}));
}

TEST(Split, ByText) {
  EXPECT_EQ(Split("a::b:c", "::"), (Pieces{"a", "b:c"}));
  EXPECT_EQ(Split("::a::::b", "::", true), (Pieces{"", "a", "", "b"}));
  EXPECT_EQ(Split("abc", ""), (Pieces{"abc"}));
  EXPECT_EQ(Split(":::", "::", true), (Pieces{"", ":"}));
}

TEST(Split, PiecesPointIntoTheText) {
  const std::string text = "ab,cd";
  EXPECT_EQ(Split(text, ',')[1].data(), text.data() + 3);
}

TEST(Join, IsTheInverseOfSplit) {
  EXPECT_EQ(Join({}, ","), "");
  EXPECT_EQ(Join({"a"}, ","), "a");
  EXPECT_EQ(Join({"a", "b"}, ", "), "a, b");
  EXPECT_EQ(Join({"a", "", "b"}, ", "), "a, , b");
  EXPECT_EQ(Join(Split(",a,,b,", ','), ";"), "a;b");
  EXPECT_EQ(Join(Split(",a,,b,", ',', true), ";"), ";a;;b;");
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> pieces(1 + random() % 6);
    for (std::string& piece : pieces) {
      piece.assign(random() % 4, static_cast<char>('a' + random() % 3));
    }
    const std::string text = Join(pieces, ";");
    const auto again = Split(text, ';', true);
    EXPECT_EQ(std::vector<std::string>(again.begin(), again.end()), pieces);
  }
}

TEST(Trim, TakesWhiteSpaceOffBothEnds) {
  EXPECT_EQ(Trim("  a b\t\r\n"), "a b");
  EXPECT_EQ(Trim("a"), "a");
  EXPECT_EQ(Trim(" \v\f "), "");
  EXPECT_EQ(Trim(""), "");
  // Other characters than ASCII are left alone.
  EXPECT_EQ(Trim("\xa0x"), "\xa0x");
}

TEST(Case, ChangesAsciiLettersOnly) {
  EXPECT_EQ(ToLower("Content-TYPE 1\xc4"), "content-type 1\xc4");
  EXPECT_EQ(ToUpper("Content-type {`\xe4"), "CONTENT-TYPE {`\xe4");
  EXPECT_EQ(ToLower('['), '[');
  EXPECT_EQ(ToUpper('z'), 'Z');
}

TEST(Case, IEquals) {
  EXPECT_TRUE(IEquals("", ""));
  EXPECT_TRUE(IEquals("Keep-Alive", "keep-aLIVE"));
  EXPECT_FALSE(IEquals("keep", "keep-"));
  EXPECT_FALSE(IEquals("[", "{"));  // Differ by the case bit, but no letters.
  EXPECT_FALSE(IEquals("a", "b"));
}

TEST(Affixes, StartsAndEndsWith) {
  EXPECT_TRUE(StartsWith("flare://x", "flare://"));
  EXPECT_TRUE(StartsWith("x", ""));
  EXPECT_FALSE(StartsWith("fl", "flare"));
  EXPECT_TRUE(EndsWith("a.proto", ".proto"));
  EXPECT_FALSE(EndsWith("proto", ".proto"));
}

TEST(TryParse, Integers) {
  EXPECT_EQ(TryParse<int>("0"), 0);
  EXPECT_EQ(TryParse<int>("-12"), -12);
  EXPECT_EQ(TryParse<int>("0012"), 12);
  EXPECT_EQ(TryParse<std::uint16_t>("65535"), 65535);
  EXPECT_EQ(TryParse<std::int64_t>("-9223372036854775808"),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(TryParse<unsigned>("ff", 16), 255u);
}

TEST(TryParse, RefusesAnythingButOneNumber) {
  for (const char* text : {"", " 1", "1 ", "+1", "1x", "x", "-", "0x1", "1.0",
                           "--1", "99999999999"}) {
    EXPECT_EQ(TryParse<int>(text), std::nullopt) << '"' << text << '"';
  }
  EXPECT_EQ(TryParse<unsigned>("-1"), std::nullopt);
  EXPECT_EQ(TryParse<std::uint16_t>("65536"), std::nullopt);
  EXPECT_EQ(TryParse<int>(std::string_view("1\0", 2)), std::nullopt);
}

TEST(TryParse, AgreesWithPrinting) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 1000; ++i) {
    const auto number = static_cast<std::int64_t>(random() >> (random() % 64));
    EXPECT_EQ(TryParse<std::int64_t>(std::to_string(number)), number);
    EXPECT_EQ(TryParse<std::int64_t>(std::to_string(-number)), -number);
  }
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t number = random() >> (random() % 64);
    const std::string text = std::to_string(number);
    EXPECT_EQ(TryParse<std::uint64_t>(text), number);
    EXPECT_EQ(TryParse<std::uint64_t>("00" + text), number);
    EXPECT_EQ(TryParse<std::uint16_t>(text).has_value(), number <= 65535);
  }
  EXPECT_EQ(TryParse<std::uint64_t>("18446744073709551615"), ~0ull);
  EXPECT_EQ(TryParse<std::uint64_t>("18446744073709551616"), std::nullopt);
  for (const char* text : {"", "-1", "+1", " 1", "1 ", "1x", "x", "1.0"}) {
    EXPECT_EQ(TryParse<std::uint64_t>(text), std::nullopt) << text;
  }
}

TEST(TryParse, FloatingPoint) {
  EXPECT_EQ(TryParse<double>("1.5"), 1.5);
  EXPECT_EQ(TryParse<double>("-2e3"), -2000);
  EXPECT_EQ(TryParse<float>("0.25"), 0.25f);
  EXPECT_EQ(TryParse<double>(""), std::nullopt);
  EXPECT_EQ(TryParse<double>("1.5s"), std::nullopt);
  EXPECT_EQ(TryParse<double>("1e999"), std::nullopt);
}

TEST(TryParse, Booleans) {
  for (const char* text : {"true", "TRUE", "1", "yes", "Y", "On"}) {
    EXPECT_EQ(TryParse<bool>(text), true) << text;
  }
  for (const char* text : {"false", "False", "0", "no", "n", "OFF"}) {
    EXPECT_EQ(TryParse<bool>(text), false) << text;
  }
  EXPECT_EQ(TryParse<bool>("2"), std::nullopt);
  EXPECT_EQ(TryParse<bool>("yn"), std::nullopt);
  EXPECT_EQ(TryParse<bool>(""), std::nullopt);
}

TEST(ParseSize, UnderstandsUnits) {
  EXPECT_EQ(ParseSize("0"), 0u);
  EXPECT_EQ(ParseSize("4096"), 4096u);
  EXPECT_EQ(ParseSize("7b"), 7u);
  EXPECT_EQ(ParseSize("4K"), 4096u);
  EXPECT_EQ(ParseSize("4k"), 4096u);
  EXPECT_EQ(ParseSize("4KB"), 4096u);
  EXPECT_EQ(ParseSize("4KiB"), 4096u);
  EXPECT_EQ(ParseSize("16M"), 16u << 20);
  EXPECT_EQ(ParseSize("1G"), 1u << 30);
  EXPECT_EQ(ParseSize("2T"), std::uint64_t{2} << 40);
  EXPECT_EQ(ParseSize("15E"), std::uint64_t{15} << 60);
  EXPECT_EQ(ParseSize("18446744073709551615"),
            std::numeric_limits<std::uint64_t>::max());
}

TEST(ParseSize, RefusesTheRest) {
  for (const char* text :
       {"", "K", "-1", "1.5G", "4X", "4Kx", "4 K", " 4", "4i", "4Ki", "16E",
        "18446744073709551616", "0x10"}) {
    EXPECT_EQ(ParseSize(text), std::nullopt) << '"' << text << '"';
  }
}

TEST(HexOf, HasTwoDigits) {
  static_assert(HexOf(10) == std::array{'0', 'a'});
  EXPECT_EQ(HexOf(0), (std::array{'0', '0'}));
  EXPECT_EQ(HexOf(0x7f), (std::array{'7', 'f'}));
  EXPECT_EQ(HexOf(0xff), (std::array{'f', 'f'}));
}

TEST(OneLine, EscapesControlCharacters) {
  EXPECT_EQ(OneLine(""), "");
  EXPECT_EQ(OneLine("Grüße \\ \xff"), "Grüße \\ \xff");
  EXPECT_EQ(OneLine("a\nb\r\t\x1b\x7f"), R"(a\x0ab\x0d\x09\x1b\x7f)");
  EXPECT_EQ(OneLine(std::string_view("a\0b", 3)), R"(a\x00b)");
}

TEST(JsonString, Escapes) {
  EXPECT_EQ(JsonString(""), R"("")");
  EXPECT_EQ(JsonString("plain"), R"("plain")");
  EXPECT_EQ(JsonString("\"\\/\n\x1f\x7f"), "\"\\\"\\\\/\\u000a\\u001f\x7f\"");
  EXPECT_EQ(JsonString(std::string_view("a\0b", 3)), R"("a\u0000b")");
  EXPECT_EQ(JsonString("Grüße, 世界 \U0001F600"), "\"Grüße, 世界 \U0001F600\"");
}

TEST(JsonString, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(JsonString("a\xff\x62"), R"("a\ufffdb")");
  for (const char* bad : {"\x80", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xc3", "\xe2\x82"}) {
    std::string expected = "\"";
    for (std::size_t i = 0; bad[i] != 0; ++i) expected += "\\ufffd";
    EXPECT_EQ(JsonString(bad), expected + '"');
  }
}

}  // namespace
}  // namespace flare

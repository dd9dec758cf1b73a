#include "flare/rpc/http2/hpack_huffman.h"

#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

std::string Encode(std::string_view text) {
  std::string code(HuffmanSize(text), '\0');
  EXPECT_EQ(HuffmanEncode(text, code.data()), code.data() + code.size());
  return code;
}

std::optional<std::string> Decode(std::string_view code) {
  std::string text(MaxHuffmanText(code.size()), '\0');
  const char* const end = HuffmanDecode(code, text.data());
  if (end == nullptr) return std::nullopt;
  text.resize(static_cast<std::size_t>(end - text.data()));
  return text;
}

TEST(HpackHuffman, CodesEachByte) {
  EXPECT_EQ(Encode("0"), "\x07");
  EXPECT_EQ(Encode("www.example.com"),
            "\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff");
  for (int c = 0; c != 256; ++c) {
    for (std::size_t times = 1; times != 20; ++times) {
      const std::string text(times, static_cast<char>(c));
      ASSERT_EQ(Decode(Encode(text)), text) << c;
    }
  }
}

TEST(HpackHuffman, CodesAnyText) {
  std::mt19937 rng(1);
  for (int i = 0; i != 10000; ++i) {
    std::string text(rng() % 50, '\0');
    for (char& c : text) c = static_cast<char>(rng());
    ASSERT_EQ(Decode(Encode(text)), text);
  }
  EXPECT_EQ(Encode(""), "");
  EXPECT_EQ(Decode(""), "");
}

TEST(HpackHuffman, RefusesBrokenCodes) {
  EXPECT_EQ(Decode("\x07"), "0");
  EXPECT_EQ(Decode("\x06"), std::nullopt);      // Padding with a zero.
  EXPECT_EQ(Decode("\x07\xff"), std::nullopt);  // More than 7 bits of it.
  EXPECT_EQ(Decode("\xff"), std::nullopt);
  EXPECT_EQ(Decode("\xff\xff\xff\xff"), std::nullopt);  // The end of the text.
  EXPECT_EQ(Decode("\x07\xff\xff\xff\xff"), std::nullopt);
}

}  // namespace
}  // namespace flare::rpc

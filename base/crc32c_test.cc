#include "flare/base/crc32c.h"

#include <random>
#include <string>

#include "gtest/gtest.h"

namespace flare {
namespace {

// The examples of RFC 3720, and the usual check value.
TEST(Crc32c, KnownValues) {
  std::string ascending;
  for (char c = 0; c != 32; ++c) ascending.push_back(c);
  for (auto extend : {ExtendCrc32c, ExtendCrc32cByTable}) {
    EXPECT_EQ(extend(0, ""), 0u);
    EXPECT_EQ(extend(0, "123456789"), 0xe3069283u);
    EXPECT_EQ(extend(0, std::string(32, '\0')), 0x8a9136aau);
    EXPECT_EQ(extend(0, std::string(32, '\xff')), 0x62a8ab43u);
    EXPECT_EQ(extend(0, ascending), 0x46dd794eu);
  }
}

TEST(Crc32c, InPieces) {
  std::mt19937 random(7);
  std::string text(1000, '\0');
  for (char& c : text) c = static_cast<char>(random());
  const std::uint32_t whole = ExtendCrc32c(0, text);
  EXPECT_EQ(ExtendCrc32cByTable(0, text), whole);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string_view all = text;
    const std::uint32_t first = ExtendCrc32c(0, all.substr(0, cut));
    EXPECT_EQ(ExtendCrc32c(first, all.substr(cut)), whole);
  }
}

}  // namespace
}  // namespace flare

#include "flare/base/ascii.h"

#include <string>

#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(AsciiPrefix, EndsAtTheFirstByteThatIsNone) {
  for (std::size_t size = 0; size != 200; ++size) {
    std::string text(size, '\x7f');
    if (size != 0) text[0] = '\0';
    EXPECT_EQ(AsciiPrefix(text), size);
    for (std::size_t at = 0; at != size; ++at) {
      for (const char byte : {'\x80', '\xff'}) {
        std::string other = text;
        other[at] = byte;
        other.back() = '\x80';
        EXPECT_EQ(AsciiPrefix(other), at) << "of " << size;
      }
    }
  }
}

TEST(AsciiPrefix, DoesNotLookBeyond) {
  const std::string text = std::string(100, 'a') + std::string(100, '\xc3');
  for (std::size_t begin = 0; begin != 100; ++begin) {
    EXPECT_EQ(AsciiPrefix(std::string_view(text).substr(begin, 100 - begin)),
              100 - begin);
  }
}

}  // namespace
}  // namespace flare

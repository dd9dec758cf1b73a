#include "example/proxy/config_value.h"

#include <chrono>
#include <string_view>

#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using namespace std::literals;

TEST(ConfigValueTest, Durations) {
  const auto ns = [](std::string_view text) {
    const auto value = ParseDuration(text);
    return value ? value->count() : -1;
  };
  EXPECT_EQ(ns("0"), 0);
  EXPECT_EQ(ns("0s"), 0);
  EXPECT_EQ(ns("1ns"), 1);
  EXPECT_EQ(ns("7us"), 7'000);
  EXPECT_EQ(ns("250ms"), 250'000'000);
  EXPECT_EQ(ns("5s"), 5'000'000'000);
  EXPECT_EQ(ns("2m"), 120'000'000'000);
  EXPECT_EQ(ns("1.5h"), 5'400'000'000'000);
  EXPECT_EQ(ns("106751d"), 106751 * 86'400'000'000'000);
  for (const char* bad : {"", "5", "s", "-1s", "5 s", "5sec", "5S", "1.2.3s",
                          ".", "1e3s", "106752d", "99999999999999999999s"}) {
    EXPECT_EQ(ns(bad), -1) << bad;
  }
}

TEST(ConfigValueTest, DurationsAreFormattedAsTheyAreRead) {
  EXPECT_EQ(FormatDuration(0ns), "0");
  EXPECT_EQ(FormatDuration(250ms), "250ms");
  EXPECT_EQ(FormatDuration(90s), "90s");
  EXPECT_EQ(FormatDuration(120s), "2m");
  EXPECT_EQ(FormatDuration(24h), "1d");
  for (const auto duration : {1ns, 1'001ns, 59'000'000'000ns}) {
    EXPECT_EQ(ParseDuration(FormatDuration(duration)).value(), duration);
  }
}

TEST(ConfigValueTest, SizesAndIntegers) {
  EXPECT_EQ(ParseByteCount("4096").value(), 4096u);
  EXPECT_EQ(ParseByteCount("64KiB").value(), 64u << 10);
  EXPECT_EQ(ParseByteCount("1M").value(), 1u << 20);
  for (const char* bad : {"", "KiB", "-1", "1X", "1.5K"}) {
    EXPECT_FALSE(ParseByteCount(bad)) << bad;
  }
  EXPECT_EQ(ParseInteger("-12").value(), -12);
  for (const char* bad : {"", "1.0", "0x10", "one", "9999999999999999999"}) {
    EXPECT_FALSE(ParseInteger(bad)) << bad;
  }
}

TEST(ConfigValueTest, ChoicesAreListed) {
  EXPECT_EQ(NoSuchChoice("d", {"a", "b", "c"}).message(),
            "'d' is not known; there are a, b and c");
}

}  // namespace
}  // namespace example::proxy

#include "flare/rpc/http/http_writer.h"

#include <time.h>

#include <cstdint>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

template <class Append>
std::string Written(Append&& append) {
  BufferBuilder out;
  append(&out);
  return FlattenSlow(out.DestructiveGet());
}

TEST(HttpWriter, Decimals) {
  auto text = [](auto value) {
    return Written([=](auto* out) { AppendDecimal(value, out); });
  };
  EXPECT_EQ(text(std::uint64_t{0}), "0");
  EXPECT_EQ(text(std::numeric_limits<std::uint64_t>::max()),
            "18446744073709551615");
  EXPECT_EQ(text(-7), "-7");
  EXPECT_EQ(text(std::numeric_limits<int>::min()), "-2147483648");
}

TEST(HttpWriter, StatusLines) {
  auto text = [](int status) {
    return Written([=](auto* out) { AppendStatusLine(status, out); });
  };
  EXPECT_EQ(text(200), "HTTP/1.1 200 OK\r\n");
  EXPECT_EQ(text(404), "HTTP/1.1 404 Not Found\r\n");
  EXPECT_EQ(text(799), "HTTP/1.1 799 Unknown\r\n");
}

TEST(HttpWriter, FieldTexts) {
  auto text = [](std::string_view value) {
    return Written([=](auto* out) { AppendFieldText(value, out); });
  };
  EXPECT_EQ(text("plain text: 1, 2"), "plain text: 1, 2");
  EXPECT_EQ(text("tab\tand caf\xc3\xa9"), "tab\tand caf\xc3\xa9");
  EXPECT_EQ(text(std::string_view("a\r\nb\0c\x1b\x7f", 8)), "a  b c  ");
  EXPECT_EQ(text(std::string(10000, 'x')).size(), 4096u);
  for (std::size_t fewer : {0, 1, 2, 3}) {
    const std::string kept(4096 - fewer, 'x');
    EXPECT_EQ(text(kept + "\xf0\x9f\x98\x80 \xf0\x9f\x98\x80"), kept);
  }
  EXPECT_EQ(text(std::string(10000, '\x80')).size(), 4093u);
}

std::string DateOf(std::int64_t seconds) {
  std::string text(29, '?');
  FormatHttpDate(seconds, text.data());
  return text;
}

TEST(HttpWriter, Dates) {
  EXPECT_EQ(DateOf(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(DateOf(0), "Thu, 01 Jan 1970 00:00:00 GMT");
  EXPECT_EQ(DateOf(951827696), "Tue, 29 Feb 2000 12:34:56 GMT");
  EXPECT_EQ(DateOf(4107542399), "Sun, 28 Feb 2100 23:59:59 GMT");
  EXPECT_EQ(DateOf(1735689599), "Tue, 31 Dec 2024 23:59:59 GMT");
}

TEST(HttpWriter, TheDateFieldIsNow) {
  // The coarse clock lags by a tick at most; the second may change meanwhile.
  for (int i = 0; i != 3; ++i) {
    timespec before, after;
    clock_gettime(CLOCK_REALTIME_COARSE, &before);
    std::string field = Written(AppendDateField);
    clock_gettime(CLOCK_REALTIME_COARSE, &after);
    bool matches = false;
    for (auto second = before.tv_sec; second <= after.tv_sec; ++second) {
      matches = matches || field == "Date: " + DateOf(second) + "\r\n";
    }
    EXPECT_TRUE(matches) << field;
  }
}

}  // namespace
}  // namespace flare::rpc

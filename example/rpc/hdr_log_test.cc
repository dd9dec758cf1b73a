#include "example/rpc/hdr_log.h"

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "flare/base/string.h"
#include "gtest/gtest.h"

namespace example {
namespace {

std::string DecodeBase64(const std::string& text) {
  const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  EXPECT_EQ(text.size() % 4, 0u);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (char c : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<std::uint32_t>(digits.find(c));
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

std::uint64_t BigEndian(const std::string& bytes, std::size_t at, int size) {
  std::uint64_t number = 0;
  for (int i = 0; i != size; ++i) {
    number = number << 8 | static_cast<unsigned char>(bytes.at(at + i));
  }
  return number;
}

// The numbers behind the header of a histogram, after a look at that.
std::vector<std::int64_t> Decode(const std::string& text) {
  const std::string packed = DecodeBase64(text);
  EXPECT_EQ(BigEndian(packed, 0, 4), 0x1c849314u);
  EXPECT_EQ(BigEndian(packed, 4, 4), packed.size() - 8);
  const auto plain = flare::Decompress(
      flare::CompressionAlgorithm::kZlib,
      flare::CreateBufferSlow(std::string_view(packed).substr(8)), 1 << 20);
  EXPECT_TRUE(plain);
  const std::string bytes = flare::FlattenSlow(*plain);
  EXPECT_EQ(BigEndian(bytes, 0, 4), 0x1c849313u);
  EXPECT_EQ(BigEndian(bytes, 4, 4), bytes.size() - 40);
  EXPECT_EQ(BigEndian(bytes, 8, 4), 0u);
  EXPECT_EQ(BigEndian(bytes, 12, 4), 2u);  // Digits.
  EXPECT_EQ(BigEndian(bytes, 16, 8), 1u);
  EXPECT_EQ(BigEndian(bytes, 24, 8), (std::uint64_t{1} << 40) - 1);
  EXPECT_EQ(BigEndian(bytes, 32, 8), 0x3ff0000000000000u);  // 1.0

  std::vector<std::int64_t> numbers;
  for (std::size_t i = 40; i < bytes.size();) {
    std::uint64_t bits = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(i++));
      const bool last = shift == 56;
      bits |= static_cast<std::uint64_t>(last ? byte : byte & 0x7f) << shift;
      if (last || byte < 0x80) break;
    }
    numbers.push_back(static_cast<std::int64_t>(bits >> 1) ^
                      -static_cast<std::int64_t>(bits & 1));
  }
  return numbers;
}

TEST(EncodeHdrHistogram, WritesCountsAndRunsOfEmptyBuckets) {
  flare::Histogram histogram;
  EXPECT_EQ(Decode(EncodeHdrHistogram(histogram)), std::vector<std::int64_t>());
  histogram.Record(0);
  histogram.Record(1);
  histogram.Record(1);
  histogram.Record(255);
  EXPECT_EQ(Decode(EncodeHdrHistogram(histogram)),
            (std::vector<std::int64_t>{1, 2, -253, 1}));
  // From here on two values share a bucket.
  histogram.Record(256);
  histogram.Record(257);
  histogram.Record(258);
  EXPECT_EQ(Decode(EncodeHdrHistogram(histogram)),
            (std::vector<std::int64_t>{1, 2, -253, 1, 2, 1}));
}

TEST(EncodeHdrHistogram, LargeCountsAndValues) {
  for (std::uint64_t count :
       {63ull, 64ull, 8191ull, 8192ull, 1ull << 40, (1ull << 62) - 1}) {
    flare::Histogram histogram;
    histogram.RecordMany(flare::HistogramBuckets::kMaxValue, count);
    EXPECT_EQ(
        Decode(EncodeHdrHistogram(histogram)),
        (std::vector<std::int64_t>{-4351, static_cast<std::int64_t>(count)}));
  }
}

TEST(HdrLog, WritesOneLinePerInterval) {
  std::ostringstream file;
  const std::int64_t before = flare::NowNs();
  HdrLog log(&file);
  flare::Histogram histogram;
  histogram.Record(1'500'000);
  log.Write("", before + 2'000'000'000, before + 3'500'000'000, histogram);
  log.Write("tail", before + 2'000'000'000, before + 3'500'000'000, histogram);

  const std::string text = file.str();
  const auto lines = flare::Split(text, '\n');
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[1], "#[Histogram log format version 1.3]");
  EXPECT_TRUE(lines[2].starts_with("#[BaseTime: ")) << lines[2];
  EXPECT_TRUE(lines[3].starts_with("#[StartTime: ")) << lines[3];
  EXPECT_TRUE(lines[4].starts_with("\"StartTimestamp\",")) << lines[4];
  const auto cells = flare::Split(lines[5], ',', true);
  ASSERT_EQ(cells.size(), 4u);
  EXPECT_LE(*flare::TryParse<double>(cells[0]), 2);
  EXPECT_GT(*flare::TryParse<double>(cells[0]), 1);
  EXPECT_EQ(cells[1], "1.500000");
  EXPECT_EQ(cells[2], "1.500000");
  EXPECT_EQ(cells[3], EncodeHdrHistogram(histogram));
  EXPECT_EQ(lines[6], "Tag=tail," + std::string(lines[5]));
}

}  // namespace
}  // namespace example

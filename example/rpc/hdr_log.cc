#include "example/rpc/hdr_log.h"

#include <bit>
#include <chrono>
#include <cstdio>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/compression.h"
#include "glog/logging.h"

namespace example {
namespace {

// The mark of the encoding: version 2, words of a variable length.
constexpr std::uint32_t kCookie = 0x1c849313;
constexpr std::uint32_t kCompressedCookie = 0x1c849314;
constexpr std::uint32_t kSignificantDigits = 2;

void AppendBigEndian(std::uint64_t value, int bytes, std::string* out) {
  for (int i = bytes - 1; i >= 0; --i) {
    out->push_back(static_cast<char>(value >> (8 * i)));
  }
}

// ZigZag LEB128, of which a ninth byte has all of its bits.
void AppendNumber(std::int64_t number, std::string* out) {
  auto bits = (static_cast<std::uint64_t>(number) << 1) ^
              static_cast<std::uint64_t>(number >> 63);
  for (int i = 0; i != 8 && bits >= 0x80; ++i) {
    out->push_back(static_cast<char>(bits | 0x80));
    bits >>= 7;
  }
  out->push_back(static_cast<char>(bits));
}

// The counts of all buckets up to the last one in use; a negative number
// stands for so many empty ones.
std::string EncodeCounts(const flare::Histogram& histogram) {
  std::string counts;
  std::size_t next = 0;
  histogram.ForEachBucket([&](const flare::Histogram::Bucket& bucket) {
    const std::size_t index = flare::HistogramBuckets::IndexOf(bucket.lower);
    if (const auto empty = static_cast<std::int64_t>(index - next)) {
      AppendNumber(-empty, &counts);
    }
    AppendNumber(static_cast<std::int64_t>(bucket.count), &counts);
    next = index + 1;
  });
  return counts;
}

std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view three = bytes.substr(i, 3);
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j != 3; ++j) {
      bits <<= 8;
      if (j < three.size()) bits |= static_cast<unsigned char>(three[j]);
    }
    for (std::size_t j = 0; j != 4; ++j) {
      text += j <= three.size() ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

}  // namespace

std::string EncodeHdrHistogram(const flare::Histogram& histogram) {
  const std::string counts = EncodeCounts(histogram);
  std::string plain;
  AppendBigEndian(kCookie, 4, &plain);
  AppendBigEndian(counts.size(), 4, &plain);
  AppendBigEndian(0, 4, &plain);  // The offset of the first bucket.
  AppendBigEndian(kSignificantDigits, 4, &plain);
  AppendBigEndian(1, 8, &plain);  // The smallest value told from 0.
  AppendBigEndian(flare::HistogramBuckets::kMaxValue, 8, &plain);
  AppendBigEndian(std::bit_cast<std::uint64_t>(1.0), 8, &plain);  // Unit.
  plain += counts;

  const auto packed = flare::Compress(flare::CompressionAlgorithm::kZlib,
                                      flare::CreateBufferSlow(plain));
  CHECK(packed) << packed.error();  // There is no memory.
  std::string bytes;
  AppendBigEndian(kCompressedCookie, 4, &bytes);
  AppendBigEndian(packed->size(), 4, &bytes);
  bytes += flare::FlattenSlow(*packed);
  return Base64(bytes);
}

HdrLog::HdrLog(std::ostream* out) : out_(out), start_ns_(flare::NowNs()) {
  const auto since_epoch = flare::ReadSystemClock().time_since_epoch();
  char start[64];
  std::snprintf(start, sizeof(start), "%.3f (seconds since epoch)",
                flare::ToSeconds(flare::ToNs(since_epoch)));
  *out_ << "#[Latencies in nanoseconds]\n"
        << "#[Histogram log format version 1.3]\n"
        << "#[BaseTime: " << start << "]\n"
        << "#[StartTime: " << start << "]\n"
        << "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\","
           "\"Interval_Compressed_Histogram\"\n";
}

void HdrLog::Write(const std::string& tag, std::int64_t begin_ns,
                   std::int64_t end_ns, const flare::Histogram& histogram) {
  if (!tag.empty()) *out_ << "Tag=" << tag << ',';
  char numbers[128];
  // The maximum is in milliseconds, by the format's custom.
  std::snprintf(numbers, sizeof(numbers), "%.3f,%.6f,%.6f,",
                flare::ToSeconds(begin_ns - start_ns_),
                flare::ToSeconds(end_ns - begin_ns),
                static_cast<double>(histogram.max()) / 1e6);
  *out_ << numbers << EncodeHdrHistogram(histogram) << '\n' << std::flush;
}

}  // namespace example

// Latencies in the log format of HdrHistogram (version 1.3, histograms in the
// V2 compressed encoding), which its tools read, merge and plot.
//
//   std::ofstream file("press.hdr");
//   HdrLog log(&file);
//   log.Write("", begin_ns, end_ns, histogram);   // Once for each interval.
//
// HdrHistogram's buckets for two significant decimal digits are those of
// flare::Histogram, so that counts are kept as they are. The exact maximum is
// beside each histogram.

#ifndef EXAMPLE_RPC_HDR_LOG_H_
#define EXAMPLE_RPC_HDR_LOG_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "flare/base/histogram.h"

namespace example {

// One histogram, as text: "HISTFAAA...".
std::string EncodeHdrHistogram(const flare::Histogram& histogram);

// Not thread-safe.
class HdrLog {
 public:
  // Writes the head lines; intervals count from now. `out` must outlive this,
  // and knows whether writing has failed.
  explicit HdrLog(std::ostream* out);

  // The values (nanoseconds) of an interval, whose ends are times of NowNs().
  // `tag` may be empty.
  void Write(const std::string& tag, std::int64_t begin_ns, std::int64_t end_ns,
             const flare::Histogram& histogram);

 private:
  std::ostream* const out_;
  const std::int64_t start_ns_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_HDR_LOG_H_

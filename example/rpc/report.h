// What press says about its calls, as text and as JSON. docs/press.md
// describes both.

#ifndef EXAMPLE_RPC_REPORT_H_
#define EXAMPLE_RPC_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "example/rpc/call_recorder.h"
#include "flare/base/histogram.h"

namespace example {

// "avg: 5us, p90: 7us, p95: 7us, p99: 9us, p995: 10us, p999: 15us,
// p9999: 20us, max: 31us." on one line. Scripts read it: it doesn't change.
std::string LatencyLine(const flare::Histogram& latency_ns);

// "status 3 (STATUS_TIMEOUT): 12, status 1234 (STATUS_USER): 1"; empty if no
// call has failed.
std::string FailureList(const CallStatistics& calls);

// LatencyLine and, behind it, " QPS: 1000, failures: 0." or, with their list,
// " QPS: 1000, failures: 12: status ....". QPS counts calls that succeeded.
std::string ReportLine(const CallStatistics& calls, double seconds);

// For a terminal: short, without line end.
std::string ProgressLine(const CallStatistics& calls, double seconds,
                         double since_start);

// The whole run.
struct Summary {
  CallStatistics calls;       // Without the warm-up.
  double seconds = 0;         // Length of the window that was measured.
  double qps = 0;             // Calls that succeeded in it, per second.
  CallStatistics warm_up;     // Calls that ended before the window.
  std::uint64_t unended = 0;  // Calls that didn't end though they should have.
  std::vector<std::string> command_line;

  bool AllWell() const;
};

// Several lines: counts and rate, latency, failures.
std::vector<std::string> SummaryLines(const Summary& summary);
std::string SummaryJson(const Summary& summary);

// `text` as a JSON string, quotes included. Bytes that are no UTF-8 are
// replaced by U+FFFD.
std::string JsonString(const std::string& text);

}  // namespace example

#endif  // EXAMPLE_RPC_REPORT_H_

// The report of press about its calls, as text and as JSON. docs/press.md
// describes both.

#ifndef EXAMPLE_RPC_REPORT_H_
#define EXAMPLE_RPC_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "example/rpc/call_recorder.h"
#include "flare/base/histogram.h"

namespace example {

// "avg: 5us, p90: 7us, p95: 7us, p99: 9us, p995: 10us, p999: 15us,
// p9999: 20us, max: 31us." on one line. Scripts read it: it doesn't change.
// "No call has succeeded." if there are none.
std::string LatencyLine(const flare::Histogram& latency_ns);

// "status 3 (STATUS_TIMEOUT)"; without a name for those that have none, such as
// 404, of plain HTTP.
std::string DescribeStatus(int status);

// "status 3 (STATUS_TIMEOUT): 12, status 1234 (STATUS_USER): 1"; empty if no
// call has failed.
std::string FailureList(const CallStatistics& calls);

// LatencyLine and, behind it, " QPS: 1000, failures: 0." or, with their list,
// " QPS: 1000, failures: 12: status ....". QPS counts calls that succeeded.
std::string ReportLine(const CallStatistics& calls, double seconds);

// For a terminal: short, without line end.
std::string ProgressLine(const CallStatistics& calls, double seconds,
                         double since_start);

// The outcomes of some of a run's calls.
struct CallSummary {
  CallStatistics calls;    // Without the warm-up.
  double qps = 0;          // Calls that succeeded in the window, per second.
  double mps = 0;          // Messages of streaming ones among them.
  CallStatistics warm_up;  // Calls that ended before the window.

  bool HasFailures() const {
    return !calls.failures.empty() || !warm_up.failures.empty();
  }
  // Whether some recorded calls have ended otherwise than recorded.
  bool HasChanges() const {
    return calls.changes() != 0 || warm_up.changes() != 0;
  }
  // Adds another part of the same run, without the rate: the windows of parts
  // may differ.
  void Merge(const CallSummary& other);
};

// Ordinary calls, and apart from them those of the long tail.
struct LoadSummary : CallSummary {
  std::optional<CallSummary> tail;
  // Calls of either kind that were due, at a fixed rate, and never sent.
  std::uint64_t unsent = 0;

  void Merge(const LoadSummary& other);
};

struct TargetSummary {
  std::string server_addr;
  double seconds = 0;  // Until its last call ended, or the run's window did.
  LoadSummary load;
};

// The whole run.
struct Summary : LoadSummary {
  // False: a signal ended the run during its warm-up. It has no figures but
  // those of `warm_up`, and `unended`.
  bool measured = true;
  double seconds = 0;         // Length of the window that was measured.
  std::uint64_t unended = 0;  // Calls that didn't end though they should have.
  bool replayed = false;      // Recorded calls were sent again.
  std::vector<TargetSummary> targets;  // If there were several.
  std::vector<std::string> command_line;

  // There was a measurement, some calls have succeeded, none has failed, and
  // all that were due were sent. Recorded calls may fail as recorded, but
  // mustn't end otherwise.
  bool AllWell() const;
};

// Several lines: counts and rate, latency, failures. Without a measurement:
// that there is none, and failures.
std::vector<std::string> SummaryLines(const Summary& summary);
// For a run with a measurement.
std::string SummaryJson(const Summary& summary);

// `value` with so many digits behind the point.
std::string FormatFixed(double value, int digits);

}  // namespace example

#endif  // EXAMPLE_RPC_REPORT_H_

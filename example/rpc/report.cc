#include "example/rpc/report.h"

#include <cmath>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/rpc_status.h"

namespace example {
namespace {

// Text and share of the quantiles, in the order of the latency line.
constexpr std::pair<const char*, double> kQuantiles[] = {
    {"p90", 0.9},    {"p95", 0.95},   {"p99", 0.99},
    {"p995", 0.995}, {"p999", 0.999}, {"p9999", 0.9999},
};

std::int64_t Microseconds(double ns) { return std::llround(ns / 1000); }
std::int64_t Microseconds(std::int64_t ns) {
  return Microseconds(static_cast<double>(ns));
}

}  // namespace

std::string FormatFixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string LatencyLine(const flare::Histogram& latency_ns) {
  if (latency_ns.count() == 0) return "No call has succeeded.";
  std::ostringstream line;
  line << "avg: " << Microseconds(latency_ns.mean()) << "us";
  for (const auto& [name, share] : kQuantiles) {
    line << ", " << name << ": "
         << Microseconds(latency_ns.ValueAtQuantile(share)) << "us";
  }
  line << ", max: " << Microseconds(latency_ns.max()) << "us.";
  return line.str();
}

std::string DescribeStatus(int status) {
  std::string text = "status " + std::to_string(status);
  const std::string_view name = flare::rpc::StatusName(status);
  if (name == "STATUS_UNKNOWN") return text;
  return text + " (" + std::string(name) + ')';
}

std::string FailureList(const CallStatistics& calls) {
  std::ostringstream list;
  const char* separator = "";
  for (const auto& [status, count] : calls.failures) {
    list << separator << DescribeStatus(status) << ": " << count;
    separator = ", ";
  }
  return list.str();
}

std::string ReportLine(const CallStatistics& calls, double seconds) {
  const double qps = static_cast<double>(calls.successes()) / seconds;
  std::string line = LatencyLine(calls.latency_ns) +
                     " QPS: " + FormatFixed(qps, 0) +
                     ", failures: " + std::to_string(calls.failure_count());
  if (!calls.failures.empty()) line += ": " + FailureList(calls);
  return line + ".";
}

std::string ProgressLine(const CallStatistics& calls, double seconds,
                         double since_start) {
  const flare::Histogram& latency = calls.latency_ns;
  std::ostringstream line;
  line << FormatFixed(since_start, 1) << " s  "
       << FormatFixed(static_cast<double>(calls.successes()) / seconds, 0)
       << " QPS  ";
  if (latency.count() != 0) {
    line << "avg " << Microseconds(latency.mean()) << "us  p99 "
         << Microseconds(latency.ValueAtQuantile(0.99)) << "us  max "
         << Microseconds(latency.max()) << "us  ";
  }
  line << "failures " << calls.failure_count();
  return line.str();
}

void CallSummary::Merge(const CallSummary& other) {
  calls.Merge(other.calls);
  warm_up.Merge(other.warm_up);
}

void LoadSummary::Merge(const LoadSummary& other) {
  CallSummary::Merge(other);
  unsent += other.unsent;
  if (!other.tail) return;
  if (!tail) tail.emplace();
  tail->Merge(*other.tail);
}

bool Summary::AllWell() const {
  if (replayed) {
    return measured && calls.successes() + calls.failure_count() != 0 &&
           !HasChanges() && unended == 0 && unsent == 0;
  }
  const bool some = calls.successes() + (tail ? tail->calls.successes() : 0);
  return measured && some && !HasFailures() && !(tail && tail->HasFailures()) &&
         unended == 0 && unsent == 0;
}

namespace {

// "10 call(s) in 2.000 s, QPS: 5, failures: 0."
std::string CountLine(const CallSummary& summary, double seconds) {
  const CallStatistics& calls = summary.calls;
  return std::to_string(calls.successes() + calls.failure_count()) +
         " call(s) in " + FormatFixed(seconds, 3) +
         " s, QPS: " + FormatFixed(summary.qps, 0) +
         ", failures: " + std::to_string(calls.failure_count()) + ".";
}

void AddFailureLines(const CallSummary& summary, const std::string& prefix,
                     std::vector<std::string>* lines) {
  if (!summary.calls.failures.empty()) {
    lines->push_back(prefix + "Failed: " + FailureList(summary.calls) + ".");
  }
  if (!summary.warm_up.failures.empty()) {
    lines->push_back(prefix + "Failed during warm-up: " +
                     FailureList(summary.warm_up) + ".");
  }
}

// For streaming calls; others have no such line.
void AddMessageLine(const CallSummary& summary, const std::string& prefix,
                    std::vector<std::string>* lines) {
  const MessageCounts& messages = summary.calls.messages;
  if (messages.total() == 0) return;
  lines->push_back(prefix + "Messages: " + std::to_string(messages.sent) +
                   " sent, " + std::to_string(messages.received) +
                   " received, " + FormatFixed(summary.mps, 0) +
                   " per second.");
}

void AddLines(const CallSummary& summary, double seconds,
              const std::string& prefix, std::vector<std::string>* lines) {
  lines->push_back(prefix + CountLine(summary, seconds));
  lines->push_back(prefix + LatencyLine(summary.calls.latency_ns));
  AddMessageLine(summary, prefix, lines);
  AddFailureLines(summary, prefix, lines);
}

// "status 0 (STATUS_SUCCESS) became status 3 (STATUS_TIMEOUT): 12".
std::string ChangeList(const CallStatistics& calls) {
  std::vector<std::string> changes;
  for (const auto& [statuses, count] : calls.changed_statuses) {
    changes.push_back(DescribeStatus(statuses.first) + " became " +
                      DescribeStatus(statuses.second) + ": " +
                      std::to_string(count));
  }
  if (calls.changed_replies != 0) {
    changes.push_back("other replies: " +
                      std::to_string(calls.changed_replies));
  }
  return flare::Join(changes, ", ");
}

// For recorded calls.
void AddChangeLines(const CallSummary& summary, const std::string& prefix,
                    std::vector<std::string>* lines) {
  const CallStatistics& calls = summary.calls;
  const std::uint64_t changes = calls.changes();
  const std::uint64_t all = calls.successes() + calls.failure_count();
  std::string line = prefix + "Replayed: " + std::to_string(all - changes) +
                     " call(s) ended as recorded, " + std::to_string(changes) +
                     " otherwise";
  if (changes != 0) line += ": " + ChangeList(calls);
  lines->push_back(line + ".");
  if (summary.warm_up.changes() == 0) return;
  lines->push_back(prefix + "Otherwise than recorded during warm-up: " +
                   ChangeList(summary.warm_up) + ".");
}

void AddUnsentLine(const LoadSummary& load, const std::string& prefix,
                   std::vector<std::string>* lines) {
  if (load.unsent == 0) return;
  lines->push_back(prefix + std::to_string(load.unsent) +
                   " call(s) were due and never sent: all loops were busy. "
                   "They are in no other figure; raise --max_pending.");
}

void AddMeasuredLines(const Summary& summary, std::vector<std::string>* lines) {
  lines->push_back("Finished: " + CountLine(summary, summary.seconds));
  lines->push_back(LatencyLine(summary.calls.latency_ns));
  AddMessageLine(summary, "", lines);
  AddFailureLines(summary, "", lines);
  if (summary.replayed) AddChangeLines(summary, "", lines);
  if (summary.tail) AddLines(*summary.tail, summary.seconds, "Tail: ", lines);
  AddUnsentLine(summary, "", lines);
  for (const auto& [server_addr, seconds, load] : summary.targets) {
    AddLines(load, seconds, server_addr + ": ", lines);
    if (summary.replayed) AddChangeLines(load, server_addr + ": ", lines);
    if (load.tail) {
      AddLines(*load.tail, seconds, server_addr + ": tail: ", lines);
    }
    AddUnsentLine(load, server_addr + ": ", lines);
  }
}

// For all targets together.
void AddWarmUpLines(const Summary& summary, std::vector<std::string>* lines) {
  lines->push_back("Interrupted during the warm-up: nothing was measured.");
  AddFailureLines(summary, "", lines);
  if (summary.tail) AddFailureLines(*summary.tail, "Tail: ", lines);
}

}  // namespace

std::vector<std::string> SummaryLines(const Summary& summary) {
  std::vector<std::string> lines;
  if (summary.measured) {
    AddMeasuredLines(summary, &lines);
  } else {
    AddWarmUpLines(summary, &lines);
  }
  if (summary.unended != 0) {
    lines.push_back(std::to_string(summary.unended) +
                    " loop(s) still wait for a call that should have ended.");
  }
  return lines;
}

}  // namespace example

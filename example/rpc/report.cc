#include "example/rpc/report.h"

#include <cmath>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

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

std::string Fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

// The length of the UTF-8 sequence at the beginning of `text`; 0 if it is
// none. Overlong forms and surrogates are none, either.
std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0   ? 4
                             : first >= 0xe0 ? 3
                             : first >= 0xc2 ? 2
                                             : 0;
  if (length == 0 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i != length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong =
      (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool too_large = first == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

std::string FailuresJson(const CallStatistics& calls) {
  std::string json = "{";
  for (const auto& [status, count] : calls.failures) {
    if (json.size() > 1) json += ", ";
    json += '"' + std::to_string(status) + "\": " + std::to_string(count);
  }
  return json + "}";
}

std::string HistogramJson(const flare::Histogram& histogram) {
  std::string json = "[";
  histogram.ForEachBucket([&json](const flare::Histogram::Bucket& bucket) {
    if (json.size() > 1) json += ", ";
    json += '[' + std::to_string(bucket.lower) + ", " +
            std::to_string(bucket.upper) + ", " + std::to_string(bucket.count) +
            ']';
  });
  return json + "]";
}

}  // namespace

std::string LatencyLine(const flare::Histogram& latency_ns) {
  std::ostringstream line;
  line << "avg: " << Microseconds(latency_ns.mean()) << "us";
  for (const auto& [name, share] : kQuantiles) {
    line << ", " << name << ": "
         << Microseconds(latency_ns.ValueAtQuantile(share)) << "us";
  }
  line << ", max: " << Microseconds(latency_ns.max()) << "us.";
  return line.str();
}

std::string FailureList(const CallStatistics& calls) {
  std::ostringstream list;
  const char* separator = "";
  for (const auto& [status, count] : calls.failures) {
    list << separator << "status " << status << " ("
         << flare::rpc::StatusName(status) << "): " << count;
    separator = ", ";
  }
  return list.str();
}

std::string ReportLine(const CallStatistics& calls, double seconds) {
  const double qps = static_cast<double>(calls.successes()) / seconds;
  std::string line = LatencyLine(calls.latency_ns) + " QPS: " + Fixed(qps, 0) +
                     ", failures: " + std::to_string(calls.failure_count());
  if (!calls.failures.empty()) line += ": " + FailureList(calls);
  return line + ".";
}

std::string ProgressLine(const CallStatistics& calls, double seconds,
                         double since_start) {
  const flare::Histogram& latency = calls.latency_ns;
  std::ostringstream line;
  line << Fixed(since_start, 1) << " s  "
       << Fixed(static_cast<double>(calls.successes()) / seconds, 0)
       << " QPS  avg " << Microseconds(latency.mean()) << "us  p99 "
       << Microseconds(latency.ValueAtQuantile(0.99)) << "us  max "
       << Microseconds(latency.max()) << "us  failures "
       << calls.failure_count();
  return line.str();
}

bool Summary::AllWell() const {
  return calls.successes() != 0 && calls.failures.empty() &&
         warm_up.failures.empty() && unended == 0;
}

std::vector<std::string> SummaryLines(const Summary& summary) {
  const CallStatistics& calls = summary.calls;
  std::vector<std::string> lines;
  lines.push_back(
      "Finished: " + std::to_string(calls.successes() + calls.failure_count()) +
      " call(s) in " + Fixed(summary.seconds, 3) +
      " s, QPS: " + Fixed(summary.qps, 0) +
      ", failures: " + std::to_string(calls.failure_count()) + ".");
  lines.push_back(LatencyLine(calls.latency_ns));
  if (!calls.failures.empty()) {
    lines.push_back("Failed: " + FailureList(calls) + ".");
  }
  if (!summary.warm_up.failures.empty()) {
    lines.push_back("Failed during warm-up: " + FailureList(summary.warm_up) +
                    ".");
  }
  if (summary.unended != 0) {
    lines.push_back(std::to_string(summary.unended) +
                    " loop(s) still wait for a call that should have ended.");
  }
  return lines;
}

std::string SummaryJson(const Summary& summary) {
  const CallStatistics& calls = summary.calls;
  const flare::Histogram& latency = calls.latency_ns;
  std::ostringstream json;
  json << "{\n  \"qps\": " << Fixed(summary.qps, 3)
       << ",\n  \"requests\": " << calls.successes() + calls.failure_count()
       << ",\n  \"failures\": " << calls.failure_count()
       << ",\n  \"failures_by_status\": " << FailuresJson(calls)
       << ",\n  \"duration_s\": " << Fixed(summary.seconds, 6)
       << ",\n  \"avg_us\": " << Fixed(latency.mean() / 1000, 3);
  const auto quantile = [&](const char* name, double share) {
    const auto ns = static_cast<double>(latency.ValueAtQuantile(share));
    json << ",\n  \"" << name << "_us\": " << Fixed(ns / 1000, 3);
  };
  quantile("p50", 0.5);
  for (const auto& [name, share] : kQuantiles) quantile(name, share);
  quantile("max", 1);
  json << ",\n  \"warmup_requests\": "
       << summary.warm_up.successes() + summary.warm_up.failure_count()
       << ",\n  \"warmup_failures_by_status\": "
       << FailuresJson(summary.warm_up)
       << ",\n  \"unended\": " << summary.unended << ",\n  \"command_line\": [";
  const char* separator = "";
  for (const std::string& argument : summary.command_line) {
    json << separator << JsonString(argument);
    separator = ", ";
  }
  json << "],\n  \"histogram_ns\": " << HistogramJson(latency) << "\n}\n";
  return json.str();
}

std::string JsonString(const std::string& text) {
  std::string json = "\"";
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t length = Utf8Length(rest);
    const char c = rest[0];
    if (length == 0) {
      json += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      json += escape;
    } else {
      json += rest.substr(0, length);
    }
    rest.remove_prefix(length == 0 ? 1 : length);
  }
  return json + '"';
}

}  // namespace example

// The results as JSON: SummaryJson() of report.h. docs/press.md describes it.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "example/rpc/report.h"
#include "flare/base/string.h"

namespace example {
namespace {

constexpr std::pair<const char*, double> kLatencies[] = {
    {"p50_us", 0.5},      {"p90_us", 0.9},    {"p95_us", 0.95},
    {"p99_us", 0.99},     {"p995_us", 0.995}, {"p999_us", 0.999},
    {"p9999_us", 0.9999}, {"max_us", 1},
};

// {"key": value, ...}, a line for each.
class JsonObject {
 public:
  explicit JsonObject(int depth) : indent_(2 * depth, ' ') {}

  // `value` is JSON.
  void Add(std::string_view key, const std::string& value) {
    text_ += text_.empty() ? "{\n" : ",\n";
    text_ += indent_ + "  \"";
    text_ += key;
    text_ += "\": " + value;
  }
  void Add(std::string_view key, std::uint64_t value) {
    Add(key, std::to_string(value));
  }
  std::string Finish() const { return text_ + "\n" + indent_ + "}"; }

 private:
  const std::string indent_;
  std::string text_;
};

std::string JsonList(const std::vector<std::string>& values) {
  return "[" + flare::Join(values, ", ") + "]";
}

std::string FailuresJson(const CallStatistics& calls) {
  std::string json = "{";
  for (const auto& [status, count] : calls.failures) {
    if (json.size() > 1) json += ", ";
    json += '"' + std::to_string(status) + "\": " + std::to_string(count);
  }
  return json + "}";
}

// {"0": {"3": 12}}: 12 calls with the recorded status 0 had 3.
std::string ChangedStatusesJson(const CallStatistics& calls) {
  std::map<int, std::string> by_recorded;
  for (const auto& [statuses, count] : calls.changed_statuses) {
    std::string& inner = by_recorded[statuses.first];
    inner += (inner.empty() ? "\"" : ", \"") + std::to_string(statuses.second) +
             "\": " + std::to_string(count);
  }
  std::string json;
  for (const auto& [recorded, inner] : by_recorded) {
    json += (json.empty() ? "\"" : ", \"") + std::to_string(recorded) +
            "\": {" + inner + '}';
  }
  return '{' + json + '}';
}

std::string HistogramJson(const flare::Histogram& histogram) {
  std::vector<std::string> buckets;
  histogram.ForEachBucket([&](const flare::Histogram::Bucket& bucket) {
    buckets.push_back(
        JsonList({std::to_string(bucket.lower), std::to_string(bucket.upper),
                  std::to_string(bucket.count)}));
  });
  return JsonList(buckets);
}

void AddFigures(const CallSummary& summary, double seconds,
                JsonObject* object) {
  const CallStatistics& calls = summary.calls;
  const flare::Histogram& latency = calls.latency_ns;
  object->Add("qps", FormatFixed(summary.qps, 3));
  object->Add("requests", calls.successes() + calls.failure_count());
  object->Add("failures", calls.failure_count());
  object->Add("failures_by_status", FailuresJson(calls));
  object->Add("duration_s", FormatFixed(seconds, 6));
  object->Add("avg_us", FormatFixed(latency.mean() / 1000, 3));
  for (const auto& [name, share] : kLatencies) {
    const auto ns = static_cast<double>(latency.ValueAtQuantile(share));
    object->Add(name, FormatFixed(ns / 1000, 3));
  }
  if (const MessageCounts& messages = calls.messages; messages.total() != 0) {
    object->Add("messages_sent", messages.sent);
    object->Add("messages_received", messages.received);
    object->Add("messages_per_second", FormatFixed(summary.mps, 3));
  }
  object->Add("warmup_requests",
              summary.warm_up.successes() + summary.warm_up.failure_count());
  object->Add("warmup_failures_by_status", FailuresJson(summary.warm_up));
}

void AddTail(const LoadSummary& summary, double seconds, int depth,
             JsonObject* object) {
  if (!summary.tail) return;
  JsonObject tail(depth + 1);
  AddFigures(*summary.tail, seconds, &tail);
  tail.Add("histogram_ns", HistogramJson(summary.tail->calls.latency_ns));
  object->Add("tail", tail.Finish());
}

// For recorded calls.
void AddChanges(const CallSummary& summary, JsonObject* object) {
  object->Add("changed_statuses", ChangedStatusesJson(summary.calls));
  object->Add("changed_replies", summary.calls.changed_replies);
  object->Add("warmup_changed_statuses", ChangedStatusesJson(summary.warm_up));
  object->Add("warmup_changed_replies", summary.warm_up.changed_replies);
}

std::string TargetJson(const TargetSummary& target, bool replayed) {
  JsonObject object(1);
  object.Add("server_addr", flare::JsonString(target.server_addr));
  AddFigures(target.load, target.seconds, &object);
  object.Add("unsent", target.load.unsent);
  if (replayed) AddChanges(target.load, &object);
  AddTail(target.load, target.seconds, 1, &object);
  object.Add("histogram_ns", HistogramJson(target.load.calls.latency_ns));
  return object.Finish();
}

}  // namespace

std::string SummaryJson(const Summary& summary) {
  JsonObject object(0);
  AddFigures(summary, summary.seconds, &object);
  object.Add("unsent", summary.unsent);
  object.Add("unended", summary.unended);
  if (summary.replayed) AddChanges(summary, &object);
  std::vector<std::string> arguments;
  for (const std::string& argument : summary.command_line) {
    arguments.push_back(flare::JsonString(argument));
  }
  object.Add("command_line", JsonList(arguments));
  AddTail(summary, summary.seconds, 0, &object);
  if (!summary.targets.empty()) {
    std::vector<std::string> targets;
    for (const TargetSummary& target : summary.targets) {
      targets.push_back(TargetJson(target, summary.replayed));
    }
    object.Add("targets", JsonList(targets));
  }
  object.Add("histogram_ns", HistogramJson(summary.calls.latency_ns));
  return object.Finish() + "\n";
}

}  // namespace example

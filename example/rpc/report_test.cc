#include "example/rpc/report.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace example {
namespace {

// A thousand calls of 1, 2, ..., 1000 us.
CallStatistics Thousand() {
  CallStatistics calls;
  for (int us = 1; us <= 1000; ++us) calls.latency_ns.Record(us * 1000);
  return calls;
}

// Parses with a JSON reader that is not ours.
google::protobuf::Map<std::string, google::protobuf::Value> Parse(
    const std::string& json) {
  google::protobuf::Struct parsed;
  const auto status =
      google::protobuf::util::JsonStringToMessage(json, &parsed);
  EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << json;
  return parsed.fields();
}

TEST(LatencyLine, HasTheDocumentedForm) {
  CallStatistics calls;
  for (int i = 0; i != 9; ++i) calls.latency_ns.Record(5'000);
  calls.latency_ns.Record(15'000);
  EXPECT_EQ(LatencyLine(calls.latency_ns),
            "avg: 6us, p90: 5us, p95: 15us, p99: 15us, p995: 15us, "
            "p999: 15us, p9999: 15us, max: 15us.");
}

TEST(LatencyLine, HasNoFiguresWithoutSuccesses) {
  CallStatistics calls;
  calls.failures = {{2, 7}};
  EXPECT_EQ(LatencyLine(calls.latency_ns), "No call has succeeded.");
  EXPECT_EQ(ReportLine(calls, 1),
            "No call has succeeded. QPS: 0, failures: 7: status 2 "
            "(STATUS_FAIL_TO_CONNECT): 7.");
  EXPECT_EQ(ProgressLine(calls, 1, 2.5), "2.5 s  0 QPS  failures 7");
}

TEST(FailureList, NamesTheCodes) {
  CallStatistics calls;
  EXPECT_EQ(FailureList(calls), "");
  EXPECT_EQ(DescribeStatus(404), "status 404");  // Plain HTTP's.
  calls.failures = {{3, 12}, {1234, 1}};
  EXPECT_EQ(FailureList(calls),
            "status 3 (STATUS_TIMEOUT): 12, status 1234 (STATUS_USER): 1");
}

TEST(ReportLine, AppendsRateAndFailures) {
  CallStatistics calls = Thousand();
  const std::string latency = LatencyLine(calls.latency_ns);
  EXPECT_EQ(ReportLine(calls, 0.5), latency + " QPS: 2000, failures: 0.");
  calls.failures = {{3, 2}};
  EXPECT_EQ(ReportLine(calls, 2),
            latency + " QPS: 500, failures: 2: status 3 (STATUS_TIMEOUT): 2.");
}

TEST(ProgressLine, FitsOnALine) {
  const std::string line = ProgressLine(Thousand(), 0.5, 12.34);
  EXPECT_EQ(line.substr(0, 16), "12.3 s  2000 QPS");
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_LT(line.size(), 80u);
}

TEST(Summary, IsWellOnlyIfAllCallsSucceeded) {
  Summary summary;
  EXPECT_FALSE(summary.AllWell());  // No call at all.
  summary.calls = Thousand();
  EXPECT_TRUE(summary.AllWell());

  summary.calls.failures[3] = 1;
  EXPECT_FALSE(summary.AllWell());
  summary.calls.failures.clear();

  summary.warm_up.failures[3] = 1;
  EXPECT_FALSE(summary.AllWell());
  summary.warm_up.failures.clear();

  summary.unended = 1;
  EXPECT_FALSE(summary.AllWell());
  summary.unended = 0;

  summary.unsent = 1;
  EXPECT_FALSE(summary.AllWell());
  EXPECT_NE(SummaryLines(summary).back().find("1 call(s) were due"),
            std::string::npos);
  summary.unsent = 0;

  summary.measured = false;
  EXPECT_FALSE(summary.AllWell());
  summary.measured = true;

  summary.tail.emplace();
  EXPECT_TRUE(summary.AllWell());
  summary.tail->calls.failures[3] = 1;
  EXPECT_FALSE(summary.AllWell());
}

TEST(Summary, RecordedCallsMayFailAsRecorded) {
  Summary summary;
  summary.replayed = true;
  EXPECT_FALSE(summary.AllWell());  // No call at all.
  summary.calls = Thousand();
  summary.calls.failures[1001] = 3;
  EXPECT_TRUE(summary.AllWell());
  EXPECT_EQ(SummaryLines(summary).back(),
            "Replayed: 1003 call(s) ended as recorded, 0 otherwise.");

  summary.calls.changed_statuses = {{{0, 3}, 2}, {{1001, 0}, 1}};
  summary.calls.changed_replies = 4;
  EXPECT_FALSE(summary.AllWell());
  EXPECT_EQ(SummaryLines(summary).back(),
            "Replayed: 996 call(s) ended as recorded, 7 otherwise: status 0 "
            "(STATUS_SUCCESS) became status 3 (STATUS_TIMEOUT): 2, status "
            "1001 (STATUS_USER) became status 0 (STATUS_SUCCESS): 1, other "
            "replies: 4.");
  const std::string json = SummaryJson(summary);
  EXPECT_NE(json.find("\"changed_statuses\": {\"0\": {\"3\": 2}, "
                      "\"1001\": {\"0\": 1}}"),
            std::string::npos)
      << json;
  EXPECT_NE(json.find("\"changed_replies\": 4"), std::string::npos);
  summary.calls.changed_statuses.clear();
  summary.calls.changed_replies = 0;

  // The JSON alone says why the run is not well.
  summary.warm_up.changed_statuses[{0, 3}] = 1;
  summary.warm_up.changed_replies = 2;
  EXPECT_FALSE(summary.AllWell());
  const std::string warm_up = SummaryJson(summary);
  EXPECT_NE(warm_up.find("\"warmup_changed_statuses\": {\"0\": {\"3\": 1}}"),
            std::string::npos)
      << warm_up;
  EXPECT_NE(warm_up.find("\"warmup_changed_replies\": 2"), std::string::npos);
  EXPECT_NE(SummaryLines(summary).back().find("during warm-up"),
            std::string::npos);
}

// One of them may be an older version than the other.
TEST(Summary, TellsOfTheChangesOfEachTarget) {
  Summary summary;
  summary.targets.resize(2);
  summary.targets[0].server_addr = "flare://a";
  summary.targets[1].server_addr = "flare://b";
  summary.targets[1].load.calls = Thousand();
  summary.targets[1].load.calls.changed_replies = 4;
  EXPECT_EQ(SummaryJson(summary).find("changed_"), std::string::npos);
  summary.replayed = true;
  EXPECT_EQ(SummaryLines(summary).back(),
            "flare://b: Replayed: 996 call(s) ended as recorded, 4 otherwise: "
            "other replies: 4.");
  const std::string json = SummaryJson(summary);
  const auto targets = json.find("flare://a");
  EXPECT_NE(json.find("\"changed_replies\": 0", targets), std::string::npos);
  EXPECT_NE(json.find("\"changed_replies\": 4", targets), std::string::npos);
}

// A load that consists of nothing but the tail.
TEST(Summary, TailAloneMayBeWell) {
  Summary summary;
  summary.tail.emplace();
  EXPECT_FALSE(summary.AllWell());
  summary.tail->calls = Thousand();
  EXPECT_TRUE(summary.AllWell());
}

TEST(SummaryLines, SayWhatHappened) {
  Summary summary;
  summary.calls = Thousand();
  summary.seconds = 2;
  summary.qps = 500;
  auto lines = SummaryLines(summary);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "Finished: 1000 call(s) in 2.000 s, QPS: 500, failures: 0.");
  EXPECT_EQ(lines[1], LatencyLine(summary.calls.latency_ns));

  summary.calls.failures[3] = 4;
  summary.warm_up.failures[2] = 5;
  summary.unended = 6;
  lines = SummaryLines(summary);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0],
            "Finished: 1004 call(s) in 2.000 s, QPS: 500, failures: 4.");
  EXPECT_EQ(lines[2], "Failed: status 3 (STATUS_TIMEOUT): 4.");
  EXPECT_EQ(lines[3],
            "Failed during warm-up: status 2 (STATUS_FAIL_TO_CONNECT): 5.");
  EXPECT_EQ(lines[4],
            "6 loop(s) still wait for a call that should have ended.");
}

TEST(SummaryLines, TellOfTailAndTargets) {
  Summary summary;
  summary.calls = Thousand();
  summary.seconds = 2;
  summary.tail.emplace();
  summary.tail->calls.failures[3] = 4;
  summary.targets.resize(1);
  summary.targets[0].server_addr = "flare://a";
  summary.targets[0].seconds = 0.5;
  summary.targets[0].load.qps = 9;
  const auto lines = SummaryLines(summary);
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[2], "Tail: 4 call(s) in 2.000 s, QPS: 0, failures: 4.");
  EXPECT_EQ(lines[4], "Tail: Failed: status 3 (STATUS_TIMEOUT): 4.");
  EXPECT_EQ(lines[5], "flare://a: 0 call(s) in 0.500 s, QPS: 9, failures: 0.");
}

TEST(SummaryLines, HaveNoFiguresWithoutAMeasurement) {
  Summary summary;
  summary.measured = false;
  summary.warm_up = Thousand();
  summary.targets.resize(2);
  EXPECT_EQ(SummaryLines(summary),
            std::vector<std::string>{
                "Interrupted during the warm-up: nothing was measured."});

  summary.warm_up.failures[3] = 4;
  summary.tail.emplace();
  summary.tail->warm_up.failures[2] = 5;
  summary.unended = 6;
  const auto lines = SummaryLines(summary);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1], "Failed during warm-up: status 3 (STATUS_TIMEOUT): 4.");
  EXPECT_EQ(
      lines[2],
      "Tail: Failed during warm-up: status 2 (STATUS_FAIL_TO_CONNECT): 5.");
  EXPECT_EQ(lines[3],
            "6 loop(s) still wait for a call that should have ended.");
}

TEST(SummaryJson, HasEveryFigure) {
  Summary summary;
  summary.calls = Thousand();
  summary.calls.failures = {{3, 2}, {1234, 1}};
  summary.warm_up.failures = {{2, 7}};
  summary.seconds = 2;
  summary.qps = 500;
  summary.command_line = {"press", "--body=\"\\\n"};
  auto fields = Parse(SummaryJson(summary));
  EXPECT_EQ(fields["qps"].number_value(), 500);
  EXPECT_EQ(fields["requests"].number_value(), 1003);
  EXPECT_EQ(fields["failures"].number_value(), 3);
  EXPECT_EQ(fields["duration_s"].number_value(), 2);
  EXPECT_EQ(fields["warmup_requests"].number_value(), 7);
  EXPECT_EQ(fields["unended"].number_value(), 0);
  EXPECT_EQ(fields["unsent"].number_value(), 0);

  const auto failures = fields["failures_by_status"].struct_value().fields();
  EXPECT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures.at("3").number_value(), 2);
  EXPECT_EQ(failures.at("1234").number_value(), 1);

  const auto arguments = fields["command_line"].list_value();
  ASSERT_EQ(arguments.values_size(), 2);
  EXPECT_EQ(arguments.values(1).string_value(), "--body=\"\\\n");
}

TEST(SummaryJson, LatenciesAreWithinOnePercent) {
  Summary summary;
  summary.calls = Thousand();
  auto fields = Parse(SummaryJson(summary));
  const std::pair<const char*, double> expected[] = {
      {"avg_us", 500.5}, {"p50_us", 500},    {"p90_us", 900},
      {"p95_us", 950},   {"p99_us", 990},    {"p995_us", 995},
      {"p999_us", 999},  {"p9999_us", 1000}, {"max_us", 1000}};
  for (const auto& [name, us] : expected) {
    EXPECT_NEAR(fields[name].number_value(), us, us / 100) << name;
  }
}

TEST(SummaryJson, HistogramHoldsAllCalls) {
  Summary summary;
  summary.calls = Thousand();
  auto fields = Parse(SummaryJson(summary));
  double total = 0;
  double last_upper = -1;
  for (const auto& value : fields["histogram_ns"].list_value().values()) {
    const auto& bucket = value.list_value();
    ASSERT_EQ(bucket.values_size(), 3);
    EXPECT_GT(bucket.values(0).number_value(), last_upper);
    last_upper = bucket.values(1).number_value();
    total += bucket.values(2).number_value();
  }
  EXPECT_EQ(total, 1000);
}

TEST(SummaryJson, OfNothingIsStillJson) {
  auto fields = Parse(SummaryJson(Summary()));
  EXPECT_EQ(fields["requests"].number_value(), 0);
  EXPECT_EQ(fields["p9999_us"].number_value(), 0);
  EXPECT_EQ(fields["histogram_ns"].list_value().values_size(), 0);
}

// The figures of the tail and of targets are apart, in the same form.
TEST(SummaryJson, HasTailAndTargets) {
  Summary summary;
  summary.calls = Thousand();
  summary.seconds = 2;
  summary.tail.emplace();
  summary.tail->calls.failures = {{3, 2}};
  summary.tail->qps = 7;
  summary.targets.resize(2);
  summary.targets[0].server_addr = "flare://\"a\"";
  summary.targets[0].seconds = 0.5;
  summary.targets[0].load.calls = Thousand();
  summary.targets[1].load.tail.emplace();
  auto fields = Parse(SummaryJson(summary));
  EXPECT_EQ(fields["requests"].number_value(), 1000);
  EXPECT_EQ(fields["failures"].number_value(), 0);

  const auto tail = fields["tail"].struct_value().fields();
  EXPECT_EQ(tail.at("requests").number_value(), 2);
  EXPECT_EQ(tail.at("qps").number_value(), 7);
  EXPECT_EQ(tail.at("duration_s").number_value(), 2);
  EXPECT_EQ(tail.at("histogram_ns").list_value().values_size(), 0);

  const auto& targets = fields["targets"].list_value();
  ASSERT_EQ(targets.values_size(), 2);
  const auto first = targets.values(0).struct_value().fields();
  EXPECT_EQ(first.at("server_addr").string_value(), "flare://\"a\"");
  EXPECT_EQ(first.at("requests").number_value(), 1000);
  EXPECT_EQ(first.at("duration_s").number_value(), 0.5);
  EXPECT_FALSE(first.contains("tail"));
  EXPECT_TRUE(targets.values(1).struct_value().fields().contains("tail"));
}

TEST(SummaryJson, HasNeitherTailNorTargetsUnasked) {
  auto fields = Parse(SummaryJson(Summary()));
  EXPECT_FALSE(fields.contains("tail"));
  EXPECT_FALSE(fields.contains("targets"));
}

TEST(LoadSummary, MergesTailsTooAndNoRates) {
  LoadSummary total;
  LoadSummary part;
  part.calls = Thousand();
  part.qps = 10;
  total.Merge(part);
  EXPECT_FALSE(total.tail.has_value());
  part.tail.emplace();
  part.tail->warm_up.failures[3] = 1;
  total.Merge(part);
  total.Merge(part);
  EXPECT_EQ(total.calls.successes(), 3000u);
  EXPECT_EQ(total.qps, 0);
  EXPECT_EQ(total.tail->warm_up.failures[3], 2u);
}

TEST(Summary, HasMessagesOfStreamsAlone) {
  Summary summary;
  summary.calls = Thousand();
  summary.qps = 500;
  summary.seconds = 2;
  EXPECT_EQ(SummaryLines(summary).size(), 2u);
  EXPECT_FALSE(Parse(SummaryJson(summary)).contains("messages_sent"));
  summary.calls.messages = {.sent = 1000, .received = 9000};
  summary.mps = 5000;
  ASSERT_EQ(SummaryLines(summary).size(), 3u);
  EXPECT_EQ(SummaryLines(summary)[2],
            "Messages: 1000 sent, 9000 received, 5000 per second.");
  const auto json = Parse(SummaryJson(summary));
  EXPECT_EQ(json.at("messages_sent").number_value(), 1000);
  EXPECT_EQ(json.at("messages_received").number_value(), 9000);
  EXPECT_EQ(json.at("messages_per_second").number_value(), 5000);
}

}  // namespace
}  // namespace example

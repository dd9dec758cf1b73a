#include "flare/rpc/admin/metrics_page.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "flare/base/histogram.h"
#include "flare/base/unblocked_logging.h"
#include "flare/fiber/runtime.h"
#include "flare/io/fd.h"
#include "flare/io/tls_counters.h"
#include "flare/rpc/admin/metrics_text.h"
#include "flare/rpc/admission/admission_counters.h"
#include "flare/rpc/call_cells.h"
#include "flare/rpc/client/call_counters.h"
#include "flare/rpc/client/channel_list.h"
#include "flare/rpc/http_client.h"
#include "flare/rpc/http_client/http_client_counters.h"
#include "flare/rpc/memcached/memcached_connector.h"
#include "flare/rpc/memcached_client.h"
#include "flare/rpc/metrics.h"
#include "flare/rpc/pipeline/pipeline_exchange.h"
#include "flare/rpc/policy/retry_budget.h"
#include "flare/rpc/redis/redis_counters.h"
#include "flare/rpc/redis_client.h"
#include "flare/rpc/redis_server/redis_command_counters.h"
#include "flare/rpc/websocket/websocket_counters.h"

namespace flare::rpc {
namespace {

using metrics::Series;
using metrics::Snapshot;
using MetricType = Snapshot::Type;

// Errors have numbers below or above.
bool IsHttpStatus(int status) { return status >= 100 && status < 1000; }

void WriteValue(const char* name, const char* help, MetricType type,
                double value, std::ostream& out) {
  WriteMetric({.name = name,
               .help = help,
               .type = type,
               .series = {Series{.value = value}}},
              out);
}

void WriteCounterMetric(const char* name, const char* help, std::uint64_t value,
                        std::ostream& out) {
  WriteValue(name, help, MetricType::kCounter, static_cast<double>(value), out);
}

void WriteGaugeMetric(const char* name, const char* help, double value,
                      std::ostream& out) {
  WriteValue(name, help, MetricType::kGauge, value, out);
}

// A histogram of nanoseconds, in seconds; three buckets for each power of ten,
// from 10 us on. A value is counted by the bucket that the histogram has put it
// into, which is known to 1/128.
metrics::Histogram::Values SecondsOf(const Histogram& nanoseconds) {
  metrics::Histogram::Values values;
  values.bounds = metrics::LatencyBounds();
  values.bounds.insert(values.bounds.begin(), {0.00001, 0.000025, 0.00005});
  values.counts.resize(values.bounds.size() + 1);
  std::size_t at = 0;
  nanoseconds.ForEachBucket([&](const Histogram::Bucket& bucket) {
    const double middle = (static_cast<double>(bucket.lower) +
                           static_cast<double>(bucket.upper)) /
                          2e9;
    while (at != values.bounds.size() && middle > values.bounds[at]) ++at;
    values.counts[at] += bucket.count;
  });
  values.sum = static_cast<double>(nanoseconds.sum()) / 1e9;
  return values;
}

void WriteConnectionMetrics(const ServerStatistics& s, std::ostream& out) {
  WriteCounterMetric("flare_server_connections_accepted_total",
                     "Connections that were accepted.", s.connections_accepted,
                     out);
  WriteGaugeMetric("flare_server_connections_open",
                   "Connections that are open.",
                   static_cast<double>(s.connections_open), out);
  Snapshot closed{.name = "flare_server_connections_closed_total",
                  .help =
                      "Connections that ended otherwise than by their "
                      "peers' wish, by the reason.",
                  .label_names = {"reason"}};
  const std::pair<const char*, std::uint64_t> reasons[] = {
      {"broken", s.connections_broken},
      {"greedy", s.connections_greedy},
      {"idle", s.connections_idle},
      {"malformed", s.connections_malformed},
      {"refused", s.connections_refused},
      {"slow", s.connections_slow}};
  for (const auto& [reason, count] : reasons) {
    closed.series.push_back(
        Series{.label_values = {reason}, .value = static_cast<double>(count)});
  }
  WriteMetric(closed, out);
  WriteGaugeMetric("flare_server_buffered_bytes",
                   "Bytes that connections hold of the limit for all.",
                   static_cast<double>(s.buffered_bytes), out);
}

void WriteCallMetrics(const ServerStatistics& s, std::ostream& out) {
  WriteCounterMetric("flare_server_calls_total",
                     "Messages that were taken off connections.", s.calls, out);
  WriteGaugeMetric("flare_server_calls_running", "Calls that aren't finished.",
                   static_cast<double>(s.calls_running), out);
  WriteCounterMetric("flare_server_calls_failed_total",
                     "Calls that were answered with a failure.", s.calls_failed,
                     out);
  WriteCounterMetric("flare_server_calls_overloaded_total",
                     "Failed calls that were over some limit.",
                     s.calls_overloaded, out);
  WriteCounterMetric("flare_server_calls_malformed_total",
                     "Failed calls that were not understood.",
                     s.calls_malformed, out);
  WriteCounterMetric("flare_server_calls_unknown_total",
                     "Failed calls of methods that the server doesn't have.",
                     s.calls_unknown, out);
  WriteCounterMetric("flare_server_calls_unauthenticated_total",
                     "Failed calls without good credentials.",
                     s.calls_unauthenticated, out);
  WriteCounterMetric("flare_server_calls_denied_total",
                     "Failed calls that their callers may not make.",
                     s.calls_denied, out);
  WriteCounterMetric("flare_server_calls_cancelled_total",
                     "Calls that were told to stop, or didn't begin as their "
                     "connection had been closed.",
                     s.calls_cancelled, out);
}

void WriteMethodMetrics(const std::vector<ServerMethodStatistics>& methods,
                        std::ostream& out) {
  const auto write = [&](const char* name, const char* help, MetricType type,
                         std::uint64_t ServerMethodStatistics::*value) {
    Snapshot metric{
        .name = name, .help = help, .type = type, .label_names = {"method"}};
    for (const ServerMethodStatistics& method : methods) {
      metric.series.push_back(
          Series{.label_values = {method.name},
                 .value = static_cast<double>(method.*value)});
    }
    WriteMetric(metric, out);
  };
  write("flare_server_method_calls_total", "Calls of the method that came.",
        MetricType::kCounter, &ServerMethodStatistics::calls);
  write("flare_server_method_calls_running",
        "Calls of the method that aren't answered.", MetricType::kGauge,
        &ServerMethodStatistics::running);
  write("flare_server_method_calls_failed_total",
        "Calls of the method that were answered with a failure.",
        MetricType::kCounter, &ServerMethodStatistics::failed);
  write("flare_server_method_calls_overloaded_total",
        "Failed calls of the method that were over some limit.",
        MetricType::kCounter, &ServerMethodStatistics::overloaded);
  Snapshot latency{.name = "flare_server_method_latency_seconds",
                   .help =
                       "From the arrival of requests to their replies, of "
                       "calls that the service answered; where a worker "
                       "has many, of a sample that stands for all.",
                   .type = MetricType::kHistogram,
                   .label_names = {"method"}};
  for (const ServerMethodStatistics& method : methods) {
    latency.series.push_back(
        Series{.label_values = {method.name},
               .histogram = SecondsOf(method.latencies_ns)});
  }
  WriteMetric(latency, out);
}

// A series for each status of the same labels. `others`: of statuses that
// aren't told apart.
void AddStatuses(const std::vector<std::string>& labels,
                 const std::map<int, std::uint64_t>& counts,
                 std::uint64_t others, Snapshot* metric) {
  const auto add = [&](std::string status, std::uint64_t count) {
    Series series{.label_values = labels, .value = static_cast<double>(count)};
    series.label_values.push_back(std::move(status));
    metric->series.push_back(std::move(series));
  };
  for (const auto& [status, count] : counts) add(std::to_string(status), count);
  if (others != 0) add("(other)", others);
}

void WriteMethodFailures(const std::vector<ServerMethodStatistics>& methods,
                         std::ostream& out) {
  Snapshot metric{.name = "flare_server_method_failures_total",
                  .help = "Failed calls of the method by their status.",
                  .label_names = {"method", "status"}};
  for (const ServerMethodStatistics& method : methods) {
    std::uint64_t rest = method.failed;
    for (const auto& [status, count] : method.failures) {
      rest -= std::min(rest, count);
    }
    AddStatuses({method.name}, method.failures, rest, &metric);
  }
  WriteMetric(metric, out);
}

void WriteHttpMetrics(const std::map<std::string, CallCells::Values>& handlers,
                      std::ostream& out) {
  Snapshot requests{.name = "flare_server_http_requests_total",
                    .help =
                        "Requests that an HTTP handler answered, by the "
                        "status of the reply.",
                    .label_names = {"handler", "status"}};
  Snapshot latency{.name = "flare_server_http_latency_seconds",
                   .help =
                       "From the arrival of requests for an HTTP handler "
                       "to their replies.",
                   .type = MetricType::kHistogram,
                   .label_names = {"handler"}};
  for (const auto& [handler, values] : handlers) {
    AddStatuses({handler}, values.counts, values.others, &requests);
    latency.series.push_back(
        Series{.label_values = {handler}, .histogram = values.seconds});
  }
  WriteMetric(requests, out);
  WriteMetric(latency, out);
}

void WriteTlsMetrics(std::ostream& out) {
  Snapshot handshakes{
      .name = "flare_tls_handshakes_total",
      .help =
          "TLS handshakes by their outcome: full or resumed; failed, for a "
          "bad certificate, say; abandoned, as the peer took too long or "
          "the connection was closed; refused, as there were too many.",
      .label_names = {"side", "outcome"}};
  for (const bool is_server : {true, false}) {
    const io::TlsCounters& counters = io::TlsCountersOf(is_server);
    const std::pair<const char*, const std::atomic<std::uint64_t>*> outcomes[] =
        {{"full", &counters.full},
         {"resumed", &counters.resumed},
         {"failed", &counters.failed},
         {"abandoned", &counters.abandoned},
         {"refused", &counters.refused}};
    for (const auto& [outcome, counter] : outcomes) {
      // relaxed: a number.
      handshakes.series.push_back(Series{
          .label_values = {is_server ? "server" : "client", outcome},
          .value =
              static_cast<double>(counter->load(std::memory_order_relaxed))});
    }
  }
  WriteMetric(handshakes, out);
}

// Metrics of clients' calls, each attempt of a policy by itself.
void WriteClientCalls(std::ostream& out) {
  Snapshot calls{.name = "flare_client_calls_total",
                 .help =
                     "Calls by clients that have ended, by their status; "
                     "attempts of policies count as calls.",
                 .label_names = {"channel", "method", "status"}};
  Snapshot latency{.name = "flare_client_call_latency_seconds",
                   .help = "From the beginning of such a call to its end.",
                   .type = MetricType::kHistogram,
                   .label_names = {"channel", "method"}};
  Snapshot open{.name = "flare_client_streams_open",
                .help = "Streaming calls of clients that haven't ended.",
                .type = MetricType::kGauge,
                .label_names = {"channel", "method"}};
  for (ClientCalls& each : ReadClientCalls()) {
    if (each.streams) {
      open.series.push_back(
          Series{.label_values = {each.channel, each.method},
                 .value = static_cast<double>(each.open_streams)});
    }
    AddStatuses({each.channel, each.method}, each.values.counts,
                each.values.others, &calls);
    latency.series.push_back(
        Series{.label_values = {each.channel, each.method},
               .histogram = std::move(each.values.seconds)});
  }
  WriteMetric(calls, out);
  WriteMetric(latency, out);
  if (!open.series.empty()) WriteMetric(open, out);
}

// Metrics of HttpClients; each request counts once, whatever redirections it
// followed.
void WriteClientHttp(std::ostream& out) {
  Snapshot requests{.name = "flare_client_http_requests_total",
                    .help =
                        "Requests of HttpClients, by the status of the "
                        "response, or by the error of those without one.",
                    .label_names = {"server", "status"}};
  Snapshot latency{.name = "flare_client_http_latency_seconds",
                   .help = "From the beginning of such a request to its end.",
                   .type = MetricType::kHistogram,
                   .label_names = {"server"}};
  const auto add = [&](const std::string& server, std::string status,
                       std::uint64_t count) {
    requests.series.push_back(
        Series{.label_values = {server, std::move(status)},
               .value = static_cast<double>(count)});
  };
  for (auto& [server, values] : HttpClientCounters::Read()) {
    for (const auto& [status, count] : values.counts) {
      add(server,
          IsHttpStatus(status) ? std::to_string(status)
                               : HttpClient::ErrorCodeToString(status),
          count);
    }
    if (values.others != 0) add(server, "(other)", values.others);
    latency.series.push_back(
        Series{.label_values = {server}, .histogram = values.seconds});
  }
  WriteMetric(requests, out);
  WriteMetric(latency, out);
}

// Metrics of RedisClients, or of another kind of pipelined clients.
void WritePipelinedClients(
    const std::string& kind, const std::string& clients,
    const std::map<std::string, CallCells::Values>& servers,
    const char* (*name_of_error)(int), std::ostream& out) {
  Snapshot requests{.name = "flare_client_" + kind + "_requests_total",
                    .help = "Requests of " + clients +
                            ", by outcome: \"OK\", \"error\" for an error of "
                            "the server's, or the error of those without a "
                            "reply.",
                    .label_names = {"server", "outcome"}};
  Snapshot latency{.name = "flare_client_" + kind + "_latency_seconds",
                   .help = "From the beginning of such a request to its end.",
                   .type = MetricType::kHistogram,
                   .label_names = {"server"}};
  const auto name_of = [&](int outcome) -> std::string {
    if (outcome == PIPELINE_OK) return "OK";
    if (outcome == PIPELINE_ERROR_REPLY) return "error";
    return name_of_error(outcome);
  };
  for (const auto& [server, values] : servers) {
    for (const auto& [outcome, count] : values.counts) {
      requests.series.push_back(
          Series{.label_values = {server, name_of(outcome)},
                 .value = static_cast<double>(count)});
    }
    latency.series.push_back(
        Series{.label_values = {server}, .histogram = values.seconds});
  }
  WriteMetric(requests, out);
  WriteMetric(latency, out);
}

// Metrics of the handlers of RedisServices.
void WriteServerRedis(std::ostream& out) {
  Snapshot commands{.name = "flare_server_redis_commands_total",
                    .help =
                        "Calls of the handlers of RedisServices, by outcome: "
                        "\"OK\", or \"error\" for an error or an exception.",
                    .label_names = {"command", "outcome"}};
  Snapshot latency{.name = "flare_server_redis_latency_seconds",
                   .help = "From the beginning of such a call to its end.",
                   .type = MetricType::kHistogram,
                   .label_names = {"command"}};
  for (auto& [command, values] : RedisCommandCounters::Read()) {
    for (const auto& [outcome, count] : values.counts) {
      const bool ok = outcome == RedisCommandCounters::kOk;
      commands.series.push_back(
          Series{.label_values = {command, ok ? "OK" : "error"},
                 .value = static_cast<double>(count)});
    }
    latency.series.push_back(
        Series{.label_values = {command}, .histogram = values.seconds});
  }
  WriteMetric(commands, out);
  WriteMetric(latency, out);
}

// Those of servers' handlers and of HttpClients; none until there was one.
void WriteWebSocketMetrics(std::ostream& out) {
  using Values = WebSocketCounters::Values;
  const std::pair<const char*, Values> sides[] = {
      {"client", WebSocketCounters::Of(/*client=*/true)},
      {"server", WebSocketCounters::Of(/*client=*/false)}};
  const auto write =
      [&](const char* name, const char* help, MetricType type,
          const std::function<std::uint64_t(const Values&)>& of) {
        Snapshot metric{
            .name = name, .help = help, .type = type, .label_names = {"side"}};
        for (const auto& [side, values] : sides) {
          if (values.opened == 0) continue;
          metric.series.push_back(
              Series{.label_values = {side},
                     .value = static_cast<double>(of(values))});
        }
        WriteMetric(metric, out);
      };
  write("flare_websocket_open", "WebSockets that are open.", MetricType::kGauge,
        &Values::open);
  write("flare_websocket_opened_total", "WebSockets that were opened.",
        MetricType::kCounter, &Values::opened);
  write("flare_websocket_broken_total",
        "WebSockets that were closed for a fault of the peer.",
        MetricType::kCounter, &Values::broken);
  write("flare_websocket_lost_total",
        "WebSockets that ended without a close frame of the peer.",
        MetricType::kCounter, &Values::lost);
  write("flare_websocket_messages_read_total", "Messages that came.",
        MetricType::kCounter, &Values::messages_read);
  write("flare_websocket_bytes_read_total", "Bytes of such messages.",
        MetricType::kCounter, &Values::bytes_read);
  write("flare_websocket_messages_written_total", "Messages that were sent.",
        MetricType::kCounter, &Values::messages_written);
  write("flare_websocket_bytes_written_total", "Bytes of such messages.",
        MetricType::kCounter, &Values::bytes_written);
}

// Metrics of the budget that all channels of the process share.
void WriteRetryMetrics(std::ostream& out) {
  const RetryBudget& budget = RetryBudget::Default();
  const RetryBudget::Counters counters = budget.counters();
  WriteCounterMetric("flare_client_policy_calls_total",
                     "Calls that a policy of their channel was for.",
                     counters.calls, out);
  WriteCounterMetric("flare_client_retries_total",
                     "Attempts that policies made after a failed one.",
                     counters.retries, out);
  WriteCounterMetric("flare_client_hedges_total",
                     "Attempts that policies made beside a slow one.",
                     counters.hedges, out);
  WriteCounterMetric("flare_client_retry_budget_refusals_total",
                     "Attempts that the budget didn't allow.", counters.refused,
                     out);
  WriteGaugeMetric("flare_client_retry_budget_tokens",
                   "Attempts that the budget allows now.", budget.left(), out);
}

void WriteAdmissionMetrics(const AdmissionStatistics& s,
                           const std::vector<ServerMethodStatistics>& methods,
                           std::ostream& out) {
  const metrics::Snapshot limits = ReadAdmissionCounters();
  if (!limits.series.empty()) WriteMetric(limits, out);
  const metrics::Snapshot files = ReadLimitsFileCounters();
  if (!files.series.empty()) WriteMetric(files, out);
  if (!s.on) return;
  if (s.limit != 0) {
    WriteGaugeMetric("flare_server_adaptive_limit",
                     "Calls that may be under way, by the limit that adapts.",
                     static_cast<double>(s.limit), out);
  }
  Snapshot adaptive{.name = "flare_server_method_adaptive_limit",
                    .help = "Calls of the method that may run, likewise.",
                    .type = MetricType::kGauge,
                    .label_names = {"method"}};
  for (const ServerMethodStatistics& method : methods) {
    if (method.limit == 0) continue;
    adaptive.series.push_back(
        Series{.label_values = {method.name},
               .value = static_cast<double>(method.limit)});
  }
  if (!adaptive.series.empty()) WriteMetric(adaptive, out);
  Snapshot calls{.name = "flare_server_admission_calls_total",
                 .help = "Calls that rules of admission refused, or would.",
                 .label_names = {"rule", "outcome"}};
  for (std::size_t i = 0; i != kAdmissionRules; ++i) {
    const std::pair<const char*, std::uint64_t> outcomes[] = {
        {"refused", s.refused[i]}, {"would_refuse", s.would_refuse[i]}};
    for (const auto& [outcome, count] : outcomes) {
      calls.series.push_back(
          Series{.label_values = {kAdmissionRuleNames[i], outcome},
                 .value = static_cast<double>(count)});
    }
  }
  WriteMetric(calls, out);
  if (!s.has_priorities) return;
  Snapshot priorities{.name = "flare_server_admission_refused_total",
                      .help = "Calls that these rules refused, by priorities.",
                      .label_names = {"priority"}};
  for (std::size_t i = 0; i != kPriorities; ++i) {
    priorities.series.push_back(
        Series{.label_values = {std::to_string(i)},
               .value = static_cast<double>(s.refused_by_priority[i])});
  }
  WriteMetric(priorities, out);
}

void WriteSchedulerMetrics(std::ostream& out) {
  const fiber::RuntimeStatistics s = fiber::GetRuntimeStatistics();
  WriteGaugeMetric("flare_scheduler_groups", "Scheduling groups.",
                   static_cast<double>(fiber::GetSchedulingGroupCount()), out);
  WriteGaugeMetric("flare_scheduler_workers_per_group",
                   "Workers of each scheduling group.",
                   static_cast<double>(fiber::GetSchedulingGroupSize()), out);
  const std::pair<std::pair<const char*, const char*>, std::uint64_t>
      counters[] = {
          {{"tasks", "Tasks that were run, resumed fibers included."}, s.tasks},
          {{"suspends", "Fibers that blocked."}, s.suspends},
          {{"steals", "Thefts from queues of other workers."}, s.steals},
          {{"near_steals", "Thefts from other groups of the node."},
           s.near_steals},
          {{"far_steals", "Thefts from groups of other nodes."}, s.far_steals},
          {{"wakes", "Idle workers that were woken."}, s.wakes},
          {{"watch_wakes", "Idle workers that the watch woke."}, s.watch_wakes},
          {{"blocked_workers", "Workers found blocked by their tasks."},
           s.blocked_workers},
          {{"reserve_workers", "Workers of the reserve that were started."},
           s.reserve_workers},
          {{"parks", "Workers that went to sleep."}, s.parks},
          {{"polls", "Looks for events."}, s.polls},
          {{"overflows", "Run queues that were full."}, s.overflows},
          {{"stuck_reports", "Tasks that held a worker too long."},
           s.stuck_reports},
          {{"stack_shortages", "Workers that could get no spare stack."},
           s.stack_shortages},
          {{"rejected_tasks", "Tasks that were refused."}, s.rejected_tasks}};
  for (const auto& [text, value] : counters) {
    const std::string name =
        "flare_scheduler_" + std::string(text.first) + "_total";
    WriteCounterMetric(name.c_str(), text.second, value, out);
  }
  WriteGaugeMetric("flare_scheduler_blocking_threads",
                   "Threads of blocking regions.",
                   static_cast<double>(s.blocking_threads), out);
  WriteGaugeMetric("flare_scheduler_stacks",
                   "Stacks in use, spare ones included.",
                   static_cast<double>(s.stacks), out);
  WriteGaugeMetric("flare_scheduler_tasks_aside",
                   "Tasks that wait for a stack.",
                   static_cast<double>(s.tasks_aside), out);
  WriteMetric(
      {.name = "flare_scheduler_ready_delay_seconds",
       .help = "Time that ready tasks waited to be run, of a sample.",
       .type = MetricType::kHistogram,
       .series = {Series{.histogram = SecondsOf(fiber::GetReadyDelays())}}},
      out);
}

// Metrics of channels with the same URI together, those that have ended
// included.
void WriteChannelMetrics(std::ostream& out) {
  constexpr std::size_t kMostServers = 2000;
  struct Counted {
    std::uint64_t calls = 0, failures = 0, ejections = 0, in_flight = 0;
  };
  std::map<std::vector<std::string>, Counted> servers;
  std::size_t channels = 0;
  std::vector<ChannelState> ended;
  std::vector<ChannelState> known =
      DescribeChannels(kMostServers, &channels, &ended);
  std::move(ended.begin(), ended.end(), std::back_inserter(known));
  for (const ChannelState& channel : known) {
    for (const ChannelServerState& server : channel.servers) {
      std::vector<std::string> labels = {channel.uri, server.server};
      if (!server.counted ||
          (servers.size() >= kMostServers && !servers.contains(labels))) {
        continue;
      }
      Counted& counted = servers[std::move(labels)];
      counted.calls += server.calls;
      counted.failures += server.failures;
      counted.ejections += server.ejections;
      counted.in_flight += server.in_flight;
    }
  }
  WriteGaugeMetric("flare_client_channels", "Channels of the process.",
                   static_cast<double>(channels), out);
  const auto write = [&](const char* name, const char* help, MetricType type,
                         std::uint64_t Counted::*value) {
    Snapshot metric{.name = name,
                    .help = help,
                    .type = type,
                    .label_names = {"channel", "server"}};
    for (const auto& [labels, counted] : servers) {
      metric.series.push_back(
          Series{.label_values = labels,
                 .value = static_cast<double>(counted.*value)});
    }
    WriteMetric(metric, out);
  };
  write("flare_client_server_calls_total",
        "Calls that channels with several servers sent to the server.",
        MetricType::kCounter, &Counted::calls);
  write("flare_client_server_calls_failed_total", "Those of them that failed.",
        MetricType::kCounter, &Counted::failures);
  write("flare_client_server_ejections_total",
        "How often channels left the server alone for a while.",
        MetricType::kCounter, &Counted::ejections);
  write("flare_client_server_calls_in_flight",
        "Calls that the server hasn't answered.", MetricType::kGauge,
        &Counted::in_flight);
}

// Seconds since 1970 at which the process was started, by the kernel.
std::optional<double> ProcessStartTime() {
  std::ifstream process("/proc/self/stat");
  std::string text;
  std::getline(process, text);
  // Behind the name, which may have blanks and brackets in it.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 3; i != 22; ++i) fields >> skipped;
  double ticks = 0;
  if (!(fields >> ticks)) return std::nullopt;
  std::ifstream system("/proc/stat");
  for (std::string line; std::getline(system, line);) {
    std::istringstream words(line);
    std::string name;
    double boot = 0;
    if (words >> name >> boot && name == "btime") {
      return boot + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
    }
  }
  return std::nullopt;
}

std::optional<double> OpenDescriptors() {
  std::error_code error;
  std::filesystem::directory_iterator entries("/proc/self/fd", error);
  if (error) return std::nullopt;
  double count = -1;  // The one that looks.
  for (const std::filesystem::directory_iterator end; entries != end;
       entries.increment(error)) {
    if (error) return std::nullopt;
    ++count;
  }
  return count;
}

// Named as in Prometheus' own client libraries.
void WriteProcessMetrics(std::ostream& out) {
  timespec cpu{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  WriteValue(
      "process_cpu_seconds_total", "CPU time, of user and system.",
      MetricType::kCounter,
      static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) / 1e9,
      out);
  if (const auto count = OpenDescriptors()) {
    WriteGaugeMetric("process_open_fds", "Descriptors that are open.", *count,
                     out);
  }
  const std::size_t limit = io::DescriptorLimit();
  WriteGaugeMetric("process_max_fds", "Descriptors that the system allows.",
                   limit == std::numeric_limits<std::size_t>::max()
                       ? std::numeric_limits<double>::infinity()
                       : static_cast<double>(limit),
                   out);
  std::ifstream memory("/proc/self/statm");
  double virtual_pages = 0, resident_pages = 0;
  if (memory >> virtual_pages >> resident_pages) {
    const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
    WriteGaugeMetric("process_virtual_memory_bytes", "Address space.",
                     virtual_pages * page, out);
    WriteGaugeMetric("process_resident_memory_bytes",
                     "Memory that is resident.", resident_pages * page, out);
  }
  static const std::optional<double> start = ProcessStartTime();
  if (start) {
    WriteGaugeMetric("process_start_time_seconds",
                     "When it was started, since 1970.", *start, out);
  }
}

}  // namespace

void WriteMetricsPage(const ServerStatistics& server,
                      const std::vector<ServerMethodStatistics>& methods,
                      const std::map<std::string, CallCells::Values>& handlers,
                      std::ostream& out) {
  WriteConnectionMetrics(server, out);
  WriteCallMetrics(server, out);
  WriteMethodMetrics(methods, out);
  WriteMethodFailures(methods, out);
  WriteHttpMetrics(handlers, out);
  WriteTlsMetrics(out);
  WriteAdmissionMetrics(server.admission, methods, out);
  WriteChannelMetrics(out);
  WriteClientCalls(out);
  WriteClientHttp(out);
  WriteServerRedis(out);
  WritePipelinedClients("redis", "RedisClients", RedisCounters::Read(),
                        RedisClient::ErrorCodeToString, out);
  WritePipelinedClients("memcached", "MemcachedClients",
                        MemcachedConnector::ReadCounters(),
                        MemcachedClient::ErrorCodeToString, out);
  WriteWebSocketMetrics(out);
  WriteRetryMetrics(out);
  WriteSchedulerMetrics(out);
  WriteCounterMetric("flare_log_lines_lost_total",
                     "Log lines that nobody took.", LostLogLines(), out);
  WriteProcessMetrics(out);
  for (const Snapshot& metric : metrics::Collect()) WriteMetric(metric, out);
}

}  // namespace flare::rpc

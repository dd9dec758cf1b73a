#include "flare/rpc/admin/inspect_pages.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iomanip>
#include <iterator>
#include <memory>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/histogram.h"
#include "flare/base/string.h"
#include "flare/base/unblocked_logging.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/fiber_list.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/stack_profile.h"
#include "flare/rpc/admin/flags_page.h"
#include "flare/rpc/admin/metrics_page.h"
#include "flare/rpc/admin/metrics_text.h"
#include "flare/rpc/admin/page_text.h"
#include "flare/rpc/admin/profile_pages.h"
#include "flare/rpc/client/channel_list.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/http/http_compression.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/policy/retry_budget.h"
#include "flare/rpc/server/method_counters.h"
#include "flare/rpc/websocket/websocket_counters.h"

namespace flare::rpc {
namespace {

// Bytes from which on pages in text are compressed, as the client allows.
constexpr std::size_t kCompressPagesFrom = 1024;

void Fill(const std::string& type, std::string body, HttpResponse* response) {
  response->headers()->Set("Content-Type", type + "; charset=utf-8");
  response->headers()->Set("Cache-Control", "no-store");
  response->set_body(std::move(body));
}

struct Page {
  std::string_view path;
  std::string_view what;
};

constexpr Page kPages[] = {
    {"/inspect/server", "what this server has counted"},
    {"/inspect/methods", "the same of each method, with latencies"},
    {"/inspect/channels", "channels of this process, and their servers"},
    {"/inspect/scheduler", "what the fiber runtime has counted"},
    {"/inspect/fibers", "all fibers, with backtraces"},
    {"/inspect/stacks", "how deep their stacks get"},
    {"/inspect/flags", "flags, and changes of some of them"},
    {kContentionPath, "waits for locks, by place; takes ?seconds=10"},
    {kCpuProfilePath, "a CPU profile, for pprof; takes ?seconds=30"},
    {kHeapProfilePath, "a profile of the heap, for pprof"},
    {kContentionProfilePath, "waits for locks, for pprof; takes ?seconds=30"},
    {"/metrics", "all counters and latencies, for Prometheus"},
};

using ExtensionList = std::vector<std::shared_ptr<const Extension>>;

// All pages, except those that a program adds as handlers.
std::vector<Page> PagesWith(const ExtensionList& extensions) {
  std::vector<Page> pages(std::begin(kPages), std::end(kPages));
  for (const auto& extension : extensions) {
    if (!extension->page) continue;
    pages.push_back({extension->page->path, extension->page->what});
  }
  return pages;
}

// Browsers get links.
void WriteIndex(const ExtensionList& extensions, const HttpRequest& request,
                HttpResponse* response) {
  const bool html = WantsHtml(request);
  std::ostringstream text;
  if (html) text << "<!DOCTYPE html><title>/inspect</title><pre>\n";
  for (const auto& [path, what] : PagesWith(extensions)) {
    if (html) text << "<a href=\"" << path << "\">";
    text << path;
    if (html) text << "</a>";
    text << std::string(path.size() < 21 ? 22 - path.size() : 1, ' ') << what
         << "\n";
  }
  if (html) text << "</pre>\n";
  Fill(html ? "text/html" : "text/plain", std::move(text).str(), response);
}

void WriteServer(const ServerStatistics& s, std::ostream& out) {
  out << "connections_accepted " << s.connections_accepted
      << "\nconnections_open " << s.connections_open << "\nconnections_refused "
      << s.connections_refused << "\nconnections_idle " << s.connections_idle
      << "\nconnections_slow " << s.connections_slow      //
      << "\nconnections_greedy " << s.connections_greedy  //
      << "\nconnections_malformed " << s.connections_malformed
      << "\nconnections_broken " << s.connections_broken  //
      << "\nbuffered_bytes " << s.buffered_bytes          //
      << "\ncalls " << s.calls                            //
      << "\ncalls_running " << s.calls_running            //
      << "\ncalls_failed " << s.calls_failed              //
      << "\ncalls_overloaded " << s.calls_overloaded << "\ncalls_malformed "
      << s.calls_malformed                      //
      << "\ncalls_unknown " << s.calls_unknown  //
      << "\ncalls_unauthenticated " << s.calls_unauthenticated
      << "\ncalls_denied " << s.calls_denied        //
      << "\ncalls_cancelled " << s.calls_cancelled  //
      << "\nlog_lines_lost " << LostLogLines() << "\n";
  // Those of the process; none until there was one.
  for (const bool client : {false, true}) {
    const auto sockets = WebSocketCounters::Of(client);
    if (sockets.opened == 0) continue;
    const char* const side = client ? "\nclient_websockets_" : "\nwebsockets_";
    out << side + 1 << "open " << sockets.open()              //
        << side << "opened " << sockets.opened                //
        << side << "broken " << sockets.broken                //
        << side << "lost " << sockets.lost                    //
        << side << "messages_read " << sockets.messages_read  //
        << side << "messages_written " << sockets.messages_written << "\n";
  }
}

void WriteAdmission(const AdmissionStatistics& s, std::ostream& out) {
  if (!s.on) return;
  if (s.limit != 0) out << "admission_limit " << s.limit << "\n";
  for (std::size_t i = 0; i != kAdmissionRules; ++i) {
    const char* const rule = kAdmissionRuleNames[i];
    out << "admission_refused_" << rule << " " << s.refused[i]
        << "\nadmission_would_refuse_" << rule << " " << s.would_refuse[i]
        << "\n";
  }
  if (!s.has_priorities) return;
  for (std::size_t i = 0; i != kPriorities; ++i) {
    out << "admission_refused_priority_" << i << " " << s.refused_by_priority[i]
        << "\n";
  }
}

using Row = std::vector<std::string>;

// "-" while nothing was measured.
std::string Microseconds(const Histogram& latencies, double ns) {
  if (latencies.count() == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", ns / 1000);
  return text;
}

Row MethodRow(const ServerMethodStatistics& s) {
  const Histogram& latencies = s.latencies_ns;
  Row row = {std::to_string(s.calls), std::to_string(s.running),
             std::to_string(s.failed), std::to_string(s.overloaded),
             Microseconds(latencies, latencies.mean())};
  for (const double quantile : {0.5, 0.9, 0.99, 0.999, 1.0}) {
    row.push_back(Microseconds(
        latencies, static_cast<double>(latencies.ValueAtQuantile(quantile))));
  }
  row.push_back(s.name);
  return row;
}

// In columns.
void WriteTable(const std::vector<Row>& rows, std::ostream& out) {
  // Widths of all columns except the name's.
  std::vector<std::size_t> widths(rows[0].size() - 1);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i != widths.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const Row& row : rows) {
    for (std::size_t i = 0; i != widths.size(); ++i) {
      out << std::setw(static_cast<int>(widths[i])) << row[i] << "  ";
    }
    out << row.back() << "\n";
  }
}

// "-" for latencies of no calls.
void AddRecent(const RecentCallStatistics& s, Row* row) {
  const auto add = [row](bool known, double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.1f", value);
    row->emplace_back(known ? text : "-");
  };
  add(true, s.calls_per_second);
  add(true, s.failed_per_second);
  for (const std::int64_t ns : {s.p50_ns, s.p90_ns, s.p99_ns}) {
    add(ns != 0, static_cast<double>(ns) / 1000);
  }
}

// Leaves out methods that weren't called lately. Scripts, which read the lines
// of all methods, take these for comments.
void WriteRecent(const std::vector<ServerMethodStatistics>& methods,
                 std::ostream& out) {
  std::vector<Row> rows = {{"#", "rate_10s", "failed_10s", "p50_10s", "p90_10s",
                            "p99_10s", "rate_1m", "failed_1m", "p50_1m",
                            "p90_1m", "p99_1m", "method"}};
  for (const ServerMethodStatistics& method : methods) {
    if (method.last_minute.calls_per_second == 0) continue;
    Row row = {"#"};
    AddRecent(method.last_10s, &row);
    AddRecent(method.last_minute, &row);
    row.push_back(method.name);
    rows.push_back(std::move(row));
  }
  out << "# the last 10 s and the last minute, of methods that were called: "
         "calls and failed ones per second, latencies in microseconds\n";
  WriteTable(rows, out);
}

void WriteMethods(const std::vector<ServerMethodStatistics>& methods,
                  std::ostream& out) {
  std::vector<Row> rows = {{"calls", "running", "failed", "overloaded",
                            "mean_us", "p50_us", "p90_us", "p99_us", "p999_us",
                            "max_us", "method"}};
  for (const auto& method : methods) rows.push_back(MethodRow(method));
  out << "# microseconds from a request's arrival to its reply, of calls that "
         "the service answered; where a worker has over "
      << MethodCounters::kFewCalls << " a second, of one in "
      << MethodCounters::kPeriod << "\n";
  WriteTable(rows, out);
  WriteRecent(methods, out);
}

Row ServerRow(const ChannelState& channel, const ChannelServerState& s) {
  const auto count = [&](std::uint64_t n) {
    return s.counted ? std::to_string(n) : "-";
  };
  return {s.state,
          std::to_string(s.retry_in_ns / kNsPerMs),
          std::to_string(s.weight),
          s.zone.empty() ? "-" : s.zone,
          count(s.in_flight),
          count(s.calls),
          count(s.failures),
          count(s.ejections),
          s.latency_ns == 0 ? "-" : std::to_string(s.latency_ns / 1000),
          s.server,
          channel.uri};
}

// Nothing if no channel has a policy.
void WriteRetryBudget(std::ostream& out) {
  const RetryBudget& budget = RetryBudget::Default();
  const RetryBudget::Counters counters = budget.counters();
  if (counters.calls == 0) return;
  out << "# " << CountOf(counters.calls, "call")
      << " with a policy: " << counters.retries << " retried, "
      << counters.hedges << " hedged, " << counters.refused
      << " refused by the budget, which has "
      << static_cast<std::int64_t>(budget.left()) << " left\n";
}

void WriteChannels(std::ostream& out) {
  constexpr std::size_t kMostChannels = 1000;
  constexpr std::size_t kMostServers = 20'000;
  std::size_t all = 0;
  const std::vector<ChannelState> channels =
      DescribeChannels(kMostChannels, &all);
  std::vector<Row> rows = {{"state", "retry_ms", "weight", "zone", "in_flight",
                            "calls", "failed", "ejections", "latency_us",
                            "server", "channel"}};
  out << "# " << CountOf(all, "channel");
  if (channels.size() < all) out << ", of which " << channels.size() << " here";
  out << "; servers since a channel's first call\n";
  WriteRetryBudget(out);
  for (const ChannelState& channel : channels) {
    out << "# " << channel.uri << " by " << channel.nslb << ": "
        << CountOf(channel.servers.size(), "server")
        << (channel.panic ? ", ejections ignored as few are left" : "");
    if (!channel.failure.ok()) out << "; " << channel.failure.message();
    out << "\n";
    for (const ChannelServerState& server : channel.servers) {
      if (!server.check_failure.empty()) {
        out << "# " << server.server
            << " failed its last health check: " << server.check_failure
            << "\n";
      }
      if (rows.size() <= kMostServers) {
        rows.push_back(ServerRow(channel, server));
      }
    }
  }
  WriteTable(rows, out);
}

void WriteDelays(const Histogram& delays, std::ostream& out) {
  out << "ready_delay_samples " << delays.count() << "\n";
  if (delays.count() == 0) return;
  constexpr std::pair<const char*, double> kQuantiles[] = {
      {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}};
  for (const auto& [name, quantile] : kQuantiles) {
    out << "ready_delay_" << name << "_ns " << delays.ValueAtQuantile(quantile)
        << "\n";
  }
  out << "ready_delay_max_ns " << delays.max() << "\n";
}

void WriteScheduler(std::ostream& out) {
  const fiber::RuntimeStatistics s = fiber::GetRuntimeStatistics();
  const auto per_task = [&](std::uint64_t n) {
    return s.tasks == 0 ? 0.0
                        : static_cast<double>(n) / static_cast<double>(s.tasks);
  };
  out << "scheduling_groups " << fiber::GetSchedulingGroupCount()
      << "\nworkers_per_group " << fiber::GetSchedulingGroupSize()  //
      << "\ntasks " << s.tasks                                      //
      << "\nsuspends " << s.suspends                                //
      << "\nsteals " << s.steals                                    //
      << "\nnear_steals " << s.near_steals                          //
      << "\nfar_steals " << s.far_steals                            //
      << "\nsteals_per_task " << per_task(s.steals)                 //
      << "\nwakes " << s.wakes                                      //
      << "\nwakes_per_task " << per_task(s.wakes)                   //
      << "\nwatch_wakes " << s.watch_wakes                          //
      << "\nblocked_workers " << s.blocked_workers                  //
      << "\nreserve_workers " << s.reserve_workers                  //
      << "\nparks " << s.parks                                      //
      << "\npolls " << s.polls                                      //
      << "\noverflows " << s.overflows                              //
      << "\nstuck_reports " << s.stuck_reports                      //
      << "\nblocking_threads " << s.blocking_threads                //
      << "\nstacks " << s.stacks                                    //
      << "\nstack_shortages " << s.stack_shortages                  //
      << "\ntasks_aside " << s.tasks_aside                          //
      << "\nrejected_tasks " << s.rejected_tasks << "\n";
  WriteDelays(fiber::GetReadyDelays(), out);
}

void WriteStacks(std::ostream& out) {
  const std::vector<fiber::StackProfileEntry> profile =
      fiber::GetStackProfile();
  if (profile.empty()) {
    out << "nothing is known: start the program with "
           "--flare_fiber_stack_profile\n";
    return;
  }
  out << "suggested --flare_fiber_stack_size=" << fiber::SuggestedStackSize()
      << "\nmax_bytes tasks entry\n";
  for (const fiber::StackProfileEntry& each : profile) {
    out << each.max_bytes << " " << each.tasks << " " << each.name << "\n";
  }
}

// A proxy on this host makes all of its callers look as if they were here, too;
// most proxies say so.
bool IsPassedOn(const HttpRequest& request) {
  for (const char* field :
       {"Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"}) {
    if (request.headers()->contains(field)) return true;
  }
  return false;
}

// On a socket for both versions of IP, too.
bool IsOnThisHost(const Endpoint& peer) {
  return peer.IsLoopback() || peer.host().starts_with("::ffff:127.");
}

// Answers others with 403.
class LoopbackPage final : public HttpHandler {
 public:
  explicit LoopbackPage(HttpHandlerPtr page) : page_(std::move(page)) {}

  void HandleRequest(const HttpRequest& request, HttpResponse* response,
                     HttpServerContext* context) override {
    if (IsOnThisHost(context->remote_peer) && !IsPassedOn(request) &&
        IsNamedAsThisHost(request, context->remote_peer)) {
      return page_->HandleRequest(request, response, context);
    }
    FillHttpError(HttpStatus::Forbidden,
                  "This page is for callers on the server's host, at its "
                  "address or at localhost. Its option "
                  "--flare_rpc_server_pages=everyone "
                  "(Server::Options::builtin_pages) opens it to all, and "
                  "--flare_rpc_server_admin_address gives it an address of its "
                  "own.",
                  response);
  }

 private:
  const HttpHandlerPtr page_;
};

struct PageRoutes {
  HttpRoutes* routes;
  const PageAccess& access;
};

// A program's page of that path stays: the status says no more than that.
void AddPage(std::string path, HttpHandlerPtr handler, const PageRoutes& to) {
  if (to.access.credentials != nullptr) {
    handler = PageCredentials::Guard(std::move(handler), to.access.credentials);
  }
  if (to.access.who == PagesFor::kLoopback) {
    handler = std::make_unique<LoopbackPage>(std::move(handler));
  }
  static_cast<void>(
      to.routes->AddExemptPath(std::move(path), std::move(handler)));
}

void AddTextPage(std::string path, std::function<void(std::ostream&)> write,
                 const PageRoutes& routes) {
  AddPage(std::move(path),
          NewHttpGetHandler([write = std::move(write)](
                                const HttpRequest&, HttpResponse* response,
                                HttpServerContext* context) {
            std::ostringstream text;
            write(text);
            Fill("text/plain", std::move(text).str(), response);
            context->compress_from = kCompressPagesFrom;
          }),
          routes);
}

// Runs `make` on a thread of its own, which leaves the CPUs to workers that
// want them.
void RunApart(const std::function<void()>& make) {
  std::exception_ptr error;
  const auto run = [&] {
    try {
      make();
    } catch (...) {  // Out of memory.
      error = std::current_exception();
    }
  };
  constexpr int kNiceness = 10;
  try {
    std::thread([&] {
      const auto self = static_cast<id_t>(syscall(SYS_gettid));
      static_cast<void>(setpriority(PRIO_PROCESS, self, kNiceness));
      run();
    }).join();
  } catch (const std::system_error&) {  // No more threads.
    run();
  }
  if (error != nullptr) std::rethrow_exception(error);
}

// Counts the pages being made, up to a limit for all servers of the process:
// any client can ask for them, as often as it likes and past all other limits.
struct PageLimit {
  const int most;
  std::atomic<int> now{0};
};

void AddSlowPage(std::string path, const char* type, PageLimit* limit,
                 std::function<void(std::ostream&)> write,
                 const PageRoutes& routes) {
  // There one thread makes all pages, and mustn't depend on how workers get on.
  const bool admin = routes.access.who == PagesFor::kAdminPort;
  const auto answer = [type, limit, admin, write = std::move(write)](
                          const HttpRequest& request, HttpResponse* response,
                          HttpServerContext*) {
    struct Turn {
      // relaxed, both: nothing but this number is shared.
      explicit Turn(std::atomic<int>* now)
          : now_(now), before(now->fetch_add(1, std::memory_order_relaxed)) {}
      ~Turn() { now_->fetch_sub(1, std::memory_order_relaxed); }
      std::atomic<int>* const now_;
      const int before;
    } const turn(&limit->now);
    if (turn.before >= limit->most && !admin) {
      return FillHttpError(HttpStatus::ServiceUnavailable,
                           "Another such page is being made: there is a limit "
                           "to how many are made at a time. Ask again.",
                           response);
    }
    const auto make = [&] {
      std::ostringstream text;
      write(text);
      Fill(type, std::move(text).str(), response);
      CompressReply(request, kCompressPagesFrom, response);
    };
    // The admin port's thread must get on while workers spin.
    if (admin) return make();
    fiber::RunBlocking([&] { RunApart(make); });
  };
  AddPage(std::move(path), NewHttpGetHandler(answer), routes);
}

// One at a time.
void AddSlowTextPage(std::string path, std::function<void(std::ostream&)> write,
                     const PageRoutes& routes) {
  static PageLimit limit{.most = 1};
  AddSlowPage(std::move(path), "text/plain", &limit, std::move(write), routes);
}

// Two that collect metrics don't meet each other's 503.
void AddMetricsPage(std::function<void(std::ostream&)> write,
                    const PageRoutes& routes) {
  static PageLimit limit{.most = 4};
  AddSlowPage("/metrics", kMetricsTextType, &limit, std::move(write), routes);
}

// Those of extensions, and the list of all pages.
void AddExtensionPages(const PageRoutes& routes) {
  const ExtensionList extensions = InstalledExtensions();
  for (const auto& extension : extensions) {
    if (!extension->page) continue;
    AddPage(extension->page->path,
            NewHttpGetHandler([extension](const HttpRequest& request,
                                          HttpResponse* response,
                                          HttpServerContext*) {
              extension->page->write(request, response);
              response->headers()->Set("Cache-Control", "no-store");
            }),
            routes);
  }
  AddPage("/inspect",
          NewHttpGetHandler([extensions](const HttpRequest& request,
                                         HttpResponse* response,
                                         HttpServerContext*) {
            WriteIndex(extensions, request, response);
          }),
          routes);
}

// Keeps the work that a stranger may cause by one page small.
void WriteFibers(std::ostream& out) {
  fiber::DumpFibers(out, {.fibers = 20'000,
                          .places = 200,
                          .looking_ns = std::int64_t{kNsPerSecond}});
}

}  // namespace

void AddInspectPages(
    std::function<ServerStatistics()> statistics,
    std::function<std::vector<ServerMethodStatistics>()> method_statistics,
    std::function<std::map<std::string, CallCells::Values>()> http_statistics,
    const PageAccess& access, HttpRoutes* to) {
  const PageRoutes routes{.routes = to, .access = access};
  AddExtensionPages(routes);
  AddMetricsPage(
      [statistics, method_statistics,
       http_statistics = std::move(http_statistics)](std::ostream& out) {
        WriteMetricsPage(statistics(), method_statistics(), http_statistics(),
                         out);
      },
      routes);
  AddTextPage(
      "/inspect/server",
      [statistics = std::move(statistics)](std::ostream& out) {
        const ServerStatistics now = statistics();
        WriteServer(now, out);
        WriteAdmission(now.admission, out);
      },
      routes);
  AddSlowTextPage(
      "/inspect/methods",
      [method_statistics = std::move(method_statistics)](std::ostream& out) {
        WriteMethods(method_statistics(), out);
      },
      routes);
  AddSlowTextPage("/inspect/channels", WriteChannels, routes);
  AddTextPage("/inspect/scheduler", WriteScheduler, routes);
  AddSlowTextPage("/inspect/fibers", WriteFibers, routes);
  AddSlowTextPage("/inspect/stacks", WriteStacks, routes);
  AddPage("/inspect/flags",
          NewFlagsPage({.may_change = access.change_flags,
                        .has_credentials = access.credentials != nullptr}),
          routes);
  const ProfileRules profiles{.allowed = access.profiles,
                              .stopping = access.stopping};
  AddPage(kCpuProfilePath, NewCpuProfilePage(profiles), routes);
  AddPage(kHeapProfilePath, NewHeapProfilePage(profiles), routes);
  AddPage(kContentionProfilePath, NewContentionProfilePage(profiles), routes);
  AddPage(kContentionPath, NewContentionPage(profiles), routes);
}

}  // namespace flare::rpc

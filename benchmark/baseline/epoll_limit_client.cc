// The other half of epoll_limit: keeps requests under way over a number of
// connections, at the least cost, and says how fast they are answered.
// docs/baselines.md
//
//   epoll_limit_client --server_addr=flare://127.0.0.1:5567 --threads=2
//       --connections=2 --max_pending=20 --duration=10

#include <fcntl.h>
#include <gflags/gflags.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmark/baseline/bare_client.h"
#include "benchmark/baseline/event_loop.h"
#include "benchmark/baseline/program.h"
#include "example/rpc/call_recorder.h"
#include "example/rpc/output_file.h"
#include "example/rpc/report.h"
#include "flare/base/clock.h"
#include "flare/io/socket_options.h"
#include "glog/logging.h"

DEFINE_string(server_addr, "",
              "Whom to press: flare://host:port, http+pb://..., or http://... "
              "for GET requests.");
DEFINE_int32(connections, 1, "In all, spread over the threads.");
DEFINE_int32(max_pending, 20,
             "Requests under way in all, spread over the connections.");
DEFINE_int32(body_size, 0, "Bytes in the body of each request.");
DEFINE_double(duration, 0,
              "Seconds to measure; 0: until SIGINT, SIGTERM or SIGQUIT.");
DEFINE_double(warmup, 0, "Seconds of load before the measurement begins.");
DEFINE_int64(requests, 0, "End after that many requests; 0: don't.");
DEFINE_double(report_interval, 10, "Seconds between two report lines.");
DEFINE_string(json, "", "Write the results to this file, too; -: to stdout.");

namespace baseline {
namespace {

constexpr int kSomeRequestsFailed = 1;
constexpr std::int64_t kPatienceNs = 5'000'000'000;

volatile std::sig_atomic_t quit = 0;

std::string FindBadFlag() {
  if (FLAGS_connections < 1) return "--connections must be positive.";
  if (FLAGS_max_pending < FLAGS_connections) {
    return "--max_pending must be at least --connections.";
  }
  if (FLAGS_body_size < 0) return "--body_size must not be negative.";
  if (!(FLAGS_duration >= 0)) return "--duration must not be negative.";
  if (!(FLAGS_warmup >= 0)) return "--warmup must not be negative.";
  if (!(FLAGS_report_interval > 0)) {
    return "--report_interval must be positive.";
  }
  if (FLAGS_requests < 0) return "--requests must not be negative.";
  return "";
}

flare::Expected<flare::io::UniqueFd, flare::Status> Connect(
    const ServerAddress& server) {
  sockaddr_storage storage;
  const socklen_t length = server.endpoint.ToSockaddr(&storage);
  // Blocking, for now.
  flare::io::UniqueFd fd(
      ::socket(server.endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage),
                       length) != 0) {
    return flare::StatusFromErrno(errno, "can't connect to " + server.host);
  }
  flare::io::SetTcpNoDelay(fd.get());
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return flare::StatusFromErrno(errno, "fcntl");
  }
  return fd;
}

// Share `index` of `total` cut into `parts`.
std::size_t ShareOf(std::size_t total, std::size_t parts, std::size_t index) {
  return total / parts + (index < total % parts ? 1 : 0);
}

class Run {
 public:
  Run(BareLoad* load, example::CallRecorder* recorder)
      : load_(load), recorder_(recorder) {}

  example::Summary Go() {
    if (FLAGS_warmup > 0) {
      summary_.measured = WaitUntil(
          flare::SaturatingAdd(flare::NowNs(), Nanoseconds(FLAGS_warmup)));
      summary_.warm_up = recorder_->Take();
      load_->Limit(static_cast<std::uint64_t>(FLAGS_requests));
    }
    const std::int64_t begin = flare::NowNs();
    if (summary_.measured) Measure(begin);
    load_->Stop();
    Collect();
    summary_.seconds = flare::ToSeconds(flare::NowNs() - begin);
    summary_.qps = static_cast<double>(summary_.calls.successes()) /
                   std::max(summary_.seconds, 1e-9);
    // Calls that end from here on count, except for the rate.
    const std::int64_t deadline = flare::NowNs() + kPatienceNs;
    while (load_->under_way() != 0 && flare::NowNs() < deadline) Nap();
    Collect();
    summary_.unended = load_->under_way();
    return std::move(summary_);
  }

 private:
  static std::int64_t Nanoseconds(double seconds) {
    return flare::ToNs(std::chrono::duration<double>(seconds));
  }
  static void Nap() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  void Measure(std::int64_t begin) {
    const std::int64_t end =
        FLAGS_duration == 0
            ? flare::kNoDeadline
            : flare::SaturatingAdd(begin, Nanoseconds(FLAGS_duration));
    for (bool over = false; !over;) {
      const std::int64_t start = flare::NowNs();
      const std::int64_t report =
          flare::SaturatingAdd(start, Nanoseconds(FLAGS_report_interval));
      over = !WaitUntil(std::min(end, report)) || end <= report;
      if (over) return;
      const double seconds = flare::ToSeconds(flare::NowNs() - start);
      LOG(INFO) << example::ReportLine(Collect(), seconds);
    }
  }

  // False: the run is over before that.
  bool WaitUntil(std::int64_t deadline_ns) {
    while (flare::NowNs() < deadline_ns) {
      if (quit != 0 || load_->under_way() == 0) return false;
      Nap();
    }
    return true;
  }

  example::CallStatistics Collect() {
    example::CallStatistics calls = recorder_->Take();
    (summary_.measured ? summary_.calls : summary_.warm_up).Merge(calls);
    return calls;
  }

  BareLoad* const load_;
  example::CallRecorder* const recorder_;
  example::Summary summary_;
};

int Report(const example::Summary& summary, example::OutputFile* json) {
  for (const std::string& line : SummaryLines(summary)) LOG(INFO) << line;
  // The file stays empty rather than have zeros that nobody measured.
  if (summary.measured && !json->Write(SummaryJson(summary))) {
    LOG(ERROR) << "Can't write to " << json->name() << ".";
    return kSomeRequestsFailed;
  }
  return summary.AllWell() ? 0 : kSomeRequestsFailed;
}

int Main() {
  const auto threads = ThreadsFromFlags();
  if (!threads) return RefuseFlags(threads.error().message());
  if (auto reason = FindBadFlag(); !reason.empty()) return RefuseFlags(reason);
  const auto server = ParseServerAddress(FLAGS_server_addr);
  if (!server) {
    return RefuseFlags("Bad --server_addr: " + server.error().message());
  }
  if (server->scheme != "flare" && server->scheme != "http+pb" &&
      server->scheme != "http") {
    return RefuseFlags(
        "Bad --server_addr: this program speaks flare, http+pb "
        "and http, not " +
        server->scheme + ".");
  }
  example::OutputFile json("json", FLAGS_json);
  if (!json.ok()) return RefuseFlags("Can't write to " + json.name() + ".");

  const auto connections = static_cast<std::size_t>(FLAGS_connections);
  const auto pending = static_cast<std::size_t>(FLAGS_max_pending);
  const auto requests =
      BareRequests::Encode(*server, ShareOf(pending, connections, 0),
                           static_cast<std::size_t>(FLAGS_body_size));
  if (!requests) return RefuseFlags(requests.error().message());
  for (const int number : {SIGINT, SIGTERM, SIGQUIT}) {
    std::signal(number, [](int) { quit = 1; });
  }
  auto recorder = std::make_unique<example::CallRecorder>();
  BareLoad load(recorder.get());
  // With a warm-up, once that is over.
  if (!(FLAGS_warmup > 0)) {
    load.Limit(static_cast<std::uint64_t>(FLAGS_requests));
  }
  std::vector<std::unique_ptr<EventLoop>> loops;
  for (std::size_t i = 0; i != *threads; ++i) {
    loops.push_back(std::make_unique<EventLoop>());
  }
  for (std::size_t i = 0; i != connections; ++i) {
    auto fd = Connect(*server);
    if (!fd) {
      LOG(ERROR) << fd.error().message();
      return kSomeRequestsFailed;
    }
    loops[i % loops.size()]->AdoptHere(std::make_unique<BareClientConnection>(
        *std::move(fd), &*requests, ShareOf(pending, connections, i), &load));
  }
  std::vector<std::thread> running;
  running.reserve(loops.size());
  for (const auto& loop : loops) {
    running.emplace_back([it = loop.get()] { it->Run(); });
  }
  example::Summary summary = Run(&load, recorder.get()).Go();
  for (const auto& loop : loops) loop->Stop();
  for (std::thread& thread : running) thread.join();
  summary.command_line = google::GetArgvs();
  return Report(summary, &json);
}

}  // namespace
}  // namespace baseline

int main(int argc, char** argv) {
  baseline::BeginProgram(argc, argv,
                         "presses at the least cost; see docs/baselines.md");
  return baseline::Main();
}

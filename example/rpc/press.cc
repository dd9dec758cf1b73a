// Puts load on an echo server and says how fast it answers.
//
//   press --server_addr=flare://127.0.0.1:5567 --max_pending=20 --duration=10
//
// docs/press.md describes its flags, its output and how it measures.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "example/rpc/call_recorder.h"
#include "example/rpc/load_generator.h"
#include "example/rpc/press_run.h"
#include "example/rpc/report.h"
#include "flare/base/compression.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"
#include "gflags/gflags.h"
#include "glog/logging.h"

DEFINE_string(server_addr, "",
              "Whom to call: protocol://address:port[,address:port...]");
DEFINE_string(override_nslb, "",
              "Name resolver and load balancer to use, such as list+rr.");
DEFINE_bool(relay_stub, false,
            "Call RelayService.Relay rather than EchoService.Echo.");
DEFINE_int32(max_pending, 2000,
             "Calls under way at a time. A server with default settings "
             "refuses more than 10000 of them.");
DEFINE_int32(timeout, 1000, "Milliseconds after which a call has failed.");
DEFINE_string(body, "", "The body of each request.");
DEFINE_int32(body_size, 0, "If --body is empty: send that many bytes.");
DEFINE_int32(attachment_size, 0, "Bytes to attach to each request.");
DEFINE_string(compression_algorithm, "",
              "Compress each request: lz4-frame, snappy, gzip, zstd.");
DEFINE_double(qps, 0, "Calls to send per second; 0: as many as get answered.");
DEFINE_int64(requests, 0, "End after that many calls; 0: don't.");
DEFINE_double(duration, 0, "Seconds to measure; 0: until SIGINT or SIGTERM.");
DEFINE_double(warmup, 0, "Seconds of load before the measurement begins.");
DEFINE_double(report_interval, 10, "Seconds between two report lines.");
DEFINE_string(json, "", "Write the results to this file, too; -: to stdout.");
DEFINE_bool(
    verify, false,
    "Compare each reply with what was sent; a difference is a failure.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace GFLAGS_NAMESPACE {
// What gflags calls when the command line can't be parsed.
extern void (*gflags_exitfunc)(int);
}  // namespace GFLAGS_NAMESPACE

namespace example {
namespace {

constexpr int kSomeCallsFailed = 1;
constexpr int kBadFlags = 2;

// The reason why the flags can't be meant like this; empty if there is none.
std::string FindBadFlag() {
  if (FLAGS_server_addr.empty()) {
    return "--server_addr is missing: press needs an address, such as "
           "flare://127.0.0.1:5567.";
  }
  if (FLAGS_max_pending < 1) return "--max_pending must be positive.";
  if (FLAGS_timeout < 1) return "--timeout must be positive.";
  if (FLAGS_body_size < 0) return "--body_size must not be negative.";
  if (FLAGS_attachment_size < 0) {
    return "--attachment_size must not be negative.";
  }
  if (!(FLAGS_qps >= 0)) return "--qps must not be negative.";
  if (FLAGS_requests < 0) return "--requests must not be negative.";
  if (!(FLAGS_duration >= 0)) return "--duration must not be negative.";
  if (!(FLAGS_warmup >= 0)) return "--warmup must not be negative.";
  if (!(FLAGS_report_interval > 0)) {
    return "--report_interval must be positive.";
  }
  if (!flare::ParseCompressionAlgorithm(FLAGS_compression_algorithm)) {
    return "--compression_algorithm=" + FLAGS_compression_algorithm +
           " is not known; known are gzip, lz4-frame, snappy, zstd, and none.";
  }
  return "";
}

LoadOptions LoadOptionsFromFlags() {
  LoadOptions options;
  options.server_addr = FLAGS_server_addr;
  options.override_nslb = FLAGS_override_nslb;
  options.relay_stub = FLAGS_relay_stub;
  options.max_pending = static_cast<std::size_t>(FLAGS_max_pending);
  options.timeout = std::chrono::milliseconds(FLAGS_timeout);
  options.qps = FLAGS_qps;
  options.requests = static_cast<std::uint64_t>(FLAGS_requests);
  options.body =
      !FLAGS_body.empty()
          ? FLAGS_body
          : std::string(static_cast<std::size_t>(FLAGS_body_size), 'a');
  options.attachment = flare::CreateBufferSlow(
      std::string(static_cast<std::size_t>(FLAGS_attachment_size), 'a'));
  options.compression =
      *flare::ParseCompressionAlgorithm(FLAGS_compression_algorithm);
  options.verify = FLAGS_verify;
  return options;
}

RunOptions RunOptionsFromFlags() {
  RunOptions options;
  options.warm_up_s = FLAGS_warmup;
  options.duration_s = FLAGS_duration;
  options.report_interval_s = FLAGS_report_interval;
  // What a call under way at the end may take, and then some.
  options.patience_s = FLAGS_timeout / 1e3 + 5;
  options.show_progress = isatty(STDERR_FILENO) != 0;
  return options;
}

int RefuseFlags(const std::string& reason) {
  LOG(ERROR) << reason << " See --help.";
  return kBadFlags;
}

// Where --json goes. Opened before the run, so that a name that can't be
// written to isn't found out at its end.
class JsonFile {
 public:
  bool Open(const std::string& name) {
    name_ = name;
    if (!name.empty() && name != "-") file_.open(name);
    return !file_.fail();
  }

  bool Write(const std::string& json) {
    if (name_.empty()) return true;
    if (name_ == "-") return std::fputs(json.c_str(), stdout) >= 0;
    file_ << json;
    file_.close();
    return !file_.fail();
  }

 private:
  std::string name_;
  std::ofstream file_;
};

int Entry(int argc, char**) {
  if (argc > 1) return RefuseFlags("press takes flags only.");
  if (auto reason = FindBadFlag(); !reason.empty()) return RefuseFlags(reason);
  JsonFile json_file;
  if (!json_file.Open(FLAGS_json)) {
    return RefuseFlags("Can't write to --json=" + FLAGS_json + ".");
  }

  auto recorder = std::make_unique<CallRecorder>();
  auto load =
      std::make_unique<LoadGenerator>(LoadOptionsFromFlags(), recorder.get());
  if (const auto opened = load->Open(); !opened.ok()) {
    return RefuseFlags("Can't call --server_addr=" + FLAGS_server_addr + ": " +
                       opened.message());
  }
  Summary summary = RunLoad(RunOptionsFromFlags(), load.get(), recorder.get());
  summary.command_line = google::GetArgvs();

  for (const std::string& line : SummaryLines(summary)) LOG(INFO) << line;
  if (!json_file.Write(SummaryJson(summary))) {
    LOG(ERROR) << "Can't write to --json=" << FLAGS_json << ".";
    return kSomeCallsFailed;
  }
  if (summary.unended != 0) {
    // Their calls still refer to these.
    (void)load.release();
    (void)recorder.release();
  }
  return summary.AllWell() ? 0 : kSomeCallsFailed;
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  google::gflags_exitfunc = [](int status) {
    std::exit(status == 1 ? example::kBadFlags : status);
  };
  google::SetUsageMessage("puts load on an echo server; see docs/press.md");
  return flare::Start(argc, argv, example::Entry);
}

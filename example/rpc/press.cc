// Puts load on an echo server, or on any method of any service, and says how
// fast it answers.
//
//   press --server_addr=flare://127.0.0.1:5567 --max_pending=20 --duration=10
//
// docs/press.md describes its flags, its output and how it measures.

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "example/rpc/flag_errors.h"
#include "example/rpc/hdr_log.h"
#include "example/rpc/http_call.h"
#include "example/rpc/load_generator.h"
#include "example/rpc/output_file.h"
#include "example/rpc/press_flags.h"
#include "example/rpc/press_run.h"
#include "example/rpc/replay_flags.h"
#include "example/rpc/report.h"
#include "flare/fiber/runtime.h"
#include "flare/init/override_flag.h"
#include "flare/io/fd.h"
#include "flare/rpc/services/etcd_resolver.h"
#include "flare/rpc/start/flags.h"
#include "glog/logging.h"

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace example {
namespace {

constexpr int kSomeCallsFailed = 1;

int RefuseFlags(const std::string& reason) {
  LOG(ERROR) << reason << " See --help.";
  return kBadFlags;
}

bool CantWriteTo(const OutputFile& file) {
  LOG(ERROR) << "Can't write to " << file.name() << ".";
  return false;
}

// With plain HTTP each caller has one; otherwise each server has some, and
// there may be several servers.
std::size_t ConnectionsOf(const LoadOptions& target) {
  if (IsPlainHttp(target.server_addr)) return target.max_pending;
  const auto servers =
      1 + static_cast<std::size_t>(std::ranges::count(target.server_addr, ','));
  return servers *
         std::min(target.max_pending,
                  static_cast<std::size_t>(
                      FLAGS_flare_rpc_client_max_connections_per_server));
}

void WarnOfFewDescriptors(const std::vector<LoadOptions>& targets) {
  std::size_t connections = 0;
  for (const LoadOptions& target : targets)
    connections += ConnectionsOf(target);
  const std::size_t limit = flare::io::DescriptorLimit();
  // Four of each group's poller, and files.
  const std::size_t others = 4 * flare::fiber::GetSchedulingGroupCount() + 20;
  if (connections + others <= limit) return;
  LOG(WARNING) << "There may be " << connections
               << " connections, which with what else is open take "
               << connections + others
               << " descriptors, but the system allows only " << limit
               << "; raise the limit (`ulimit -n`), or lower --max_pending.";
}

// A target and the recorder of its calls.
struct LoadedTarget {
  explicit LoadedTarget(const LoadOptions& options)
      : recorder(std::make_unique<LoadRecorder>()),
        load(std::make_unique<LoadGenerator>(options, recorder.get())) {}

  std::unique_ptr<LoadRecorder> recorder;
  std::unique_ptr<LoadGenerator> load;
};

int Entry(int argc, char** argv) {
  if (!HasOnlyFlags(argc, argv)) return kBadFlags;
  flare::RegisterEtcdResolver();  // For --override_nslb.
  if (HasPrintFlag()) {
    const flare::Status printed = PrintRecordingsFromFlags();
    if (printed.ok()) return 0;
    if (printed.code() == EINVAL) return RefuseFlags(printed.message());
    LOG(ERROR) << printed.message() << ".";
    return kSomeCallsFailed;
  }
  const auto options = PressOptionsFromFlags();
  if (!options) return RefuseFlags(options.error().message());
  if (options->max_connections) {
    FLAGS_flare_rpc_client_max_connections_per_server =
        *options->max_connections;
  }
  WarnOfFewDescriptors(options->targets);
  OutputFile json("json", options->json);
  OutputFile hdr_log("hdr_log", options->hdr_log);
  for (const OutputFile* file : {&json, &hdr_log}) {
    if (!file->ok()) return RefuseFlags("Can't write to " + file->name() + ".");
  }

  std::vector<LoadedTarget> loaded;
  std::vector<PressTarget> targets;
  for (const LoadOptions& target : options->targets) {
    loaded.emplace_back(target);
    if (const auto opened = loaded.back().load->Open(); !opened.ok()) {
      return RefuseFlags("Can't call --server_addr=" + target.server_addr +
                         ": " + opened.message() + ".");
    }
    targets.push_back({target.server_addr, loaded.back().load.get(),
                       loaded.back().recorder.get()});
  }
  std::optional<HdrLog> log;
  if (hdr_log.stream() != nullptr) log.emplace(hdr_log.stream());
  Summary summary = RunLoad(options->run, targets, log ? &*log : nullptr);
  summary.command_line = google::GetArgvs();

  for (const std::string& line : SummaryLines(summary)) LOG(INFO) << line;
  if (summary.unended != 0) {
    // Their calls still refer to these.
    for (LoadedTarget& target : loaded) {
      (void)target.load.release();
      (void)target.recorder.release();
    }
  }
  bool written = true;
  // The file stays empty rather than have zeros that nobody measured.
  if (summary.measured && !json.Write(SummaryJson(summary))) {
    written = CantWriteTo(json);
  }
  if (!hdr_log.Close()) written = CantWriteTo(hdr_log);
  return written && summary.AllWell() ? 0 : kSomeCallsFailed;
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  return example::StartProgram(
      argc, argv, "puts load on a server; see docs/press.md", example::Entry);
}

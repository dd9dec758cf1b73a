#include "example/rpc/press_flags.h"

#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include "example/rpc/any_call.h"
#include "example/rpc/health_check_flags.h"
#include "example/rpc/http_call.h"
#include "example/rpc/method_flags.h"
#include "example/rpc/replay_flags.h"
#include "example/rpc/size_distribution.h"
#include "example/rpc/tls_client_flags.h"
#include "example/rpc/work.h"
#include "flare/base/compression.h"
#include "flare/base/string.h"
#include "flare/fiber/runtime.h"

DEFINE_string(server_addr, "",
              "Whom to call: protocol://address:port[,address:port...]; plain "
              "HTTP: http://address:port/path. Several, separated by ;, are "
              "loaded side by side.");
DEFINE_string(override_nslb, "",
              "Name resolver and load balancer to use, such as list+rr.");
DEFINE_bool(relay_stub, false,
            "Call RelayService.Relay rather than EchoService.Echo.");
DEFINE_bool(gdt_stub, false,
            "The server is of another framework, which speaks http+pb only.");
DEFINE_int32(max_pending, 2000,
             "Calls under way at a time. A server with default settings "
             "refuses more than 10000 of them.");
DEFINE_int32(callers, 0,
             "If not 0, so many synchronous callers instead of --max_pending.");
DEFINE_string(caller_kind, "fiber",
              "The kind of a synchronous caller: fiber or thread.");
DEFINE_string(connections, "",
              "To each server: single (one of each scheduling group), pooled "
              "(a call has one for itself) or short (a new one for each call); "
              "empty: as flare_rpc_client_max_connections_per_server says.");
DEFINE_int32(timeout, 1000, "Milliseconds after which a call has failed.");
DEFINE_string(body, "", "The body of each request.");
DEFINE_string(body_size, "0",
              "If --body is empty: send that many bytes. 100, a range "
              "(100-2000), or a list with weights (16:9,65536:1).");
DEFINE_int32(attachment_size, 0, "Bytes to attach to each request.");
DEFINE_string(compression_algorithm, "",
              "Compress each request: gzip, lz4-frame, snappy, zstd, zlib or "
              "none.");
DEFINE_double(qps, 0, "Calls to send per second; 0: as many as get answered.");
DEFINE_double(tail_ratio, 0,
              "Share of calls that belong to the long tail, 0 to 1. They are "
              "reported apart.");
DEFINE_int32(tail_us, 5000, "Microseconds that the server works on these ...");
DEFINE_string(tail_work, "sleep_fiber",
              "... and how: sleep_thread, sleep_fiber or spin.");
DEFINE_string(tail_path, "",
              "Plain HTTP: the path that calls of the tail ask for.");
DEFINE_int64(requests, 0, "End after that many calls; 0: don't.");
DEFINE_double(duration, 0,
              "Seconds to measure; 0: until SIGINT, SIGTERM or SIGQUIT.");
DEFINE_double(warmup, 0, "Seconds of load before the measurement begins.");
DEFINE_double(report_interval, 10, "Seconds between two report lines.");
DEFINE_string(json, "", "Write the results to this file, too; -: to stdout.");
DEFINE_string(hdr_log, "",
              "Write the latencies there, as an HdrHistogram log.");
DEFINE_bool(verify, false,
            "Compare each reply with its request; a difference is a failure.");

namespace example {
namespace {

using flare::Expected;
using flare::Status;

constexpr int kMaxCallers = 1'000'000;  // They take 600 MB.
constexpr int kMaxThreads = 10'000;
constexpr int kMaxTailUs = 10'000'000;  // The longest work that servers do.

Status Bad(std::string text) { return {EINVAL, std::move(text)}; }

bool IsGiven(const char* flag) {
  return !google::GetCommandLineFlagInfoOrDie(flag).is_default;
}

// Checks values that are wrong by themselves.
Status CheckNumbers() {
  if (FLAGS_max_pending < 1 || FLAGS_max_pending > kMaxCallers) {
    return Bad("--max_pending must be between 1 and 1000000.");
  }
  if (FLAGS_callers < 0 || FLAGS_callers > kMaxCallers) {
    return Bad("--callers must be between 0 and 1000000.");
  }
  if (FLAGS_timeout < 1) return Bad("--timeout must be positive.");
  if (FLAGS_attachment_size < 0) {
    return Bad("--attachment_size must not be negative.");
  }
  if (!(FLAGS_qps >= 0) || std::isinf(FLAGS_qps)) {
    return Bad("--qps must be a number that is not negative.");
  }
  if (!(FLAGS_tail_ratio >= 0 && FLAGS_tail_ratio <= 1)) {
    return Bad("--tail_ratio must be between 0 and 1.");
  }
  if (FLAGS_tail_us < 0 || FLAGS_tail_us > kMaxTailUs) {
    return Bad("--tail_us must be between 0 and 10000000.");
  }
  if (FLAGS_requests < 0) return Bad("--requests must not be negative.");
  if (!(FLAGS_duration >= 0)) {
    return Bad("--duration must be a number that is not negative.");
  }
  if (!(FLAGS_warmup >= 0)) {
    return Bad("--warmup must be a number that is not negative.");
  }
  if (!(FLAGS_report_interval > 0)) {
    return Bad("--report_interval must be a positive number.");
  }
  if (FLAGS_hdr_log == "-") return Bad("--hdr_log needs a file's name.");
  return Status();
}

Status ReadCallers(LoadOptions* options) {
  options->max_pending = static_cast<std::size_t>(FLAGS_max_pending);
  if (FLAGS_caller_kind != "fiber" && FLAGS_caller_kind != "thread") {
    return Bad("--caller_kind=" + FLAGS_caller_kind +
               " is not known; known are fiber and thread.");
  }
  if (FLAGS_callers == 0) {
    if (!IsGiven("caller_kind")) return Status();
    return Bad("--caller_kind goes with --callers only.");
  }
  if (IsGiven("max_pending")) {
    return Bad("--callers and --max_pending exclude each other.");
  }
  const bool threads = FLAGS_caller_kind == "thread";
  if (threads && FLAGS_callers > kMaxThreads) {
    return Bad("--callers must not exceed 10000 if they are threads.");
  }
  options->max_pending = static_cast<std::size_t>(FLAGS_callers);
  options->caller_kind = threads ? CallerKind::kThread : CallerKind::kFiber;
  return Status();
}

Status ReadBody(LoadOptions* options) {
  const auto sizes = ParseSizeDistribution(FLAGS_body_size);
  if (!sizes) return Bad("--body_size: " + sizes.error().message() + ".");
  if (FLAGS_body.empty()) {
    options->body.assign(sizes->largest(), 'a');
    if (!sizes->fixed()) options->body_sizes = *sizes;
  } else {
    options->body = FLAGS_body;
  }
  options->attachment = flare::CreateBufferSlow(
      std::string(static_cast<std::size_t>(FLAGS_attachment_size), 'a'));
  const auto compression =
      flare::ParseCompressionAlgorithm(FLAGS_compression_algorithm);
  if (!compression) {
    return Bad("--compression_algorithm=" + FLAGS_compression_algorithm +
               " is not known; known are gzip, lz4-frame, snappy, zstd, zlib, "
               "and none.");
  }
  options->compression = *compression;
  return Status();
}

Status ReadTail(LoadOptions* options) {
  const auto kind = ParseWorkKind(FLAGS_tail_work);
  if (!kind || *kind == WorkKind::kNone) {
    return Bad("--tail_work=" + FLAGS_tail_work +
               " is not known; known are sleep_thread, sleep_fiber and spin.");
  }
  options->tail_ratio = FLAGS_tail_ratio;
  options->tail_work = {*kind, std::chrono::microseconds(FLAGS_tail_us)};
  options->tail_path = FLAGS_tail_path;
  if (FLAGS_tail_path.empty()) {
    // As example/http/server knows them.
    options->tail_path = *kind == WorkKind::kSpin          ? "/long_req/spin"
                         : *kind == WorkKind::kSleepThread ? "/long_req/block"
                                                           : "/long_req/";
  } else if (FLAGS_tail_path[0] != '/') {
    return Bad("--tail_path must begin with a slash.");
  }
  return Status();
}

// Flags that shape calls of the echo service.
Status CheckEchoFlags() {
  for (const char* flag : {"body", "body_size", "relay_stub", "gdt_stub",
                           "tail_ratio", "verify"}) {
    if (!IsGiven(flag)) continue;
    return Bad("--" + std::string(flag) +
               " is of calls to the echo service, and doesn't go with "
               "--method; --data has the request.");
  }
  return Status();
}

Status ReadMethod(LoadOptions* options) {
  if (MethodFlag().empty()) {
    // Those of --replay that don't go with it are looked at there.
    const std::string given = HasReplayFlag() ? "" : GivenMethodFlag();
    if (given.empty()) return Status();
    return Bad(given + (given == "--data"
                            ? " goes with --method only."
                            : " goes with --method or --replay only."));
  }
  if (HasReplayFlag()) return Bad("--method doesn't go with --replay.");
  if (auto checked = CheckEchoFlags(); !checked.ok()) return checked;
  auto any = std::make_shared<AnyMethod>();
  const std::string first_server =
      FLAGS_server_addr.substr(0, FLAGS_server_addr.find(';'));
  auto source = SourceFromFlags({first_server, options->timeout}, MethodFlag());
  if (!source) return Bad(source.error().message() + ".");
  any->source = *std::move(source);
  const auto method = any->source->FindMethod(MethodFlag());
  if (!method) return Bad("--method: " + method.error().message() + ".");
  any->method = *method;
  auto requests = ReadRequests(*any->source, *method, DataFlag());
  if (!requests) return Bad(requests.error().message() + ".");
  any->requests = *std::move(requests);
  auto metadata = MetadataFromFlags();
  if (!metadata) return Bad(metadata.error().message() + ".");
  any->metadata = *std::move(metadata);
  if (any->streams() &&
      (IsGiven("attachment_size") || IsGiven("compression_algorithm"))) {
    return Bad(
        "--attachment_size and --compression_algorithm are of unary "
        "calls, and " +
        any->method->full_name() + " streams.");
  }
  options->any_method = std::move(any);
  return Status();
}

// The part of `whole` for target `i` of `targets`.
template <class T>
T ShareOf(T whole, std::size_t i, std::size_t targets) {
  return whole / targets + (i < whole % targets ? 1 : 0);
}

Expected<std::vector<LoadOptions>, Status> ReadTargets(
    const LoadOptions& common) {
  if (FLAGS_server_addr.empty()) {
    return Bad(
        "--server_addr is missing: press needs an address, such as "
        "flare://127.0.0.1:5567.");
  }
  const auto addresses =
      flare::Split(FLAGS_server_addr, ';', /*keep_empty=*/true);
  const std::size_t count = addresses.size();
  if (common.max_pending < count ||
      (FLAGS_requests != 0 && common.requests < count)) {
    return Bad(
        "--max_pending, --callers and --requests can't be less than the " +
        std::to_string(count) + " targets of --server_addr.");
  }
  const auto health_check = HealthCheckFromFlags();
  if (!health_check) return Bad("Bad " + health_check.error().message());
  std::vector<LoadOptions> targets;
  for (std::size_t i = 0; i != count; ++i) {
    LoadOptions target = common;
    target.server_addr = addresses[i];
    target.tls = TlsFromClientFlags(target.server_addr);
    target.health_check = *health_check;
    target.max_pending = ShareOf(common.max_pending, i, count);
    target.requests = ShareOf(common.requests, i, count);
    target.qps = common.qps / static_cast<double>(count);
    target.seed = std::random_device()();
    if (FLAGS_gdt_stub &&
        (FLAGS_relay_stub || !target.server_addr.starts_with("http+pb://"))) {
      return Bad(
          "--gdt_stub goes with http+pb:// and without --relay_stub "
          "only: such servers know nothing else.");
    }
    targets.push_back(std::move(target));
  }
  return targets;
}

Status ReadConnections(PressOptions* options) {
  if (FLAGS_connections.empty()) return Status();
  if (IsGiven("flare_rpc_client_max_connections_per_server")) {
    return Bad(
        "--connections and --flare_rpc_client_max_connections_per_server "
        "exclude each other.");
  }
  const bool has_plain_http = std::any_of(
      options->targets.begin(), options->targets.end(),
      [](const LoadOptions& t) { return IsPlainHttp(t.server_addr); });
  if (FLAGS_connections != "pooled" && has_plain_http) {
    return Bad("--connections=" + FLAGS_connections +
               " doesn't go with plain HTTP: each caller has a connection.");
  }
  if (FLAGS_connections == "single") {
    options->max_connections = 1;
  } else if (FLAGS_connections == "pooled" || FLAGS_connections == "short") {
    for (LoadOptions& target : options->targets) {
      target.connection_kind = FLAGS_connections == "short"
                                   ? flare::ConnectionKind::kShort
                                   : flare::ConnectionKind::kPooled;
    }
  } else {
    return Bad("--connections=" + FLAGS_connections +
               " is not known; known are single, pooled and short.");
  }
  return Status();
}

Status ReadRecordings(PressOptions* options) {
  if (!HasReplayFlag()) {
    const std::string given = GivenReplayFlag();
    return given.empty() ? Status() : Bad(given + " goes with --replay only.");
  }
  auto calls = RecordedCallsFromFlags();
  if (!calls) return calls.error();
  return ReadReplay(*std::move(calls), IsGiven("timeout"), &options->targets);
}

// `timeout`: the longest of a call.
RunOptions ReadRun(std::chrono::milliseconds timeout) {
  RunOptions options;
  options.replays = HasReplayFlag();
  options.warm_up_s = FLAGS_warmup;
  options.duration_s = FLAGS_duration;
  options.report_interval_s = FLAGS_report_interval;
  // The time that a call under way at the end may take, and more.
  const double seconds = std::chrono::duration<double>(timeout).count();
  options.patience_s = seconds + 5;
  options.late_s = seconds;
  options.has_tail = FLAGS_tail_ratio > 0;
  options.show_progress = isatty(STDERR_FILENO) != 0;
  return options;
}

}  // namespace

Status PrintRecordingsFromFlags() {
  if (!HasReplayFlag()) return Bad("--print goes with --replay only.");
  const auto calls = RecordedCallsFromFlags();
  if (!calls) return calls.error();
  return PrintRecordedCalls(
      *calls, FLAGS_server_addr.substr(0, FLAGS_server_addr.find(';')));
}

Expected<PressOptions, Status> PressOptionsFromFlags() {
  LoadOptions common;
  common.override_nslb = FLAGS_override_nslb;
  common.relay_stub = FLAGS_relay_stub;
  common.timeout = std::chrono::milliseconds(FLAGS_timeout);
  common.qps = FLAGS_qps;
  common.requests = static_cast<std::uint64_t>(FLAGS_requests);
  common.verify = FLAGS_verify;
  if (auto checked = CheckNumbers(); !checked.ok()) return checked;
  for (const auto read : {ReadCallers, ReadBody, ReadTail, ReadMethod}) {
    if (auto done = read(&common); !done.ok()) return done;
  }
  PressOptions options;
  auto targets = ReadTargets(common);
  if (!targets) return targets.error();
  options.targets = *std::move(targets);
  if (auto read = ReadConnections(&options); !read.ok()) return read;
  if (auto read = ReadRecordings(&options); !read.ok()) return read;
  std::chrono::milliseconds timeout{0};
  for (const LoadOptions& target : options.targets) {
    timeout = std::max(timeout, target.timeout);
  }
  options.run = ReadRun(timeout);
  options.json = FLAGS_json;
  options.hdr_log = FLAGS_hdr_log;
  return options;
}

}  // namespace example

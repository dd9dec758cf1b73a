#include "example/rpc/replay_flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "example/rpc/http_call.h"
#include "example/rpc/method_flags.h"
#include "example/rpc/recorded_calls.h"
#include "example/rpc/recording_json.h"
#include "example/rpc/replay.h"
#include "example/rpc/report.h"
#include "example/rpc/rpc_call.h"
#include "flare/base/string.h"
#include "flare/rpc/protocol.h"
#include "glog/logging.h"

DEFINE_string(replay, "",
              "Send the calls of these recordings again: files or folders, "
              "separated by commas (docs/record_replay.md).");
DEFINE_string(replay_methods, "",
              "Only calls of methods whose full names begin so: a list, "
              "separated by commas.");
DEFINE_double(replay_speed, 1,
              "1: send calls at the times at which they were recorded, 2: "
              "twice as fast, ...; 0: as fast as they get answered. Not with "
              "--qps.");
DEFINE_int32(replay_times, 1,
             "Send all calls so many times; 0: until --requests or --duration "
             "ends it.");
DEFINE_bool(replay_compare_replies, false,
            "Compare the bytes of replies with recorded ones, too.");
DEFINE_bool(print, false,
            "Print the calls of --replay, a line of JSON for each, and send "
            "none.");

namespace example {
namespace {

using flare::RecordedCall;
using flare::Status;
using MadeSource =
    flare::Expected<std::unique_ptr<MethodSource>, flare::Status>;

Status BadReplay(std::string text) { return {EINVAL, std::move(text)}; }

bool IsGivenFlag(const char* flag) {
  return !google::GetCommandLineFlagInfoOrDie(flag).is_default;
}

std::vector<std::string> SplitList(const std::string& list) {
  std::vector<std::string> pieces;
  for (const std::string_view piece : flare::Split(list, ',')) {
    pieces.emplace_back(piece);
  }
  return pieces;
}

Status CheckReplayFlags(const LoadOptions& target) {
  if (!(FLAGS_replay_speed >= 0) || std::isinf(FLAGS_replay_speed)) {
    return BadReplay("--replay_speed must be a number that is not negative.");
  }
  if (FLAGS_replay_times < 0) {
    return BadReplay("--replay_times must not be negative.");
  }
  if (target.qps > 0 && IsGivenFlag("replay_speed")) {
    return BadReplay("--qps and --replay_speed exclude each other.");
  }
  if (target.requests != 0 && IsGivenFlag("replay_times")) {
    return BadReplay("--requests and --replay_times exclude each other.");
  }
  // One request can't be several calls.
  for (const char* flag :
       {"attachment_size", "compression_algorithm", "body", "body_size",
        "relay_stub", "gdt_stub", "tail_ratio", "verify", "method", "data"}) {
    if (IsGivenFlag(flag)) {
      return BadReplay("--" + std::string(flag) + " doesn't go with --replay.");
    }
  }
  return {};
}

Status ReadTarget(std::vector<RecordedCall> calls, const ReplayOptions& common,
                  LoadOptions* target) {
  const auto protocol = IsPlainHttp(target->server_addr)
                            ? nullptr
                            : ProtocolOf(target->server_addr);
  if (protocol == nullptr) {
    return BadReplay(
        "--replay needs a protocol with methods, such as flare or " +
        std::string("http+pb, but not ") + target->server_addr + '.');
  }
  ReplayOptions options = common;
  options.attachments = protocol->traits().attachments;
  options.metadata = protocol->traits().metadata;
  if (protocol->format() != flare::rpc::PayloadFormat::kProtobuf) {
    options.describe = [target](const std::string& method) -> MadeSource {
      return SourceFromFlags({target->server_addr, target->timeout}, method);
    };
  }
  auto replay = Replay::Make(std::move(calls), options);
  if (!replay) return BadReplay("--replay: " + replay.error().message() + '.');
  target->timeout = std::chrono::ceil<std::chrono::milliseconds>(
      (*replay)->longest_timeout());
  target->replay = *std::move(replay);
  return {};
}

std::string LineAbout(const std::vector<RecordedCall>& calls) {
  const double seconds = NsBetween(calls.front(), calls.back()) / 1e9;
  std::ostringstream line;
  line << "Replaying " << flare::CountOf(calls.size(), "call")
       << " that came in " << FormatFixed(seconds, 3) << " s, a share of "
       << calls.front().fraction << " of all, before limits. Recorded latency: "
       << LatencyLine(LatenciesOf(calls));
  return line.str();
}

// Null: nobody describes the service, which the log says.
MadeSource SourceForPrinting(const DescribingServer& server,
                             const std::string& service) {
  MadeSource made = SourceFromFlags(server, service);
  if (made) return made;
  const auto services = ServicesFromFlags(server);
  if (!services || std::ranges::find(*services, service) != services->end()) {
    return BadReplay(made.error().message() + '.');
  }
  LOG(WARNING) << "Calls of " << flare::OneLine(service)
               << " are printed in hexadecimal: " << made.error().message()
               << '.';
  return std::unique_ptr<MethodSource>();
}

}  // namespace

bool HasReplayFlag() { return !FLAGS_replay.empty(); }
bool HasPrintFlag() { return FLAGS_print; }

std::string GivenReplayFlag() {
  for (const char* flag : {"replay_methods", "replay_speed", "replay_times",
                           "replay_compare_replies", "print"}) {
    if (IsGivenFlag(flag)) return "--" + std::string(flag);
  }
  return "";
}

flare::Expected<std::vector<RecordedCall>, Status> RecordedCallsFromFlags() {
  auto calls = ReadRecordedCalls(SplitList(FLAGS_replay),
                                 SplitList(FLAGS_replay_methods));
  if (!calls) return BadReplay("--replay: " + calls.error().message() + '.');
  return calls;
}

Status ReadReplay(std::vector<RecordedCall> calls, bool timeout_is_given,
                  std::vector<LoadOptions>* targets) {
  const std::size_t count = targets->size();
  if (calls.size() < count) {
    return BadReplay("--replay has " + flare::CountOf(calls.size(), "call") +
                     " of the methods asked for, which is too few for " +
                     flare::CountOf(count, "target") + '.');
  }
  const LoadOptions& first = targets->front();
  if (Status good = CheckReplayFlags(first); !good.ok()) return good;
  ReplayOptions options;
  options.compare_replies = FLAGS_replay_compare_replies;
  options.default_timeout = first.timeout;
  if (timeout_is_given) options.timeout = first.timeout;
  auto metadata = MetadataFromFlags();
  if (!metadata) return BadReplay(metadata.error().message() + '.');
  options.more_metadata = *std::move(metadata);
  const std::string line = LineAbout(calls);
  std::vector<RecordedPace> paces;
  if (first.qps == 0 && FLAGS_replay_speed > 0) {
    paces = PacesOf(calls, FLAGS_replay_speed, count);
  }
  std::vector<std::vector<RecordedCall>> parts(count);
  for (std::size_t i = 0; i != calls.size(); ++i) {
    parts[i % count].push_back(std::move(calls[i]));
  }
  for (std::size_t i = 0; i != count; ++i) {
    LoadOptions& target = (*targets)[i];
    if (Status read = ReadTarget(std::move(parts[i]), options, &target);
        !read.ok()) {
      return read;
    }
    if (target.requests == 0) {
      target.requests = target.replay->size() *
                        static_cast<std::uint64_t>(FLAGS_replay_times);
    }
    if (!paces.empty()) {
      target.pace = std::make_shared<const RecordedPace>(std::move(paces[i]));
    }
  }
  LOG(INFO) << line;
  return {};
}

Status PrintRecordedCalls(const std::vector<RecordedCall>& calls,
                          const std::string& server_addr) {
  const bool described = !server_addr.empty() || IsGivenFlag("proto") ||
                         IsGivenFlag("descriptor_set") ||
                         IsGivenFlag("reflection_addr");
  // By the names of services; null: nobody describes it.
  std::map<std::string, std::unique_ptr<MethodSource>> sources;
  for (const RecordedCall& call : calls) {
    const std::string service = call.method.substr(0, call.method.rfind('.'));
    const auto [known, added] = sources.try_emplace(service);
    if (added && described) {
      MadeSource made = SourceForPrinting(
          {server_addr, std::chrono::milliseconds(10'000)}, service);
      if (!made) return made.error();
      known->second = *std::move(made);
    }
    const std::string line = RecordingJson(call, known->second.get()) + '\n';
    if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size()) {
      return flare::StatusFromErrno(errno, "can't write to stdout");
    }
  }
  if (std::fflush(stdout) == 0) return {};
  return flare::StatusFromErrno(errno, "can't write to stdout");
}

}  // namespace example

#include "benchmark/baseline/program.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <utility>

#include "flare/base/free_memory.h"
#include "flare/base/unblocked_logging.h"
#include "flare/base/version.h"
#include "flare/io/resolver.h"
#include "flare/rpc/start/command_line.h"
#include "flare/rpc/start/flag_file.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/start/runtime_flags.h"
#include "glog/logging.h"

DEFINE_int32(threads, 0,
             "Event loops, or with --thread_pool threads in all. 0: as "
             "--flare_concurrency_hint says, or as many as there are CPUs.");

namespace baseline {

namespace {

flare::Status Bad(std::string text) { return {EINVAL, std::move(text)}; }

}  // namespace

void BeginProgram(int argc, char** argv, const std::string& usage) {
  // For as long as the process lives.
  [[maybe_unused]] static const auto* const logging =
      new flare::UnblockedLogging();
  example::ExitWithBadFlags();
  google::SetUsageMessage(usage);
  google::SetVersionString(flare::kVersion);
  FLAGS_logtostderr = true;
  FLAGS_logbufsecs = 0;
  // NOLINTBEGIN(concurrency-mt-unsafe): there is one thread.
  if (!example::HasGoodFlagFiles(argc, argv)) std::exit(kBadFlags);
  const auto passed_over = flare::rpc::CheckFlagFiles(argc, argv);
  flare::rpc::ParseCommandLine(&argc, &argv);
  google::InitGoogleLogging(argv[0]);
  if (passed_over) {
    for (const std::string& text : *passed_over) LOG(WARNING) << text;
  }
  if (!example::HasOnlyFlags(argc, argv)) std::exit(kBadFlags);
  if (const flare::Status valid = flare::rpc::ValidateFlags(); !valid.ok()) {
    std::exit(RefuseFlags(valid.message()));
  }
  // They aren't used; but values that flare refuses are refused here, too.
  const auto options = flare::rpc::RuntimeOptionsFromFlags();
  if (!options) std::exit(RefuseFlags(options.error().message()));
  // NOLINTEND(concurrency-mt-unsafe)
  flare::KeepReturningFreeMemory();
}

int RefuseFlags(const std::string& reason) {
  LOG(ERROR) << reason << " See --help.";
  return kBadFlags;
}

flare::Expected<std::size_t, flare::Status> ThreadsFromFlags() {
  if (FLAGS_threads < 0 || FLAGS_threads > kMaxThreads) {
    return Bad("--threads=" + std::to_string(FLAGS_threads) +
               " must be between 0 and " + std::to_string(kMaxThreads) + ".");
  }
  if (FLAGS_threads > 0) return static_cast<std::size_t>(FLAGS_threads);
  if (const int hint = FLAGS_flare_concurrency_hint; hint > 0) {
    return static_cast<std::size_t>(hint);
  }
  return std::max<std::size_t>(std::thread::hardware_concurrency(), 1);
}

flare::Expected<ServerAddress, flare::Status> ParseServerAddress(
    const std::string& uri) {
  const std::size_t colon = uri.find("://");
  if (colon == std::string::npos || colon == 0) {
    return Bad("\"" + uri + "\" is not of the form protocol://host:port.");
  }
  ServerAddress address;
  address.scheme = uri.substr(0, colon);
  address.host = uri.substr(colon + 3);
  auto endpoints = flare::io::Resolve(address.host);
  if (!endpoints) return Bad(uri + ": " + endpoints.error().message());
  address.endpoint = endpoints->front();
  return address;
}

}  // namespace baseline

// Prints the plan of the fiber runtime for the flags given, on this machine or
// on one that a file describes (docs/numa.md), and starts nothing:
//
//   bazel run //tools:plan -- --flare_topology_file=/tmp/four_nodes
#include <gflags/gflags.h>

#include <cstdio>

#include "flare/fiber/runtime.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/start/runtime_flags.h"

int main(int argc, char** argv) {
  gflags::SetUsageMessage(
      "says what the runtime would start; see docs/numa.md");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  const flare::Status valid = flare::rpc::ValidateFlags();
  if (!valid.ok()) {
    std::fprintf(stderr, "%s\n", valid.message().c_str());
    return 1;
  }
  const auto options = flare::rpc::RuntimeOptionsFromFlags();
  if (!options) {
    std::fprintf(stderr, "%s\n", options.error().message().c_str());
    return 1;
  }
  std::printf("%s\n", flare::fiber::DescribePlan(*options)->c_str());
  if (std::fflush(stdout) == 0) return 0;
  std::perror("plan: can't write to stdout");
  return 1;
}

// Takes the CPUs away from everything else, again and again, for up to
// --longest_ms at a time, as a busy host does to a virtual machine. Tests that
// take a stall of theirs for a fault of the code fail beside it:
//
//   bazel build //tools:stalls && bazel-bin/tools/stalls &
//   tools/test --nocache_test_results --test_timeout=900 //...
//
// One thread on each CPU, at a real-time priority: needs root. Until a signal
// ends it.
#include <gflags/gflags.h>
#include <sched.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/topology.h"

DEFINE_int32(longest_ms, 400, "how long a CPU is taken at most, in ms");
DEFINE_int32(pause_ms, 100, "how long it is left alone at most, in ms");

namespace {

// False: it isn't allowed to.
bool Stall(int cpu) {
  const sched_param priority{.sched_priority = 50};
  if (!flare::SetThreadAffinity({cpu}).ok() ||
      ::sched_setscheduler(0, SCHED_FIFO, &priority) != 0) {
    std::perror("stalls: can't take a CPU at a real-time priority");
    return false;
  }
  std::mt19937 random(std::random_device{}());
  std::uniform_real_distribution<double> part(0, 1);
  for (;;) {
    // Short ones mostly: a quarter of the longest on average.
    const auto length_ns = static_cast<std::int64_t>(std::pow(part(random), 3) *
                                                     FLAGS_longest_ms * 1e6);
    for (const std::int64_t end = flare::NowNs() + length_ns;
         flare::NowNs() < end;) {
    }
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(
        part(random) * FLAGS_pause_ms));
  }
}

}  // namespace

int main(int argc, char** argv) {
  gflags::SetUsageMessage("takes the CPUs away; see docs/testing.md");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  if (FLAGS_longest_ms < 1 || FLAGS_pause_ms < 1) {
    std::fprintf(stderr, "stalls: both times must be 1 ms or more\n");
    return 1;
  }
  std::vector<std::thread> threads;
  for (unsigned cpu = 1; cpu < std::thread::hardware_concurrency(); ++cpu)
    threads.emplace_back(&Stall, static_cast<int>(cpu));
  if (Stall(0)) return 0;
  std::_Exit(1);
}

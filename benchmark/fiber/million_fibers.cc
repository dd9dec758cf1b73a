// Blocks a million fibers on one event, prints the cost of each in memory and
// mappings, and lets them all go again.
//
//   million_fibers [--fibers=1000000] [--limit_bytes=0]
//
// Fails if a fiber costs more than --limit_bytes. Reads /proc.

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"

DEFINE_int64(fibers, 1'000'000, "How many.");
DEFINE_int32(workers, 0, "0: as many as there are CPUs, at least 4.");
DEFINE_int64(limit_bytes, 0,
             "Memory per fiber, beyond which it is an error; "
             "0: none.");

namespace {

struct Memory {
  double resident = 0;     // Bytes.
  double page_tables = 0;  // Bytes.
  double mappings = 0;
};

Memory Measure() {
  Memory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    long kib = 0;
    if (std::sscanf(line.c_str(), "VmRSS: %ld", &kib) == 1) {
      memory.resident = 1024.0 * static_cast<double>(kib);
    } else if (std::sscanf(line.c_str(), "VmPTE: %ld", &kib) == 1) {
      memory.page_tables = 1024.0 * static_cast<double>(kib);
    }
  }
  std::ifstream maps("/proc/self/maps");
  memory.mappings =
      static_cast<double>(std::count(std::istreambuf_iterator<char>(maps),
                                     std::istreambuf_iterator<char>(), '\n'));
  return memory;
}

double SecondsSince(std::int64_t start_ns) {
  return flare::ToSeconds(flare::NowNs() - start_ns);
}

// Bytes per blocked fiber.
double Run(std::int64_t fibers) {
  const auto count = static_cast<double>(fibers);
  const Memory before = Measure();
  flare::fiber::Event go;
  flare::fiber::Latch blocked(fibers);
  flare::fiber::Latch done(fibers);
  std::int64_t start = flare::NowNs();
  for (std::int64_t i = 0; i < fibers; ++i) {
    flare::fiber::Spawn([&] {
      blocked.count_down();
      go.Wait();
      done.count_down();
    });
  }
  blocked.wait();
  const double starting = SecondsSince(start);
  const Memory now = Measure();
  const double resident = (now.resident - before.resident) / count;
  const double tables = (now.page_tables - before.page_tables) / count;
  std::printf(
      "%lld fibers blocked after %.2f s: %.2f GiB resident, %.2f GiB of "
      "page tables, %.0f mappings\n",
      static_cast<long long>(fibers), starting, now.resident / (1 << 30),
      now.page_tables / (1 << 30), now.mappings);
  std::printf(
      "per fiber: %.0f bytes (%.0f resident, %.0f of page tables), "
      "%.4f mappings\n",
      resident + tables, resident, tables,
      (now.mappings - before.mappings) / count);
  start = flare::NowNs();
  go.Set();
  done.wait();
  std::printf("all ended %.2f s after the event was set\n",
              SecondsSince(start));
  return resident + tables;
}

}  // namespace

int main(int argc, char** argv) {
  gflags::SetUsageMessage("blocks many fibers; see docs/performance.md");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  flare::fiber::RuntimeOptions options;
  options.concurrency = FLAGS_workers;
  if (const flare::Status s = flare::fiber::StartRuntime(options); !s.ok()) {
    std::fprintf(stderr, "%s\n", s.message().c_str());
    return 1;
  }
  const double bytes = Run(FLAGS_fibers);
  flare::fiber::TerminateRuntime();
  if (FLAGS_limit_bytes == 0 ||
      bytes <= static_cast<double>(FLAGS_limit_bytes)) {
    return 0;
  }
  std::fprintf(stderr, "more than %lld bytes per fiber\n",
               static_cast<long long>(FLAGS_limit_bytes));
  return 1;
}

// Checks on the machine it runs on that the fiber runtime follows its plan:
// that each worker may run on the CPUs of its group only, and that stacks and
// heap memory lie on the group's NUMA node.
//
//   bazel run -c opt //tools:numa_check -- --flare_numa_aware=true
//
// Takes the flags of docs/flags.md. Prints a table; exit status 1 if something
// is not as planned. tools/numa_vm runs it in a virtual machine.
#include <gflags/gflags.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "flare/base/malloc_arena.h"
#include "flare/base/memory_policy.h"
#include "flare/base/string.h"
#include "flare/base/topology.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/stack/stack.h"
#include "flare/fiber/startup/runtime_plan.h"
#include "flare/fiber/task.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/start/runtime_flags.h"
#include "glog/logging.h"

namespace flare {
namespace {

constexpr int kFibersPerGroup = 32;
constexpr std::size_t kHeapBytes = 1 << 20;

// The report of one worker.
struct Report {
  std::size_t group = 0;
  std::vector<int> cpus;  // It may run on.
  int cpu = -1;           // It runs on.
  std::optional<int> stack_node;
  std::optional<int> heap_node;
  std::optional<unsigned> arena;
};

std::string ToText(const std::optional<int>& node) {
  return node ? std::to_string(*node) : "?";
}

// Where a page lies that has been touched.
std::optional<int> NodeOfTouched(const void* address) {
  std::optional<int> node;
  for (int tries = 0; !node && tries < 10; ++tries) {
    // Automatic NUMA balancing hides pages until they are touched again.
    static_cast<void>(*static_cast<const volatile char*>(address));
    node = MemoryNodeOf(address);
  }
  return node;
}

// The node of memory that this thread allocates and touches.
std::optional<int> HeapNode() {
  const std::unique_ptr<char[]> memory(new char[kHeapBytes]);
  std::memset(memory.get(), 1, kHeapBytes);
  return NodeOfTouched(memory.get() + kHeapBytes / 2);
}

Report ReportThisWorker() {
  Report report;
  report.group = fiber::GetCurrentSchedulingGroupIndex();
  report.cpus = GetThreadAffinity();
  report.cpu = sched_getcpu();
  volatile char on_stack = 1;
  report.stack_node = NodeOfTouched(const_cast<const char*>(&on_stack));
  report.heap_node = HeapNode();
  report.arena = CurrentMallocArena();
  return report;
}

// One from each worker: each holds its own until all have one.
std::vector<Report> ReportAllWorkers() {
  const std::size_t groups = fiber::GetSchedulingGroupCount();
  const std::size_t size = fiber::GetSchedulingGroupSize();
  std::mutex mutex;
  std::vector<Report> reports;
  fiber::Latch here(static_cast<std::ptrdiff_t>(groups * size));
  fiber::Latch done(static_cast<std::ptrdiff_t>(groups * size));
  for (std::size_t i = 0; i < groups * size; ++i) {
    fiber::SpawnTo(i % groups, [&] {
      Report report = ReportThisWorker();
      {
        std::scoped_lock guard(mutex);
        reports.push_back(std::move(report));
      }
      here.count_down();
      while (!here.try_wait()) std::this_thread::yield();
      done.count_down();
    });
  }
  done.wait();
  std::stable_sort(
      reports.begin(), reports.end(),
      [](const Report& a, const Report& b) { return a.group < b.group; });
  return reports;
}

class Checker {
 public:
  explicit Checker(const fiber::RuntimePlan& plan) : plan_(plan) {}

  bool CheckWorkers();
  // Fibers that wait, each on a stack of its own.
  bool CheckFiberStacks();
  // Stacks that a thread elsewhere touches first.
  bool CheckPreference();

 private:
  const fiber::GroupPlacement& Place(std::size_t group) const {
    return plan_.placement.groups[group];
  }
  // Is that where the group's memory should be?
  bool Right(std::size_t group, const std::optional<int>& node) const {
    const int wanted = Place(group).memory_node;
    return wanted < 0 || !plan_.machine.bind_memory || node == wanted;
  }
  bool CheckGroupsFibers(std::size_t group);
  bool RightCpus(const Report& report) const;

  const fiber::RuntimePlan& plan_;
};

bool Checker::RightCpus(const Report& report) const {
  if (!plan_.machine.bind_cpus) return true;
  const fiber::GroupPlacement& place = Place(report.group);
  if (place.pins.empty()) return report.cpus == place.cpus;
  return report.cpus.size() == 1 &&
         std::count(place.pins.begin(), place.pins.end(), report.cpus[0]) == 1;
}

bool Checker::CheckWorkers() {
  std::printf("\n%-6s %-5s %-12s %-7s %-6s %-6s %-6s %s\n", "group", "node",
              "may run on", "runs on", "stack", "heap", "arena", "");
  bool good = true;
  for (const Report& report : ReportAllWorkers()) {
    const bool right = RightCpus(report) &&
                       Right(report.group, report.stack_node) &&
                       Right(report.group, report.heap_node);
    good &= right;
    const int node = Place(report.group).node;
    std::printf("%-6zu %-5s %-12s %-7d %-6s %-6s %-6s %s\n", report.group,
                node < 0 ? "-" : std::to_string(node).c_str(),
                FormatCpuList(report.cpus).c_str(), report.cpu,
                ToText(report.stack_node).c_str(),
                ToText(report.heap_node).c_str(),
                report.arena ? std::to_string(*report.arena).c_str() : "-",
                right ? "ok" : "WRONG");
  }
  return good;
}

bool Checker::CheckGroupsFibers(std::size_t group) {
  std::mutex mutex;
  std::vector<const void*> places;
  fiber::Latch waiting(kFibersPerGroup);
  fiber::Event go_on;
  fiber::Attributes attributes;
  attributes.scheduling_group = group;
  std::vector<Fiber> fibers;
  for (int i = 0; i < kFibersPerGroup; ++i) {
    fibers.emplace_back(attributes, [&] {
      volatile char on_stack = 1;
      {
        std::scoped_lock guard(mutex);
        places.push_back(const_cast<const char*>(&on_stack));
      }
      waiting.count_down();
      go_on.Wait();
    });
  }
  waiting.wait();
  const auto right = std::count_if(
      places.begin(), places.end(),
      [&](const void* place) { return Right(group, NodeOfTouched(place)); });
  go_on.Set();
  for (Fiber& fiber : fibers) fiber.join();
  std::printf("group %zu: the stacks of %d of %d waiting fibers lie right\n",
              group, static_cast<int>(right), kFibersPerGroup);
  return right == kFibersPerGroup;
}

bool Checker::CheckFiberStacks() {
  bool good = true;
  for (std::size_t g = 0; g < fiber::GetSchedulingGroupCount(); ++g) {
    good &= CheckGroupsFibers(g);
  }
  return good;
}

bool Checker::CheckPreference() {
  bool good = true;
  for (std::size_t g = 0; g < plan_.placement.groups.size(); ++g) {
    const int wanted = Place(g).memory_node;
    if (wanted < 0 || !plan_.machine.bind_memory) continue;
    fiber::StackAllocator::Options options;
    options.node = wanted;
    fiber::StackAllocator stacks(options);
    void* const low = stacks.Allocate();
    char* const top = static_cast<char*>(low) + stacks.stack_size() - 1;
    *top = 1;  // By this thread, wherever it runs.
    const auto node = NodeOfTouched(top);
    std::printf("a stack for group %zu, touched from CPU %d, lies on node %s\n",
                g, sched_getcpu(), ToText(node).c_str());
    good &= Right(g, node);
    stacks.Free(low);
  }
  return good;
}

// Prints the kernel's view: the places of touched pages for which a node is
// preferred. "7f10fe781000 prefer:1 anon=1 dirty=1 N1=1 kernelpagesize_kB=4"
void PrintNumaMaps() {
  std::map<std::string, std::map<std::string, int>> pages;
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string address, policy, word;
    words >> address >> policy;
    if (!policy.starts_with("prefer")) continue;
    while (words >> word) {
      const std::size_t equals = word.find('=');
      if (word[0] != 'N' || equals == word.npos) continue;
      const std::string node = word.substr(1, equals - 1);
      pages[policy][node] +=
          TryParse<int>(std::string_view(word).substr(equals + 1)).value_or(0);
    }
  }
  for (const auto& [policy, nodes] : pages) {
    std::printf("numa_maps: %s:", policy.c_str());
    for (const auto& [node, count] : nodes) {
      std::printf(" %d pages on node %s", count, node.c_str());
    }
    std::printf("\n");
  }
}

int Run() {
  const Status valid = rpc::ValidateFlags();
  if (!valid.ok()) {
    std::fprintf(stderr, "%s\n", valid.message().c_str());
    return 1;
  }
  auto options = rpc::RuntimeOptionsFromFlags();
  if (!options) {
    std::fprintf(stderr, "%s\n", options.error().message().c_str());
    return 1;
  }
  // Reports must come from the workers they are for.
  options->work_stealing_ratio = 0;
  options->cross_numa_work_stealing_ratio = 0;
  auto machine = fiber::ReadMachine(*options);
  auto plan = fiber::PlanRuntime(*options, *machine);
  std::printf("machine: %s\nplan: %s\n", machine->topology.ToString().c_str(),
              plan->ToString().c_str());
  const Status started = fiber::StartRuntime(*options);
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.message().c_str());
    return 1;
  }
  Checker checker(*plan);
  bool good = checker.CheckWorkers();
  std::printf("\n");
  good &= checker.CheckFiberStacks();
  good &= checker.CheckPreference();
  // While the stacks are still there.
  PrintNumaMaps();
  fiber::TerminateRuntime();
  std::printf("\nnuma_check: %s\n", good ? "PASS" : "FAIL");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace flare

int main(int argc, char** argv) {
  gflags::SetUsageMessage(
      "sees where memory and threads are; see docs/numa.md");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  google::InitGoogleLogging(argv[0]);
  return flare::Run();
}

#include "flare/fiber/startup/runtime_plan.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/run_queue.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using Cpus = std::vector<int>;

Machine MachineOf(const std::string& description) {
  auto topology = Topology::FromDescription(description);
  EXPECT_TRUE(topology) << topology.error();
  Machine machine;
  machine.topology = *std::move(topology);
  return machine;
}

RuntimePlan PlanOn(const std::string& machine,
                   const RuntimeOptions& options = RuntimeOptions()) {
  auto plan = PlanRuntime(options, MachineOf(machine));
  EXPECT_TRUE(plan) << plan.error().message();
  return plan ? *std::move(plan) : RuntimePlan();
}

std::string RefusalOn(const std::string& machine,
                      const RuntimeOptions& options) {
  const auto plan = PlanRuntime(options, MachineOf(machine));
  if (plan) return "accepted: " + plan->ToString();
  EXPECT_EQ(plan.error().code(), EINVAL);
  return plan.error().message();
}

void ExpectParts(const std::string& text,
                 const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos)
        << "no \"" << part << "\" in: " << text;
  }
}

TEST(RuntimePlanTest, OneNode) {
  const RuntimePlan plan = PlanOn("0-3");
  EXPECT_EQ(plan.shape.groups, 1U);
  EXPECT_EQ(plan.shape.workers_per_group, 4U);
  ExpectParts(plan.ToString(),
              {"1 scheduling group of 4 workers on the CPUs 0-3 of 1 NUMA node",
               "in reserve 8 workers for each group",
               "because: neutral, as many workers as CPUs",
               "4 CPU(s) to use at a time"});
  EXPECT_EQ(plan.ToString().find("sets"), std::string::npos);
}

TEST(RuntimePlanTest, FourNodes) {
  RuntimeOptions options;
  options.optimize_for = "io-heavy";
  const RuntimePlan plan = PlanOn("0-15;16-31;32-47;48-63", options);
  EXPECT_EQ(plan.shape.groups, 8U);
  EXPECT_EQ(plan.placement.groups[5].node, 1);
  ExpectParts(plan.ToString(),
              {"8 scheduling groups of 8 workers: 0,4 on node 0 (CPUs 0-15), "
               "1,5 on node 1 (CPUs 16-31)",
               "3,7 on node 3", "from the group's node", "io-heavy"});
}

TEST(RuntimePlanTest, EightNodesOneWithoutMemory) {
  RuntimeOptions options;
  options.numa_aware = true;
  options.disallow_cpu_migration = true;
  const RuntimePlan plan =
      PlanOn("0-3;4-7;8-11;12-15;16-19;20-23:nomem;24-27;28-31", options);
  EXPECT_EQ(plan.shape.workers(), 32U);
  ExpectParts(plan.ToString(),
              {"a CPU for each worker", "5 on node 5", "node 5 has no memory"});
  EXPECT_EQ(plan.placement.groups[5].memory_node, -1);
  EXPECT_EQ(plan.placement.groups[6].memory_node, 6);
}

TEST(RuntimePlanTest, QuotaAndUnevenNodesAreRemarkedOn) {
  RuntimeOptions options;
  options.numa_aware = true;
  ExpectParts(
      PlanOn("0-7;8;quota=2.5", options).ToString(),
      {"2 scheduling groups of 2 workers", "node 1 has 2 workers for 1 CPU",
       "3 CPU(s) to use at a time by the cgroup's quota",
       "4 workers, though fewer CPUs"});
}

std::string ShapeOn(const std::string& machine, const std::string& preset,
                    bool pinned = false) {
  RuntimeOptions options;
  options.optimize_for = preset;
  options.disallow_cpu_migration = pinned;
  const Plan shape = PlanOn(machine, options).shape;
  return std::to_string(shape.groups) + "x" +
         std::to_string(shape.workers_per_group) +
         (shape.numa_aware ? " numa" : "");
}

TEST(RuntimePlanTest, PresetsCrowdNoSmallNode) {
  EXPECT_EQ(ShapeOn("0-29;30-31", "neutral"), "2x16");
  EXPECT_EQ(ShapeOn("0-61;62-63", "neutral"), "4x16");
  EXPECT_EQ(ShapeOn("0-61;62-63", "compute"), "1x64");
  EXPECT_EQ(ShapeOn("0-13;14-27;28-41;42-43", "io"), "2x22");
  EXPECT_EQ(ShapeOn("0-31;32-63;offline=34-63", "neutral"), "2x17");
  EXPECT_EQ(ShapeOn("0-15;16-31", "neutral"), "2x16 numa");
  EXPECT_EQ(ShapeOn("0-23;24-43", "neutral"), "2x22 numa");
  RuntimeOptions few;
  few.concurrency = 32;
  EXPECT_TRUE(PlanOn("0-63;64-95", few).shape.numa_aware);
  // A CPU for each: as many as there are, and not more than on any node.
  EXPECT_EQ(ShapeOn("0-15;16-31", "neutral", true), "2x16 numa");
  EXPECT_EQ(ShapeOn("0-23;24-43", "neutral", true), "2x22");
  EXPECT_EQ(ShapeOn("0-29;30-31", "neutral", true), "2x16");
  ExpectParts(PlanOn("0-29;30-31").ToString(),
              {"2 scheduling groups of 16 workers on the CPUs 0-31 of 2 NUMA "
               "nodes",
               "bound to nodes, groups would crowd the smaller of them"});
}

TEST(RuntimePlanTest, ComputeBindsNoneForAQuotaOfAFewCpus) {
  EXPECT_EQ(ShapeOn("0-63;64-127;quota=4", "compute"), "1x4");
  EXPECT_EQ(ShapeOn("0-63;64-127;quota=64", "compute"), "2x32 numa");
  EXPECT_EQ(ShapeOn("0-63;64-127", "compute"), "2x64 numa");
}

TEST(RuntimePlanTest, WhoAsksForBoundGroupsHasThem) {
  const std::string machine = "0-29;30-31";
  EXPECT_EQ(ShapeOn(machine, "customized"), "2x16 numa");
  RuntimeOptions options;
  options.group_size = 16;
  EXPECT_TRUE(PlanOn(machine, options).shape.numa_aware);
  options.group_size.reset();
  options.numa_aware = true;
  ExpectParts(PlanOn(machine, options).ToString(),
              {"1 on node 1 (CPUs 30-31)", "node 1 has 16 workers for 2 CPUs"});
}

TEST(RuntimePlanTest, PaperMachinesAreNotBound) {
  Machine machine = MachineOf("0-3;4-7");
  machine.bind_cpus = false;
  machine.bind_memory = false;
  RuntimeOptions options;
  options.numa_aware = true;
  const auto plan = PlanRuntime(options, machine);
  ASSERT_TRUE(plan);
  ExpectParts(plan->ToString(), {"not bound as these CPUs aren't all here",
                                 "memory from wherever the kernel takes it"});
}

TEST(RuntimePlanTest, GroupSetsNameGroupsOfThePlan) {
  RuntimeOptions options;
  options.group_size = 2;
  options.group_sets = "front:0-2;batch:3";
  const RuntimePlan plan = PlanOn("0-7", options);
  EXPECT_EQ(plan.sets.NameOf(2), "front");
  EXPECT_EQ(plan.sets.NameOf(3), "batch");
  ExpectParts(plan.ToString(), {"; sets: front 0-2, batch 3;"});
  options.group_sets = "front:4";
  ExpectParts(RefusalOn("0-7", options),
              {"flare_scheduling_group_sets", "group 4, but there are 4"});
}

TEST(RuntimePlanTest, RunQueuesShareTheSize) {
  RuntimeOptions options;
  const auto slots = [&](int workers, std::size_t size) {
    options.concurrency = workers;
    options.optimize_for = "compute-heavy";
    options.run_queue_size = size;
    return PlanOn("0-63", options).run_queue_slots;
  };
  // By default, more than a worker's queue is made for.
  EXPECT_EQ(slots(1, 65536), RunQueue::kSlots);
  EXPECT_EQ(slots(64, 65536), RunQueue::kSlots);
  EXPECT_EQ(slots(1, 256), 256U);
  EXPECT_EQ(slots(4, 256), 64U);
  EXPECT_EQ(slots(3, 256), 64U);
  EXPECT_EQ(slots(1, 4), 4U);
  EXPECT_EQ(slots(64, 256), 4U);
}

TEST(RuntimePlanTest, ReservesFitTheirGroups) {
  struct Case {
    int workers;
    int wanted;
    std::size_t reserve;
  };
  for (const Case& c : {Case{4, 0, 0}, Case{4, 3, 3}, Case{1, 8, 0},
                        Case{60, 8, 4}, Case{64, 8, 0}}) {
    RuntimeOptions options;
    options.concurrency = c.workers;
    options.group_size = c.workers;
    options.reserve_workers = c.wanted;
    const RuntimePlan plan = PlanOn("0-3", options);
    EXPECT_EQ(plan.reserve, c.reserve) << c.workers << " workers";
    EXPECT_EQ(plan.ToString().find("in reserve") != std::string::npos,
              c.reserve != 0);
  }
}

TEST(RuntimePlanTest, ImpossibleRunQueueSizesAreRefused) {
  RuntimeOptions options;
  options.concurrency = 10;
  for (const std::size_t size : {0UL, 1UL, 32UL, 100UL, 65535UL, 1UL << 25}) {
    options.run_queue_size = size;
    ExpectParts(RefusalOn("0-9", options),
                {"flare_fiber_run_queue_size is " + std::to_string(size),
                 "a power of two from 64", "10 workers"});
  }
}

TEST(RuntimePlanTest, ImpossibleValuesAreRefused) {
  RuntimeOptions options;
  options.work_stealing_ratio = -1;
  ExpectParts(RefusalOn("0", options), {"flare_work_stealing_ratio is -1"});
  options = {};
  options.cross_numa_work_stealing_ratio = -2;
  ExpectParts(RefusalOn("0", options),
              {"flare_cross_numa_work_stealing_ratio is -2", "0 (never)"});
  options = {};
  options.stack_size = 5000;
  ExpectParts(RefusalOn("0", options),
              {"flare_fiber_stack_size is 5000", "multiple of the page size"});
  options = {};
  options.concurrency = 4;
  options.max_stacks = 7;
  ExpectParts(RefusalOn("0", options), {"flare_fiber_max_stacks is 7", "8"});
  options.max_stacks = 8;
  EXPECT_EQ(PlanOn("0", options).shape.workers(), 4U);
  options = {};
  options.reserve_workers = -1;
  ExpectParts(RefusalOn("0", options), {"flare_fiber_reserve_workers is -1"});
  for (const auto time :
       {&RuntimeOptions::stack_idle, &RuntimeOptions::heap_idle,
        &RuntimeOptions::stuck_threshold, &RuntimeOptions::watch_period,
        &RuntimeOptions::thread_spin, &RuntimeOptions::blocking_thread_idle}) {
    options = {};
    options.*time = std::chrono::nanoseconds(-1);
    ExpectParts(RefusalOn("0", options), {"is -1 ns", "0 or more"});
  }
  options = {};
  options.optimize_for = "speed";
  ExpectParts(RefusalOn("0", options), {"'speed'", "io-heavy"});
  options = {};
  options.concurrency = 9;
  options.disallow_cpu_migration = true;
  ExpectParts(RefusalOn("0-7", options),
              {"flare_fiber_worker_disallow_cpu_migration", "8 CPUs",
               "lower flare_concurrency_hint"});
  options.concurrency = 8;
  EXPECT_EQ(PlanOn("0-7", options).placement.groups[0].pins.size(), 8U);
}

class ReadMachineTest : public ::testing::Test {
 protected:
  ReadMachineTest()
      : path_(::testing::TempDir() + "/read_machine_test_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
  }
  ~ReadMachineTest() override { std::filesystem::remove(path_); }

  // Options with the machine in a file.
  RuntimeOptions OptionsFor(const std::string& description) {
    std::ofstream(path_) << description << "\n";
    RuntimeOptions options;
    options.topology_file = path_;
    return options;
  }
  static std::string Refusal(const RuntimeOptions& options) {
    const auto machine = ReadMachine(options);
    return machine ? "accepted" : machine.error().message();
  }

  const std::string path_;
};

TEST_F(ReadMachineTest, TheKernels) {
  const auto machine = ReadMachine(RuntimeOptions());
  ASSERT_TRUE(machine);
  EXPECT_EQ(machine->topology.cpus(), GetThreadAffinity());
  EXPECT_TRUE(machine->bind_cpus);
  EXPECT_TRUE(machine->bind_memory);
}

TEST_F(ReadMachineTest, OneOnPaper) {
  auto machine = ReadMachine(OptionsFor("0-1000\n1001-2000 # far"));
  ASSERT_TRUE(machine) << machine.error().message();
  EXPECT_EQ(machine->topology.nodes().size(), 2U);
  EXPECT_FALSE(machine->bind_cpus);
  EXPECT_FALSE(machine->bind_memory);
  // One whose CPUs are all here.
  machine = ReadMachine(OptionsFor(FormatCpuList(GetThreadAffinity())));
  ASSERT_TRUE(machine);
  EXPECT_TRUE(machine->bind_cpus);
  EXPECT_FALSE(machine->bind_memory);
}

TEST_F(ReadMachineTest, SaysWhatIsWrongWithTheFile) {
  ExpectParts(Refusal(OptionsFor("0-3\n2")),
              {"flare_topology_file", path_, "another node"});
  std::filesystem::remove(path_);
  RuntimeOptions options;
  options.topology_file = path_;
  ExpectParts(Refusal(options), {"flare_topology_file", path_, "can't read"});
}

TEST_F(ReadMachineTest, AccessibleCpus) {
  RuntimeOptions options = OptionsFor("0-7\n8-15\n");
  options.accessible_cpus = "0-1,8,-1";
  const auto machine = ReadMachine(options);
  ASSERT_TRUE(machine) << machine.error().message();
  EXPECT_EQ(machine->topology.cpus(), (Cpus{0, 1, 8, 15}));
  options.accessible_cpus = "16-17";
  ExpectParts(Refusal(options), {"flare_fiber_worker_accessible_cpus",
                                 "none of the CPUs 16-17 is accessible"});
  options.accessible_cpus = "0-x";
  ExpectParts(Refusal(options),
              {"flare_fiber_worker_accessible_cpus", "\"0-x\""});
}

TEST_F(ReadMachineTest, InaccessibleCpus) {
  RuntimeOptions options = OptionsFor("0-7\n8-15\n");
  options.inaccessible_cpus = "0-6,-8--1";
  const auto machine = ReadMachine(options);
  ASSERT_TRUE(machine) << machine.error().message();
  EXPECT_EQ(machine->topology.cpus(), (Cpus{7}));
  EXPECT_EQ(machine->topology.nodes().size(), 1U);
  options.inaccessible_cpus = "0-15";
  ExpectParts(Refusal(options),
              {"flare_fiber_worker_inaccessible_cpus", "none is left"});
  options.inaccessible_cpus = "zero";
  ExpectParts(Refusal(options),
              {"flare_fiber_worker_inaccessible_cpus", "\"zero\""});
  options.inaccessible_cpus = "1";
  options.accessible_cpus = "2";
  ExpectParts(Refusal(options), {"exclude each other", "give one"});
}

TEST_F(ReadMachineTest, DescribePlanSaysWhatWouldBeStarted) {
  RuntimeOptions options = OptionsFor("0-19;20-39");
  options.optimize_for = "io-heavy";
  const auto text = DescribePlan(options);
  ASSERT_TRUE(text) << text.error().message();
  ExpectParts(*text, {"4 scheduling groups of 10 workers",
                      "0,2 on node 0 (CPUs 0-19)"});
  options.concurrency = -1;
  EXPECT_FALSE(DescribePlan(options));
  EXPECT_FALSE(IsRuntimeRunning());
}

}  // namespace
}  // namespace flare::fiber

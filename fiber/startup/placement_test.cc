// Machines we don't have: 2, 4 and 8 nodes, uneven ones, some of whose CPUs are
// offline or whose nodes have no memory.
#include "flare/fiber/startup/placement.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using Cpus = std::vector<int>;

Topology TopologyOf(const std::string& description) {
  auto topology = Topology::FromDescription(description);
  EXPECT_TRUE(topology) << topology.error();
  return *std::move(topology);
}

PlanRequest RequestFor(const Topology& topology) {
  PlanRequest request;
  request.cpus = static_cast<std::size_t>(topology.parallelism());
  request.nodes = topology.nodes().size();
  request.optimize_for = "customized";
  return request;
}

Plan MustPlan(const PlanRequest& request) {
  const auto plan = MakePlan(request);
  EXPECT_TRUE(plan) << plan.error().message();
  return *plan;
}

Plan CustomPlan(std::size_t groups, std::size_t workers, bool numa = true) {
  Plan plan;
  plan.groups = groups;
  plan.workers_per_group = workers;
  plan.numa_aware = numa;
  return plan;
}

Placement Place(const Plan& plan, const Topology& topology,
                bool pinned = false) {
  const auto placement = PlaceGroups(plan, topology, pinned);
  EXPECT_TRUE(placement) << placement.error().message();
  return placement ? *placement : Placement();
}

// "0:0-3 1:4-7": node and CPUs of each group; "-" for no node.
std::string Summary(const Placement& placement) {
  std::string text;
  for (const GroupPlacement& group : placement.groups) {
    text += (text.empty() ? "" : " ") +
            (group.node < 0 ? "-" : std::to_string(group.node)) + ":" +
            FormatCpuList(group.cpus);
  }
  return text;
}

TEST(PlacementTest, EvenNodesInTurn) {
  EXPECT_EQ(Summary(Place(CustomPlan(4, 2), TopologyOf("0-3;4-7"))),
            "0:0-3 1:4-7 0:0-3 1:4-7");
  EXPECT_EQ(Summary(Place(CustomPlan(4, 4), TopologyOf("0-3;4-7;8-11;12-15"))),
            "0:0-3 1:4-7 2:8-11 3:12-15");
  EXPECT_EQ(Summary(Place(CustomPlan(8, 2),
                          TopologyOf("0-1;2-3;4-5;6-7;8-9;10-11;12-13;14-15"))),
            "0:0-1 1:2-3 2:4-5 3:6-7 4:8-9 5:10-11 6:12-13 7:14-15");
}

TEST(PlacementTest, UnevenNodesInProportion) {
  // 12 CPUs and 4.
  EXPECT_EQ(Summary(Place(CustomPlan(4, 4), TopologyOf("0-11;12-15"))),
            "0:0-11 1:12-15 0:0-11 0:0-11");
  // However small, a node gets one.
  const Placement small = Place(CustomPlan(2, 4), TopologyOf("0-11;12"));
  EXPECT_EQ(Summary(small), "0:0-11 1:12");
  EXPECT_EQ(small.remarks,
            std::vector<std::string>{"node 1 has 4 workers for 1 CPU"});
}

TEST(PlacementTest, SaysWhetherANodeIsCrowded) {
  const auto crowds = [](std::size_t groups, std::size_t workers,
                         const std::string& machine, bool pinned = false) {
    return CrowdsNode(CustomPlan(groups, workers), TopologyOf(machine), pinned);
  };
  EXPECT_FALSE(crowds(2, 4, "0-3;4-7"));
  // However many there are for each CPU: it is the parts that count.
  EXPECT_FALSE(crowds(2, 8, "0-3;4-7"));
  EXPECT_FALSE(crowds(2, 5, "0-5;6-9"));     // A quarter more than four.
  EXPECT_TRUE(crowds(2, 4, "0-4;5-7"));      // A third more than three.
  EXPECT_FALSE(crowds(2, 4, "0-11;12-15"));  // A CPU for each.
  EXPECT_FALSE(crowds(4, 4, "0-11;12-15"));
  EXPECT_TRUE(crowds(4, 16, "0-61;62-63"));
  EXPECT_TRUE(crowds(2, 5, "0-5;6-9", true));
  EXPECT_FALSE(crowds(2, 4, "0-5;6-9", true));
}

TEST(PlacementTest, OfflineCpusMakeNodesUneven) {
  const Topology topology = TopologyOf("0-7;8-15;offline=9-15");
  EXPECT_EQ(Summary(Place(CustomPlan(4, 2), topology)),
            "0:0-7 1:8 0:0-7 0:0-7");
  // A node without CPUs is none, and the numbers of the others stay.
  EXPECT_EQ(
      Summary(Place(CustomPlan(2, 2), TopologyOf("0-1;2-3;4-5;offline=2-3"))),
      "0:0-1 2:4-5");
}

TEST(PlacementTest, MemoryComesFromTheNodeIfItHasSome) {
  const Placement placement =
      Place(CustomPlan(3, 2), TopologyOf("0-1;2-3:nomem;4-5"));
  EXPECT_EQ(placement.groups[0].memory_node, 0);
  EXPECT_EQ(placement.groups[1].memory_node, -1);
  EXPECT_EQ(placement.groups[2].memory_node, 2);
  ASSERT_EQ(placement.remarks.size(), 1U);
  EXPECT_NE(placement.remarks[0].find("node 1 has no memory"),
            std::string::npos);
  // Only one node with memory: there is nothing to ask for.
  EXPECT_EQ(Place(CustomPlan(2, 2), TopologyOf("0-1;2-3:nomem"))
                .groups[0]
                .memory_node,
            -1);
  // Unbound, without a preference.
  EXPECT_EQ(Place(CustomPlan(2, 2, false), TopologyOf("0-1;2-3"))
                .groups[0]
                .memory_node,
            -1);
}

TEST(PlacementTest, UnboundGroupsMayRunAnywhere) {
  EXPECT_EQ(Summary(Place(CustomPlan(2, 4, false), TopologyOf("0-3;4-7"))),
            "-:0-7 -:0-7");
}

TEST(PlacementTest, PinnedWorkersHaveCpusOfTheirOwn) {
  const Placement unbound =
      Place(CustomPlan(2, 3, false), TopologyOf("0-3;4-7"), true);
  EXPECT_EQ(unbound.groups[0].pins, (Cpus{0, 1, 2}));
  EXPECT_EQ(unbound.groups[1].pins, (Cpus{3, 4, 5}));
  const Placement bound = Place(CustomPlan(4, 2), TopologyOf("0-3;4-7"), true);
  EXPECT_EQ(bound.groups[0].pins, (Cpus{0, 1}));
  EXPECT_EQ(bound.groups[1].pins, (Cpus{4, 5}));
  EXPECT_EQ(bound.groups[2].pins, (Cpus{2, 3}));
  EXPECT_EQ(bound.groups[3].pins, (Cpus{6, 7}));
  const Placement not_pinned = Place(CustomPlan(1, 2), TopologyOf("0-3"));
  EXPECT_TRUE(not_pinned.groups[0].pins.empty());
  EXPECT_EQ(not_pinned.groups[0].cpus, (Cpus{0, 1, 2, 3}));
}

TEST(PlacementTest, PinningNeedsEnoughCpus) {
  const auto few = PlaceGroups(CustomPlan(2, 3), TopologyOf("0-1;4"), true);
  ASSERT_FALSE(few);
  EXPECT_EQ(few.error().code(), EINVAL);
  for (const char* part :
       {"flare_fiber_worker_disallow_cpu_migration", "2 groups of 3 workers",
        "3 CPUs", "lower flare_concurrency_hint"}) {
    EXPECT_NE(few.error().message().find(part), std::string::npos)
        << few.error().message();
  }
  // Enough in all, not on node 1.
  const auto uneven =
      PlaceGroups(CustomPlan(2, 3), TopologyOf("0-5;6-7"), true);
  ASSERT_FALSE(uneven);
  for (const char* part :
       {"NUMA node 1 has 2 CPUs for 3 workers", "flare_numa_aware=false"}) {
    EXPECT_NE(uneven.error().message().find(part), std::string::npos)
        << uneven.error().message();
  }
}

// As many as there are CPUs: must always succeed on even nodes.
TEST(PlacementTest, PinningAsManyAsThereAreAlwaysFits) {
  for (const char* machine :
       {"0", "0-1", "0-39", "0-37;38-75", "0-18;19-37;38-56;57-75",
        "0-6;7-13;14-20;21-27;28-34;35-41;42-48;49-55", "0-99;quota=2.5"}) {
    const Topology topology = TopologyOf(machine);
    for (const char* preset : {"compute-heavy", "compute", "neutral", "io",
                               "io-heavy", "customized"}) {
      PlanRequest request = RequestFor(topology);
      request.optimize_for = preset;
      request.pinned = true;
      const Plan plan = MustPlan(request);
      EXPECT_LE(plan.workers(), topology.cpus().size());
      EXPECT_GT(2 * plan.workers(), request.cpus) << machine << preset;
      EXPECT_TRUE(PlaceGroups(plan, topology, true)) << machine << preset;
    }
  }
}

// Whatever the machine: each node has a group, shares differ from the node's
// part of the CPUs by less than two groups unless it got its one for free, and
// no CPU is pinned twice.
TEST(PlacementTest, RandomMachines) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const std::size_t nodes = 1 + random() % 8;
    std::string description;
    int next = 0;
    for (std::size_t n = 0; n < nodes; ++n) {
      const int size = 1 + static_cast<int>(random() % 24);
      description += (n == 0 ? "" : ";") + std::to_string(next) + "-" +
                     std::to_string(next + size - 1) +
                     (random() % 5 == 0 ? ":nomem" : "");
      next += size;
    }
    const Topology topology = TopologyOf(description);
    PlanRequest request = RequestFor(topology);
    request.group_size = 1 + static_cast<int>(random() % 8);
    const Plan plan = MustPlan(request);
    const Placement placement = Place(plan, topology);
    ASSERT_EQ(placement.groups.size(), plan.groups);
    if (nodes == 1) continue;
    std::map<int, std::size_t> groups_of;
    for (const GroupPlacement& group : placement.groups) {
      ++groups_of[group.node];
      const auto& node = topology.nodes()[static_cast<std::size_t>(group.node)];
      ASSERT_EQ(group.cpus, node.cpus);
      ASSERT_TRUE(group.memory_node == -1 || node.has_memory);
    }
    ASSERT_EQ(groups_of.size(), nodes);
    for (const auto& [id, count] : groups_of) {
      const double share =
          static_cast<double>(
              topology.nodes()[static_cast<std::size_t>(id)].cpus.size() *
              plan.groups) /
          next;
      ASSERT_TRUE(count == 1 || static_cast<double>(count) < share + 2)
          << description << ", " << count << " of " << plan.groups;
    }
    const auto pinned = PlaceGroups(plan, topology, true);
    if (!pinned) continue;
    std::set<int> taken;
    for (const GroupPlacement& group : pinned->groups) {
      ASSERT_EQ(group.pins.size(), plan.workers_per_group);
      for (const int cpu : group.pins) {
        ASSERT_TRUE(taken.insert(cpu).second);
        ASSERT_EQ(topology.NodeIndexOf(cpu),
                  static_cast<std::size_t>(group.node));
      }
    }
  }
}

}  // namespace
}  // namespace flare::fiber

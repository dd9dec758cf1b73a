#include "flare/fiber/startup/plan.h"

#include <string>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

PlanRequest Request(const std::string& preset, int workers,
                    std::size_t nodes = 1, std::size_t cpus = 0) {
  PlanRequest request;
  request.optimize_for = preset;
  request.concurrency = workers;
  request.nodes = nodes;
  request.cpus = cpus != 0 ? cpus : static_cast<std::size_t>(workers);
  return request;
}

std::string Shape(const PlanRequest& request) {
  const auto plan = MakePlan(request);
  if (!plan) return plan.error().message();
  return std::to_string(plan->groups) + "x" +
         std::to_string(plan->workers_per_group) +
         (plan->numa_aware ? " numa" : "");
}

// The published framework's own examples.
TEST(PlanTest, PublishedExamples) {
  EXPECT_EQ(Shape(Request("io-heavy", 4)), "1x4");
  EXPECT_EQ(Shape(Request("io-heavy", 8)), "1x8");
  EXPECT_EQ(Shape(Request("io-heavy", 10)), "1x10");
  EXPECT_EQ(Shape(Request("io-heavy", 40)), "5x8");
  EXPECT_EQ(Shape(Request("io-heavy", 40, 2)), "4x10 numa");
  EXPECT_EQ(Shape(Request("io-heavy", 76, 2)), "6x13 numa");
}

TEST(PlanTest, DefaultIsAsManyAsCpusButAtLeastFour) {
  EXPECT_EQ(Shape(Request("neutral", 0, 1, 2)), "1x4");
  EXPECT_EQ(Shape(Request("neutral", 0, 1, 12)), "1x12");
}

TEST(PlanTest, OneWorkerIsEnough) {
  EXPECT_EQ(Shape(Request("io-heavy", 1)), "1x1");
  EXPECT_EQ(Shape(Request("neutral", 1)), "1x1");
  EXPECT_EQ(Shape(Request("compute-heavy", 1)), "1x1");
}

TEST(PlanTest, ComputeHeavyWantsFewGroups) {
  EXPECT_EQ(Shape(Request("compute-heavy", 64)), "1x64");
  EXPECT_EQ(Shape(Request("compute-heavy", 65)), "2x33");
  EXPECT_EQ(Shape(Request("compute-heavy", 80, 2)), "2x40");
}

TEST(PlanTest, ComputeBindsWhenItFillsTheMachine) {
  EXPECT_EQ(Shape(Request("compute", 80, 2)), "2x40 numa");
  EXPECT_EQ(Shape(Request("compute", 20, 2, 80)), "1x20");
  EXPECT_EQ(Shape(Request("compute", 160, 2)), "4x40 numa");
  // A quota's rest isn't the whole machine.
  PlanRequest request = Request("compute", 0, 2, 4);
  EXPECT_EQ(Shape(request), "2x2 numa");
  request.all_cpus = 128;
  EXPECT_EQ(Shape(request), "1x4");
  request.concurrency = 64;
  EXPECT_EQ(Shape(request), "2x32 numa");
}

TEST(PlanTest, CustomizedFollowsTheGroupSize) {
  PlanRequest request = Request("io-heavy", 40);
  request.group_size = 10;
  request.numa_aware = true;
  EXPECT_EQ(Shape(request), "4x10");
  request.nodes = 2;
  EXPECT_EQ(Shape(request), "4x10 numa");
  request.concurrency = 10;
  EXPECT_EQ(Shape(request), "2x5 numa");
  request.concurrency = 1;
  EXPECT_EQ(Shape(request), "2x1 numa");
  request.nodes = 1;
  EXPECT_EQ(Shape(request), "1x1");
}

// The published framework divides by zero here.
TEST(PlanTest, NumaAwareAloneWorks) {
  PlanRequest request = Request("neutral", 8);
  request.numa_aware = true;
  EXPECT_EQ(Shape(request), "1x8");
  request.nodes = 2;
  EXPECT_EQ(Shape(request), "2x4 numa");
  request.numa_aware = false;
  EXPECT_EQ(Shape(request), "1x8");
  EXPECT_EQ(Shape(Request("customized", 8)), "1x8");
  request = Request("customized", 200, 2);
  EXPECT_EQ(Shape(request), "4x50 numa");
}

TEST(PlanTest, SurplusIsBounded) {
  for (const char* preset : {"neutral", "io", "io-heavy", "compute",
                             "compute-heavy", "customized"}) {
    for (int workers = 1; workers <= 300; ++workers) {
      for (std::size_t nodes : {1, 2, 4, 8}) {
        const auto plan = MakePlan(Request(preset, workers, nodes));
        ASSERT_TRUE(plan);
        const auto wanted = static_cast<std::size_t>(workers);
        ASSERT_GE(plan->workers(), wanted);
        ASSERT_LE(plan->workers_per_group, 64U);
        ASSERT_LT(plan->workers(), wanted + plan->groups + 32)
            << preset << " " << workers << " on " << nodes;
        if (plan->numa_aware) {
          ASSERT_EQ(plan->groups % nodes, 0U);
        }
      }
    }
  }
}

// A CPU for each worker: no more workers than CPUs, unless it is said how many.
TEST(PlanTest, PinnedWorkersAreAsManyAsCpus) {
  PlanRequest request = Request("neutral", 0, 1, 2);
  request.pinned = true;
  EXPECT_EQ(Shape(request), "1x2");
  request.cpus = 40;  // Unpinned, 2x20.
  EXPECT_EQ(Shape(request), "2x20");
  request = Request("io-heavy", 0, 2, 76);  // Unpinned, 78 workers.
  request.pinned = true;
  EXPECT_EQ(Shape(request), "8x9 numa");
  request.concurrency = 100;  // As wanted: the placement will refuse it.
  EXPECT_EQ(Shape(request), "10x10 numa");
  request = Request("customized", 0, 4, 2);  // A quota, on four nodes.
  request.pinned = true;
  EXPECT_EQ(Shape(request), "4x1 numa");
}

std::string Why(const PlanRequest& request) {
  const auto plan = MakePlan(request);
  return plan ? plan->why : plan.error().message();
}

TEST(PlanTest, SaysWhy) {
  EXPECT_EQ(Why(Request("neutral", 0, 1, 2)),
            "neutral, 4 workers, though fewer CPUs; too few for more than one "
            "group");
  EXPECT_EQ(Why(Request("io-heavy", 0, 2, 40)),
            "io-heavy, as many workers as CPUs; the group size in [8, 16) that "
            "divides evenly over the NUMA nodes with the fewest surplus "
            "workers");
  EXPECT_NE(Why(Request("neutral", 17, 4)).find("aren't bound"),
            std::string::npos);
  EXPECT_NE(Why(Request("compute-heavy", 8)).find("as few groups as possible"),
            std::string::npos);
  EXPECT_NE(Why(Request("compute", 80, 2)).find("per NUMA node"),
            std::string::npos);
  PlanRequest request = Request("io", 40, 2);
  request.group_size = 10;
  EXPECT_EQ(Why(request),
            "io, 40 workers wanted; customized: groups of at most 10, as many "
            "on each NUMA node");
  request.numa_aware = false;
  EXPECT_NE(Why(request).find("flare_numa_aware is off"), std::string::npos);
}

TEST(PlanTest, KnowsPresetsByName) {
  EXPECT_TRUE(IsPreset("neutral"));
  EXPECT_TRUE(IsPreset("customized"));
  EXPECT_FALSE(IsPreset("io-"));
  EXPECT_FALSE(IsPreset(""));
}

TEST(PlanTest, RefusesNonsense) {
  EXPECT_NE(Shape(Request("fast", 4)).find("io-heavy"), std::string::npos);
  EXPECT_NE(Shape(Request("neutral", -1)).find("-1"), std::string::npos);
  EXPECT_NE(Shape(Request("neutral", 1 << 20)).find("4096"), std::string::npos);
  PlanRequest request = Request("neutral", 4);
  request.group_size = 65;
  EXPECT_NE(Shape(request).find("64"), std::string::npos);
  request.group_size = -2;
  EXPECT_NE(Shape(request).find("-2"), std::string::npos);
}

}  // namespace
}  // namespace flare::fiber

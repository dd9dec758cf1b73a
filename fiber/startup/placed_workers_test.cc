// Workers run on the CPUs that options say.

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/topology.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// Where each worker may run.
std::vector<std::vector<int>> WorkersCpus() {
  std::mutex mutex;
  std::vector<std::vector<int>> cpus;
  const auto workers =
      static_cast<int>(GetSchedulingGroupCount() * GetSchedulingGroupSize());
  Latch here(workers);
  Latch done(workers);
  for (std::size_t group = 0; group < GetSchedulingGroupCount(); ++group) {
    for (std::size_t i = 0; i < GetSchedulingGroupSize(); ++i) {
      SpawnTo(group, [&] {
        // Each on a worker of its own: none goes on before all are here.
        here.count_down();
        while (!here.try_wait()) std::this_thread::yield();
        {
          std::scoped_lock guard(mutex);
          cpus.push_back(GetThreadAffinity());
        }
        done.count_down();
      });
    }
  }
  done.wait();
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

TEST(PlacedWorkersTest, PinnedToACpuEach) {
  RuntimeOptions options;
  // Those of the reserve may run on any CPU of their group, and take the task
  // of a worker that was long in starting.
  options.reserve_workers = 0;
  options.disallow_cpu_migration = true;
  ASSERT_TRUE(StartRuntime(options).ok());
  const Topology topology = Topology::FromSystem();
  const auto workers = WorkersCpus();
  EXPECT_GE(2 * workers.size(),
            static_cast<std::size_t>(topology.parallelism()));
  std::set<int> used;
  for (const std::vector<int>& cpus : workers) {
    ASSERT_EQ(cpus.size(), 1U);
    EXPECT_TRUE(used.insert(cpus[0]).second);
    EXPECT_TRUE(topology.NodeIndexOf(cpus[0]));
  }
  TerminateRuntime();
  options.concurrency = static_cast<int>(topology.cpus().size()) + 1;
  const Status refused = StartRuntime(options);
  EXPECT_NE(refused.message().find("disallow_cpu_migration"),
            std::string::npos);
}

TEST(PlacedWorkersTest, OnAccessibleCpusOnly) {
  const std::vector<int> all = GetThreadAffinity();
  RuntimeOptions options;
  options.concurrency = 3;
  options.accessible_cpus = std::to_string(all.back());
  ASSERT_TRUE(StartRuntime(options).ok());
  for (const auto& cpus : WorkersCpus()) {
    EXPECT_EQ(cpus, std::vector<int>{all.back()});
  }
  TerminateRuntime();
  options.accessible_cpus = "";
  options.inaccessible_cpus = std::to_string(all.front());
  if (all.size() == 1) {
    EXPECT_FALSE(StartRuntime(options).ok());
    return;
  }
  ASSERT_TRUE(StartRuntime(options).ok());
  const std::vector<int> rest(all.begin() + 1, all.end());
  for (const auto& cpus : WorkersCpus()) EXPECT_EQ(cpus, rest);
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber

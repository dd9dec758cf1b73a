#include "flare/base/topology.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

using Cpus = std::vector<int>;

Topology Describe(std::string_view description) {
  auto topology = Topology::FromDescription(description);
  EXPECT_TRUE(topology) << topology.error();
  return *std::move(topology);
}

void ExpectError(std::string_view description, const std::string& text) {
  const auto topology = Topology::FromDescription(description);
  ASSERT_FALSE(topology) << description;
  EXPECT_EQ(topology.error().code(), EINVAL);
  EXPECT_NE(topology.error().message().find(text), std::string::npos)
      << topology.error();
}

TEST(ParseCpuList, NumbersAndRanges) {
  EXPECT_EQ(*ParseCpuList("3"), (Cpus{3}));
  EXPECT_EQ(*ParseCpuList("0-3"), (Cpus{0, 1, 2, 3}));
  EXPECT_EQ(*ParseCpuList("7-7"), (Cpus{7}));
  EXPECT_EQ(*ParseCpuList("8,0-2,5"), (Cpus{0, 1, 2, 5, 8}));
  EXPECT_EQ(*ParseCpuList("1,0-2,1"), (Cpus{0, 1, 2}));
  EXPECT_EQ(*ParseCpuList(" 1 , 3-4\n"), (Cpus{1, 3, 4}));
  EXPECT_EQ(*ParseCpuList(""), Cpus{});
  EXPECT_EQ(*ParseCpuList(" \n"), Cpus{});
}

TEST(ParseCpuList, NegativeNumbersCountFromTheEnd) {
  EXPECT_EQ(*ParseCpuList("-1", 16), (Cpus{15}));
  EXPECT_EQ(*ParseCpuList("0-10,11,-1", 16),
            (Cpus{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15}));
  EXPECT_EQ(*ParseCpuList("-3--1", 8), (Cpus{5, 6, 7}));
  EXPECT_EQ(*ParseCpuList("6--1", 8), (Cpus{6, 7}));
  EXPECT_EQ(*ParseCpuList("-8-1", 8), (Cpus{0, 1}));
  EXPECT_EQ(ParseCpuList("-1")->size(), 1u);  // This machine's.
}

TEST(ParseCpuList, RefusesTheRest) {
  for (const char* text : {"a", "1,", ",1", "1,,2", "1-", "-", "--1", "1-2-3",
                           "1.5", "1 2", "0x1", "99999999999", "1:2/3"}) {
    const auto cpus = ParseCpuList(text, 8);
    ASSERT_FALSE(cpus) << text;
    EXPECT_EQ(cpus.error().code(), EINVAL);
    EXPECT_NE(cpus.error().message().find("neither a number nor a range"),
              std::string::npos);
  }
  for (const char* text : {"-9", "65536", "0-65536", "-9-1"}) {
    const auto cpus = ParseCpuList(text, 8);
    ASSERT_FALSE(cpus) << text;
    EXPECT_NE(cpus.error().message().find("out of range"), std::string::npos);
  }
  EXPECT_NE(
      ParseCpuList("3-1").error().message().find("\"3-1\" runs backwards"),
      std::string::npos);
}

TEST(FormatCpuList, UsesRanges) {
  EXPECT_EQ(FormatCpuList({}), "");
  EXPECT_EQ(FormatCpuList({4}), "4");
  EXPECT_EQ(FormatCpuList({0, 1, 2, 3, 6, 8, 9}), "0-3,6,8-9");
}

TEST(FormatCpuList, IsReadBack) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::set<int> cpus;
    for (auto n = random() % 40; n > 0; --n) cpus.insert(random() % 64);
    const Cpus list(cpus.begin(), cpus.end());
    EXPECT_EQ(*ParseCpuList(FormatCpuList(list)), list);
  }
}

TEST(TopologyFromDescription, TwoEvenNodes) {
  const Topology topology = Describe("0-3;4-7");
  ASSERT_EQ(topology.nodes().size(), 2u);
  EXPECT_EQ(topology.nodes()[0].id, 0);
  EXPECT_EQ(topology.nodes()[0].cpus, (Cpus{0, 1, 2, 3}));
  EXPECT_TRUE(topology.nodes()[0].has_memory);
  EXPECT_EQ(topology.nodes()[1].id, 1);
  EXPECT_EQ(topology.nodes()[1].cpus, (Cpus{4, 5, 6, 7}));
  EXPECT_EQ(topology.cpus(), (Cpus{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(topology.quota(), std::nullopt);
  EXPECT_EQ(topology.parallelism(), 8);
  EXPECT_EQ(topology.ToString(), "node 0: CPUs 0-3; node 1: CPUs 4-7");
}

TEST(TopologyFromDescription, InterleavedAndUnevenNodes) {
  const Topology topology = Describe("0,2,4,6;1,3;5");
  ASSERT_EQ(topology.nodes().size(), 3u);
  EXPECT_EQ(topology.nodes()[2].cpus, (Cpus{5}));
  EXPECT_EQ(topology.cpus(), (Cpus{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(topology.NodeIndexOf(4), 0u);
  EXPECT_EQ(topology.NodeIndexOf(3), 1u);
  EXPECT_EQ(topology.NodeIndexOf(5), 2u);
  EXPECT_EQ(topology.NodeIndexOf(7), std::nullopt);
  EXPECT_EQ(topology.NodeIndexOf(-1), std::nullopt);
}

TEST(TopologyFromDescription, MemorylessNodesAndThoseWithoutCpus) {
  const Topology topology = Describe("0-1;;2-3:nomem;4");
  ASSERT_EQ(topology.nodes().size(), 3u);
  // Node 1 has no CPUs: it is gone, the others keep their numbers.
  EXPECT_EQ(topology.nodes()[1].id, 2);
  EXPECT_FALSE(topology.nodes()[1].has_memory);
  EXPECT_EQ(topology.nodes()[2].id, 3);
  EXPECT_TRUE(topology.nodes()[2].has_memory);
  EXPECT_EQ(topology.NodeIndexOf(4), 2u);
  EXPECT_EQ(topology.ToString(),
            "node 0: CPUs 0-1; node 2: CPUs 2-3 (no memory); node 3: CPUs 4");
}

TEST(TopologyFromDescription, OfflineCpusAndAffinity) {
  const Topology topology = Describe("0-3; 4-7; 8-9; offline=1,8-9");
  ASSERT_EQ(topology.nodes().size(), 2u);  // The third is all offline.
  EXPECT_EQ(topology.cpus(), (Cpus{0, 2, 3, 4, 5, 6, 7}));
  const Topology bound = Describe("0-3;4-7;offline=1;affinity=1-2,7,99");
  EXPECT_EQ(bound.nodes()[0].cpus, (Cpus{2}));
  EXPECT_EQ(bound.nodes()[1].cpus, (Cpus{7}));
}

TEST(TopologyFromDescription, QuotaLimitsParallelism) {
  EXPECT_EQ(Describe("0-7;quota=2.5").parallelism(), 3);
  EXPECT_EQ(Describe("0-7;quota=2").parallelism(), 2);
  EXPECT_EQ(Describe("0-7;quota=0.1").parallelism(), 1);
  EXPECT_EQ(Describe("0-7;quota=8").parallelism(), 8);
  EXPECT_EQ(Describe("0-7;quota=1e9").parallelism(), 8);
  EXPECT_EQ(Describe("0-1;quota=1.5").quota(), 1.5);
  EXPECT_EQ(Describe("0-1;quota=1.5").ToString(),
            "node 0: CPUs 0-1; quota 1.5 CPUs");
}

TEST(TopologyFromDescription, SaysWhatIsWrong) {
  ExpectError("", "leaves no CPU");
  ExpectError(";", "leaves no CPU");
  ExpectError(":nomem", "leaves no CPU");
  ExpectError("0-1;offline=0,1", "leaves no CPU");
  ExpectError("0-1;affinity=2", "leaves no CPU");
  ExpectError("0-1;affinity=", "leaves no CPU");
  ExpectError("0-3;3-4", "\"3-4\" has a CPU of another node");
  ExpectError("0-x", "\"0-x\" is neither");
  ExpectError("0;offline=z", "\"z\" is neither");
  ExpectError("0;quota=0", "number of CPUs above 0");
  ExpectError("0;quota=-1", "number of CPUs above 0");
  ExpectError("0;quota=many", "number of CPUs above 0");
  ExpectError("0;memory=1", "\"memory=1\" is unknown");
}

TEST(Topology, RestrictedTo) {
  const Topology topology = Describe("0-3;4-7:nomem;quota=3");
  const auto some = topology.RestrictedTo({6, 4, 1, 4, 12});
  ASSERT_TRUE(some);
  EXPECT_EQ(some->cpus(), (Cpus{1, 4, 6}));
  EXPECT_EQ(some->nodes()[1].cpus, (Cpus{4, 6}));
  EXPECT_FALSE(some->nodes()[1].has_memory);
  EXPECT_EQ(some->quota(), 3);
  const auto one_node = topology.RestrictedTo({5});
  ASSERT_TRUE(one_node);
  EXPECT_EQ(one_node->nodes().size(), 1u);
  EXPECT_EQ(one_node->NodeIndexOf(5), 0u);
  const auto none = topology.RestrictedTo({8, 9});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message(),
            "none of the CPUs 8-9 is accessible; this process may use 0-7");
}

TEST(Topology, Without) {
  const Topology topology = Describe("0-3;4-7");
  const auto some = topology.Without({7, 0, 0, 4, 12});
  ASSERT_TRUE(some);
  EXPECT_EQ(some->cpus(), (Cpus{1, 2, 3, 5, 6}));
  const auto one_node = topology.Without({0, 1, 2, 3});
  ASSERT_TRUE(one_node);
  EXPECT_EQ(one_node->ToString(), "node 1: CPUs 4-7");
  EXPECT_EQ(topology.Without({})->cpus(), topology.cpus());
  const auto none = topology.Without({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), EINVAL);
  EXPECT_EQ(none.error().message(),
            "without the CPUs 0-7 none is left; this process may use 0-7");
}

TEST(Topology, CountsNodesWithMemory) {
  EXPECT_EQ(Describe("0-3").memory_nodes(), 1u);
  EXPECT_EQ(Describe("0-3:nomem").memory_nodes(), 0u);
  EXPECT_EQ(Describe("0-3;4-7:nomem").memory_nodes(), 1u);
  // Memory without CPUs, offline CPUs: the memory is still there.
  EXPECT_EQ(Describe("0-3;;4-5;offline=4-5").memory_nodes(), 3u);
}

TEST(TopologyFromFile, LinesAreItems) {
  const std::string path = ::testing::TempDir() + "/topology_from_file";
  std::ofstream(path) << "# A machine with a hot spare.\n"
                      << "0-3\n\n  4-7:nomem # far away\n;8;9\n"
                      << "offline=2,5\nquota=2.5\n";
  const auto topology = Topology::FromFile(path);
  ASSERT_TRUE(topology) << topology.error();
  EXPECT_EQ(topology->ToString(),
            "node 0: CPUs 0-1,3; node 1: CPUs 4,6-7 (no memory); "
            "node 3: CPUs 8; node 4: CPUs 9; quota 2.5 CPUs");
  std::ofstream(path) << "0-3\n3-4\n";
  const auto bad = Topology::FromFile(path);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), EINVAL);
  EXPECT_NE(bad.error().message().find(path), std::string::npos);
  EXPECT_NE(bad.error().message().find("another node"), std::string::npos);
  std::ofstream(path) << "# nothing\n";
  EXPECT_FALSE(Topology::FromFile(path));
  std::filesystem::remove(path);
  const auto absent = Topology::FromFile(path);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ENOENT);
  EXPECT_NE(absent.error().message().find(path), std::string::npos);
  const auto folder = Topology::FromFile(::testing::TempDir());
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code(), EISDIR);
}

// Any description must give a consistent topology, or an error.
TEST(TopologyFromDescription, RandomMachinesAreConsistent) {
  std::mt19937 random(99);
  int made = 0;
  for (int round = 0; round < 500; ++round) {
    const int node_count = 1 + static_cast<int>(random() % 8);
    std::map<int, Cpus> wanted;
    for (int cpu = 0; cpu < 64; ++cpu) {
      if (random() % 4 != 0)
        wanted[static_cast<int>(random() % node_count)].push_back(cpu);
    }
    Cpus offline;
    for (int cpu = 0; cpu < 64; ++cpu) {
      if (random() % 3 == 0) offline.push_back(cpu);
    }
    std::string text;
    for (int n = 0; n < node_count; ++n) text += FormatCpuList(wanted[n]) + ";";
    text += "offline=" + FormatCpuList(offline);
    const auto topology = Topology::FromDescription(text);
    if (!topology) continue;
    ++made;
    Cpus all;
    for (std::size_t i = 0; i < topology->nodes().size(); ++i) {
      const Topology::Node& node = topology->nodes()[i];
      ASSERT_FALSE(node.cpus.empty());
      for (const int cpu : node.cpus) {
        ASSERT_EQ(
            std::count(wanted[node.id].begin(), wanted[node.id].end(), cpu), 1);
        ASSERT_EQ(std::count(offline.begin(), offline.end(), cpu), 0);
        ASSERT_EQ(topology->NodeIndexOf(cpu), i);
        all.push_back(cpu);
      }
    }
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all, topology->cpus());
    ASSERT_EQ(topology->parallelism(), static_cast<int>(all.size()));
  }
  EXPECT_GT(made, 400);
}

// FromSystem over files of our own.
class TopologyFromFilesTest : public ::testing::Test {
 protected:
  TopologyFromFilesTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = ::testing::TempDir() + "/topology_test_" + info->name();
    std::filesystem::remove_all(root_);
  }
  ~TopologyFromFilesTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void WriteNode(int id, const std::string& cpus) {
    Write("/sys/devices/system/node/node" + std::to_string(id) + "/cpulist",
          cpus + "\n");
  }
  Topology Read(Cpus affinity) {
    return Topology::FromSystem({root_, std::move(affinity)});
  }

  std::string root_;
};

TEST_F(TopologyFromFilesTest, FourNodes) {
  Write("/sys/devices/system/node/online", "0-1,4-5\n");
  Write("/sys/devices/system/node/has_memory", "0,4-5\n");
  WriteNode(0, "0-2");
  WriteNode(1, "4-5");
  WriteNode(4, "6-7");
  WriteNode(5, "");                                       // Memory only.
  const Topology topology = Read({0, 1, 2, 4, 5, 6, 7});  // 3 is offline.
  EXPECT_EQ(topology.ToString(),
            "node 0: CPUs 0-2; node 1: CPUs 4-5 (no memory); node 4: CPUs 6-7");
  EXPECT_EQ(topology.memory_nodes(), 3u);  // One of them without CPUs.
  const Topology bound = Read({7, 2, 1});
  EXPECT_EQ(bound.ToString(), "node 0: CPUs 1-2; node 4: CPUs 7");
}

TEST_F(TopologyFromFilesTest, WithoutNumaInformationThereIsOneNode) {
  EXPECT_EQ(Read({3, 1}).ToString(), "node 0: CPUs 1,3");
  // One that leaves out a CPU we may use is not to be believed.
  Write("/sys/devices/system/node/online", "0\n");
  WriteNode(0, "0-2");
  EXPECT_EQ(Read({1, 3}).ToString(), "node 0: CPUs 1,3");
}

TEST_F(TopologyFromFilesTest, MalformedFilesCountAsAbsent) {
  Write("/sys/devices/system/cpu/online", "what?\n");
  Write("/sys/devices/system/node/online", "3-1\n");
  EXPECT_EQ(Read({0, 1}).ToString(), "node 0: CPUs 0-1");
  EXPECT_EQ(Topology::FromSystem({root_, std::nullopt}).cpus().front(), 0);
}

// lxcfs shows a quota of two CPUs as if they were the first two.
TEST_F(TopologyFromFilesTest, TheAffinityMaskKnowsBetterThanWhatIsOnline) {
  Write("/sys/devices/system/cpu/online", "0-1\n");
  Write("/sys/devices/system/node/online", "0-1\n");
  WriteNode(0, "0-7");
  WriteNode(1, "8-15");
  EXPECT_EQ(Read({0, 1, 6, 7, 8, 9}).ToString(),
            "node 0: CPUs 0-1,6-7; node 1: CPUs 8-9");
}

TEST_F(TopologyFromFilesTest, WithoutAffinityMaskAllThatIsOnlineCounts) {
  Write("/sys/devices/system/cpu/online", "0,2-4\n");
  Write("/sys/devices/system/node/online", "0-1\n");
  WriteNode(0, "0-2");
  WriteNode(1, "3-4");
  EXPECT_EQ(Topology::FromSystem({root_, std::nullopt}).ToString(),
            "node 0: CPUs 0,2; node 1: CPUs 3-4");
}

TEST_F(TopologyFromFilesTest, QuotaOfTheCgroup) {
  Write("/proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/proc/self/cgroup", "0::/box\n");
  Write("/sys/fs/cgroup/box/cpu.max", "150000 100000\n");
  const Topology topology = Read({0, 1, 2, 3});
  EXPECT_EQ(topology.quota(), 1.5);
  EXPECT_EQ(topology.parallelism(), 2);
}

TEST(TopologyFromSystem, DescribesThisMachine) {
  const Topology topology = Topology::FromSystem();
  ASSERT_FALSE(topology.nodes().empty());
  EXPECT_EQ(topology.cpus(), GetThreadAffinity());
  EXPECT_GE(topology.parallelism(), 1);
  EXPECT_LE(topology.parallelism(), static_cast<int>(topology.cpus().size()));
}

TEST(ThreadAffinity, IsHonouredByFromSystem) {
  const Cpus all = GetThreadAffinity();
  ASSERT_FALSE(all.empty());
  std::thread([&] {  // The restriction ends with the thread.
    const Cpus last = {all.back()};
    const Status bound = SetThreadAffinity(last);
    ASSERT_TRUE(bound.ok()) << bound;
    EXPECT_EQ(GetThreadAffinity(), last);
    EXPECT_EQ(Topology::FromSystem().cpus(), last);
    EXPECT_TRUE(SetThreadAffinity(all).ok());
    EXPECT_EQ(GetThreadAffinity(), all);
  })
      .join();
}

TEST(ThreadAffinity, RefusesImpossibleOnes) {
  for (const Cpus& cpus : {Cpus{}, Cpus{65535}, Cpus{-1, 70000}}) {
    const Status status = SetThreadAffinity(cpus);
    EXPECT_EQ(status.code(), EINVAL);
    EXPECT_NE(status.message().find("can't bind the thread"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace flare

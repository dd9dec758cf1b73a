#include "flare/base/cgroup.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace flare {
namespace {

constexpr char kV2Mount[] =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

// A file system of our own, below a temporary folder.
class ReadCpuQuotaTest : public ::testing::Test {
 protected:
  ReadCpuQuotaTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = ::testing::TempDir() + "/cgroup_test_" + info->name();
    std::filesystem::remove_all(root_);
  }
  ~ReadCpuQuotaTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }

  std::optional<double> Read() { return ReadCpuQuota(root_); }

  std::string root_;
};

TEST_F(ReadCpuQuotaTest, NothingToReadIsNoLimit) {
  EXPECT_EQ(Read(), std::nullopt);
}

TEST_F(ReadCpuQuotaTest, Version2) {
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/self/cgroup", "0::/service\n");
  Write("/sys/fs/cgroup/service/cpu.max", "150000 100000\n");
  EXPECT_EQ(Read(), 1.5);
  Write("/sys/fs/cgroup/service/cpu.max", "max 100000\n");
  EXPECT_EQ(Read(), std::nullopt);
}

TEST_F(ReadCpuQuotaTest, Version2AtTheTop) {
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(Read(), 0.5);
}

TEST_F(ReadCpuQuotaTest, TheSmallestOfAllAncestorsCounts) {
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/self/cgroup", "0::/a/b/c\n");
  Write("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
  EXPECT_EQ(Read(), 3.0);
  Write("/sys/fs/cgroup/a/b/cpu.max", "20000 10000\n");
  EXPECT_EQ(Read(), 2.0);
}

TEST_F(ReadCpuQuotaTest, Version1) {
  Write("/proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup/cpuset rw shared:9 - cgroup cgroup "
        "rw,cpuset\n"
        "32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup "
        "rw,cpu,cpuacct\n");
  Write("/proc/self/cgroup",
        "5:cpuset:/elsewhere\n4:cpu,cpuacct:/box\n1:name=systemd:/x\n");
  const std::string folder = "/sys/fs/cgroup/cpu,cpuacct";
  Write(folder + "/cpu.cfs_quota_us", "-1\n");
  Write(folder + "/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read(), std::nullopt);
  Write(folder + "/box/cpu.cfs_quota_us", "250000\n");
  Write(folder + "/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read(), 2.5);
  Write(folder + "/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(Read(), 1.0);
}

TEST_F(ReadCpuQuotaTest, BothVersionsAtOnce) {
  Write("/proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
  Write("/proc/self/cgroup", "2:cpu:/one\n0::/two\n");
  Write("/sys/fs/cgroup/unified/two/cpu.max", "300000 100000\n");
  Write("/sys/fs/cgroup/cpu/one/cpu.cfs_quota_us", "400000\n");
  Write("/sys/fs/cgroup/cpu/one/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read(), 3.0);
}

TEST_F(ReadCpuQuotaTest, ContainersSeePartOfTheTree) {
  // The mount's top is the host's /docker/123.
  Write("/proc/self/mountinfo",
        "30 23 0:26 /docker/123 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/proc/self/cgroup", "0::/docker/123/inner\n");
  Write("/sys/fs/cgroup/cpu.max", "700000 100000\n");
  EXPECT_EQ(Read(), 7.0);
  Write("/sys/fs/cgroup/inner/cpu.max", "600000 100000\n");
  EXPECT_EQ(Read(), 6.0);
  // Outside of the mounted part (and a name that only begins alike): the top.
  Write("/proc/self/cgroup", "0::/docker/1234\n");
  EXPECT_EQ(Read(), 7.0);
}

// `docker run --cpus=2 -v /:/host`: only the first of the mounts shows our
// path.
TEST_F(ReadCpuQuotaTest, OfSeveralMountsTheOneThatShowsUsCounts) {
  const std::string hosts =
      "40 23 0:26 /../../.. /host/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  Write("/host/sys/fs/cgroup/cpu.max", "max 100000\n");
  for (const std::string& mounts : {kV2Mount + hosts, hosts + kV2Mount}) {
    Write("/proc/self/mountinfo", mounts);
    EXPECT_EQ(Read(), 2.0) << mounts;
  }
  // None does: the first.
  Write("/proc/self/mountinfo",
        "30 23 0:26 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n" + hosts);
  EXPECT_EQ(Read(), 2.0);
}

TEST_F(ReadCpuQuotaTest, OfSeveralMountsOfVersion1Too) {
  Write("/proc/self/cgroup", "2:cpu:/docker/1\n");
  Write("/proc/self/mountinfo",
        "32 23 0:28 /docker/1 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "42 23 0:28 /docker/2 /host/cpu rw - cgroup cgroup rw,cpu\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Read(), 1.5);
}

TEST_F(ReadCpuQuotaTest, ALaterMountHidesOneAtTheSamePlace) {
  Write("/proc/self/cgroup", "0::/box/inner\n");
  Write("/proc/self/mountinfo",
        std::string(kV2Mount) +
            "33 30 0:26 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/inner/cpu.max", "300000 100000\n");
  EXPECT_EQ(Read(), 3.0);
}

TEST_F(ReadCpuQuotaTest, MalformedFilesAreNoLimit) {
  Write("/proc/self/mountinfo",
        std::string("garbage\n\n1 2 - \n - cgroup2 a b\n") + kV2Mount);
  Write("/proc/self/cgroup", "garbage\n0:\n::\n0::/x\n");
  for (const char* text :
       {"", "1", "a b", "0 100000", "-5 100000", "5 0", "1 2 3", "100000 -1"}) {
    Write("/sys/fs/cgroup/x/cpu.max", text);
    EXPECT_EQ(Read(), std::nullopt) << '"' << text << '"';
  }
  Write("/sys/fs/cgroup/x/cpu.max", "100000 100000");
  EXPECT_EQ(Read(), 1.0);
}

TEST_F(ReadCpuQuotaTest, ReadSmallFile) {
  Write("/file", "two\nlines\n");
  EXPECT_EQ(ReadSmallFile(root_ + "/file"), "two\nlines\n");
  EXPECT_EQ(ReadSmallFile(root_ + "/missing"), "");
  EXPECT_EQ(ReadSmallFile(root_), "");  // A folder.
}

TEST(ReadCpuQuota, OfThisProcessIsPositive) {
  if (const auto quota = ReadCpuQuota("")) {
    EXPECT_GT(*quota, 0);
  }
}

class UsableMemoryTest : public ReadCpuQuotaTest {};

TEST_F(UsableMemoryTest, IsTheSmallestOfAllLimits) {
  const std::uint64_t all = UsableMemory(root_);
  EXPECT_GT(all, std::uint64_t{1} << 26);
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(UsableMemory(root_), all);
  Write("/sys/fs/cgroup/a/memory.max", "50000000\n");
  EXPECT_EQ(UsableMemory(root_), 50'000'000u);
  Write("/sys/fs/cgroup/a/b/memory.max", "40000000\n");
  EXPECT_EQ(UsableMemory(root_), 40'000'000u);
}

TEST_F(UsableMemoryTest, Version1) {
  const std::uint64_t all = UsableMemory(root_);
  Write("/proc/self/mountinfo",
        "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  Write("/proc/self/cgroup", "4:cpu:/c\n5:memory:/m\n");
  Write("/sys/fs/cgroup/memory/m/memory.limit_in_bytes",
        "9223372036854771712\n");
  EXPECT_EQ(UsableMemory(root_), all);
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "30000000\n");
  EXPECT_EQ(UsableMemory(root_), 30'000'000u);
}

}  // namespace
}  // namespace flare

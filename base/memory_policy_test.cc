#include "flare/base/memory_policy.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "flare/base/topology.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

// Fresh pages, on no node yet.
class Pages {
 public:
  explicit Pages(std::size_t count)
      : bytes_(count * page_size()),
        low_(static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { munmap(low_, bytes_); }

  static std::size_t page_size() {
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  }
  std::size_t bytes() const { return bytes_; }
  char* page(std::size_t i) const { return low_ + i * page_size(); }

 private:
  const std::size_t bytes_;
  char* const low_;
};

// A node with memory: the one that holds some of our memory. -1: the system
// doesn't say (a sandbox, an emulator).
int SomeMemoryNode() {
  static char* const touched = new char[1]();
  return MemoryNodeOf(touched).value_or(-1);
}

TEST(MemoryPolicyTest, UntouchedPagesLieNowhere) {
  const Pages pages(1);
  EXPECT_EQ(MemoryNodeOf(pages.page(0)), std::nullopt);
  // Looking has not touched it.
  EXPECT_EQ(MemoryNodeOf(pages.page(0)), std::nullopt);
  EXPECT_EQ(MemoryNodeOf(nullptr), std::nullopt);
}

TEST(MemoryPolicyTest, PagesComeFromThePreferredNode) {
  const int node = SomeMemoryNode();
  if (node < 0) GTEST_SKIP() << "this system doesn't tell where pages lie";
  const Pages pages(4);
  const Status status = PreferMemoryOf(node, pages.page(0), pages.bytes());
  if (status.code() == EPERM || status.code() == ENOSYS) {
    GTEST_SKIP() << status;
  }
  ASSERT_TRUE(status.ok()) << status;
  *pages.page(2) = 1;
  EXPECT_EQ(MemoryNodeOf(pages.page(2)), node);
  EXPECT_EQ(MemoryNodeOf(pages.page(3)), std::nullopt);
}

TEST(MemoryPolicyTest, RefusesNodesThatAreNotThere) {
  const Pages pages(1);
  for (const int node : {-1, 1023, 1024, 1 << 30}) {
    const Status status = PreferMemoryOf(node, pages.page(0), pages.bytes());
    EXPECT_FALSE(status.ok()) << node;
    EXPECT_NE(status.message().find("NUMA node " + std::to_string(node)),
              std::string::npos)
        << status;
  }
}

TEST(MemoryPolicyTest, RefusesWhatIsNoPage) {
  if (SomeMemoryNode() < 0) GTEST_SKIP() << "no memory policies here";
  const Pages pages(1);
  EXPECT_FALSE(
      PreferMemoryOf(SomeMemoryNode(), pages.page(0) + 1, pages.bytes()).ok());
}

}  // namespace
}  // namespace flare

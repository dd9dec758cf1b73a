#include "flare/io/fd.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace flare::io {
namespace {

int NewFd() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(UniqueFd, EmptyByDefault) {
  UniqueFd fd;
  EXPECT_FALSE(fd);
  EXPECT_EQ(fd.get(), -1);
  fd.Reset();
  EXPECT_EQ(fd.Release(), -1);
}

TEST(UniqueFd, ClosesWhatItOwns) {
  const int raw = NewFd();
  ASSERT_GE(raw, 0);
  {
    UniqueFd fd(raw);
    EXPECT_TRUE(fd);
    EXPECT_EQ(fd.get(), raw);
    EXPECT_TRUE(IsOpen(raw));
  }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFd, MovesOwnership) {
  UniqueFd a(NewFd());
  const int raw = a.get();
  UniqueFd b(std::move(a));
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(b.get(), raw);

  UniqueFd c(NewFd());
  const int replaced = c.get();
  c = std::move(b);
  EXPECT_EQ(c.get(), raw);
  EXPECT_FALSE(IsOpen(replaced));
  EXPECT_TRUE(IsOpen(raw));
}

TEST(UniqueFd, SelfMoveKeepsTheDescriptor) {
  UniqueFd fd(NewFd());
  const int raw = fd.get();
  UniqueFd& same = fd;
  fd = std::move(same);
  EXPECT_EQ(fd.get(), raw);
  EXPECT_TRUE(IsOpen(raw));
}

TEST(UniqueFd, ReleaseDoesNotClose) {
  UniqueFd fd(NewFd());
  const int raw = fd.Release();
  EXPECT_FALSE(fd);
  EXPECT_TRUE(IsOpen(raw));
  ::close(raw);
}

TEST(UniqueFd, ResetKeepsErrnoAndIgnoresItself) {
  UniqueFd fd(NewFd());
  const int raw = fd.get();
  fd.Reset(raw);
  EXPECT_TRUE(IsOpen(raw));
  errno = ENOENT;
  fd.Reset();
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(IsOpen(raw));
}

TEST(SignalEventFd, AddsOneUnlessTheCounterIsFull) {
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ASSERT_TRUE(event);
  SignalEventFd(event.get());
  SignalEventFd(event.get());
  std::uint64_t count = 0;
  ASSERT_EQ(::read(event.get(), &count, sizeof(count)), sizeof(count));
  EXPECT_EQ(count, 2U);

  constexpr std::uint64_t kFull = std::numeric_limits<std::uint64_t>::max() - 1;
  ASSERT_EQ(::write(event.get(), &kFull, sizeof(kFull)), sizeof(kFull));
  SignalEventFd(event.get());
  ASSERT_EQ(::read(event.get(), &count, sizeof(count)), sizeof(count));
  EXPECT_EQ(count, kFull);
}

// How many the kernel's table has room for now.
std::size_t TableSize() {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::size_t size = 0;
    if (word == "FDSize:" && file >> size) return size;
  }
  return 0;
}

TEST(ReserveDescriptors, MakesRoom) {
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::size_t before = TableSize();
  ASSERT_GT(before, 0U);
  const std::size_t wanted = std::min<std::size_t>(limit.rlim_cur, 2 * before);
  const int next = UniqueFd(NewFd()).get();
  ReserveDescriptors(wanted);
  EXPECT_GE(TableSize(), wanted);
  EXPECT_EQ(UniqueFd(NewFd()).get(), next) << "something was left open";
  ReserveDescriptors(0);
  ReserveDescriptors(1);
  EXPECT_GE(TableSize(), wanted);
}

// More than there may be: as many as may be.
TEST(ReserveDescriptors, KeepsToTheLimit) {
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit lower = limit;
  lower.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 4 * TableSize());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  ReserveDescriptors(std::numeric_limits<std::size_t>::max());
  EXPECT_GE(TableSize(), lower.rlim_cur);
  EXPECT_LT(TableSize(), 2 * lower.rlim_cur + 1024);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(DescriptorLimit, IsRaisedToTheHardOne) {
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit lower = limit;
  lower.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  EXPECT_EQ(DescriptorLimit(), 64U);
  RaiseDescriptorLimit();
  EXPECT_EQ(DescriptorLimit(), std::min<rlim_t>(limit.rlim_max, 1 << 20));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace flare::io

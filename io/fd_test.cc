#include "flare/io/fd.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
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
  EXPECT_FALSE(a);
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

}  // namespace
}  // namespace flare::io

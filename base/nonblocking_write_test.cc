#include "flare/base/nonblocking_write.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"

namespace flare {
namespace {

constexpr std::size_t kPiece = 4096;

// Two ends, the first of which is read from.
struct Ends {
  ~Ends() {
    ::close(read);
    ::close(write);
  }

  std::string Read(std::size_t size) const {
    std::string data(size, '\0');
    const ssize_t n = ::read(read, data.data(), size);
    data.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return data;
  }

  int read = -1;
  int write = -1;
};

// Until there is no room; returns errno.
int Fill(int fd) {
  const std::string piece(kPiece, 'x');
  while (WriteNonBlocking(fd, piece) >= 0) {
  }
  return errno;
}

class NonBlockingWriteTest : public ::testing::Test {
 protected:
  void SetUp() override { ::signal(SIGPIPE, SIG_IGN); }

  static void MakePipe(Ends* ends) {
    int fds[2];
    ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    ends->read = fds[0];
    ends->write = fds[1];
  }
};

TEST_F(NonBlockingWriteTest, FullPipeRefuses) {
  Ends ends;
  MakePipe(&ends);
  EXPECT_EQ(WriteNonBlocking(ends.write, "one"), 3);
  EXPECT_EQ(ends.Read(100), "one");
  EXPECT_EQ(Fill(ends.write), EAGAIN);
  // The description that others may share is as it was.
  EXPECT_EQ(::fcntl(ends.write, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(ends.Read(kPiece).size(), kPiece);
  EXPECT_EQ(WriteNonBlocking(ends.write, "two"), 3);
}

TEST_F(NonBlockingWriteTest, PipeThatIsNonBlockingRefuses) {
  Ends ends;
  MakePipe(&ends);
  ASSERT_EQ(::fcntl(ends.write, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(Fill(ends.write), EAGAIN);
}

TEST_F(NonBlockingWriteTest, PipeWithoutReaderFails) {
  Ends ends;
  MakePipe(&ends);
  ::close(ends.read);
  ends.read = -1;
  EXPECT_EQ(WriteNonBlocking(ends.write, "one"), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST_F(NonBlockingWriteTest, FullSocketRefuses) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  Ends ends{.read = fds[0], .write = fds[1]};
  EXPECT_EQ(Fill(ends.write), EAGAIN);
  EXPECT_EQ(ends.Read(kPiece).size(), kPiece);
}

TEST_F(NonBlockingWriteTest, FileTakesAll) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const std::string text(1 << 20, 'x');
  EXPECT_EQ(WriteNonBlocking(::fileno(file), text),
            static_cast<ssize_t>(text.size()));
  std::fclose(file);
}

TEST_F(NonBlockingWriteTest, BadDescriptorFails) {
  EXPECT_EQ(WriteNonBlocking(-1, "one"), -1);
  EXPECT_EQ(errno, EBADF);
}

// stderr is `fd` from here to the end of the scope.
class StderrInstead {
 public:
  explicit StderrInstead(int fd) : before_(::dup(STDERR_FILENO)) {
    ::dup2(fd, STDERR_FILENO);
  }
  ~StderrInstead() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }

 private:
  const int before_;
};

TEST_F(NonBlockingWriteTest, LastWordsToAFullPipeDoNotBlock) {
  Ends ends;
  MakePipe(&ends);
  Fill(ends.write);
  const StderrInstead instead(ends.write);
  errno = ERANGE;
  KeepStderrFromBlocking();
  EXPECT_EQ(errno, ERANGE);
  EXPECT_EQ(::write(STDERR_FILENO, "lost", 4), -1);
  EXPECT_EQ(errno, EAGAIN);
  // Once there is room they come out.
  while (ends.Read(kPiece).size() == kPiece &&
         ::write(STDERR_FILENO, "there", 5) != 5) {
  }
  EXPECT_EQ(::fcntl(ends.write, F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(NonBlockingWriteTest, LastWordsToAFullSocketDoNotBlock) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  Ends ends{.read = fds[0], .write = fds[1]};
  Fill(ends.write);
  const StderrInstead instead(ends.write);
  KeepStderrFromBlocking();
  EXPECT_EQ(::write(STDERR_FILENO, "lost", 4), 4);  // Nobody waits for room.
}

TEST_F(NonBlockingWriteTest, LastWordsToASocketWithRoomArrive) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  const Ends ends{.read = fds[0], .write = fds[1]};
  {
    const StderrInstead instead(ends.write);
    KeepStderrFromBlocking();
    EXPECT_EQ(::write(STDERR_FILENO, "words", 5), 5);
  }
  EXPECT_EQ(ends.Read(100), "words");
}

}  // namespace
}  // namespace flare

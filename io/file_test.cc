#include "flare/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace {

// Answers of the kernel to calls that mustn't wait. File systems differ.
enum class Now {
  kAll,          // All bytes are in memory.
  kHalf,         // Half of them are.
  kNothing,      // None is.
  kZero,         // None is, but a faulty kernel says 0 bytes.
  kUnsupported,  // The file system can't tell.
  kKernel,       // The kernel decides.
};

std::atomic<Now> now{Now::kKernel};
std::atomic<int> now_calls{0};
std::atomic<int> blocking_calls{0};
std::atomic<int> blocked_workers{0};
std::atomic<int> interrupts{0};  // As many calls that block fail.
std::atomic<flare::fiber::Event*> disk{nullptr};  // They wait for it.

ssize_t Fail(int error) {
  errno = error;
  return -1;
}

ssize_t Move(long call, int fd, iovec piece, const iovec* pieces, int count,
             off_t offset, int flags) {
  if ((flags & RWF_NOWAIT) == 0) {
    ++blocking_calls;
    if (flare::fiber::IsFiberWorker()) ++blocked_workers;
    if (interrupts > 0 && interrupts-- > 0) return Fail(EINTR);
    if (disk != nullptr) disk.load()->Wait();
    return ::syscall(call, fd, pieces, count, offset, 0, flags);
  }
  ++now_calls;
  switch (now) {
    case Now::kAll:
      return ::syscall(call, fd, pieces, count, offset, 0, 0);
    case Now::kHalf:
      piece.iov_len /= 2;
      return ::syscall(call, fd, &piece, 1, offset, 0, 0);
    case Now::kNothing:
      return Fail(EAGAIN);
    case Now::kZero:
      return 0;
    case Now::kUnsupported:
      return Fail(EOPNOTSUPP);
    case Now::kKernel:
      break;
  }
  return ::syscall(call, fd, pieces, count, offset, 0, flags);
}

}  // namespace

// Instead of the C library's.
extern "C" ssize_t preadv2(int fd, const iovec* pieces, int count, off_t offset,
                           int flags) {
  return Move(SYS_preadv2, fd, *pieces, pieces, count, offset, flags);
}

extern "C" ssize_t pwritev2(int fd, const iovec* pieces, int count,
                            off_t offset, int flags) {
  return Move(SYS_pwritev2, fd, *pieces, pieces, count, offset, flags);
}

namespace flare::io {
namespace {

class FileTest : public testing::IoTest {
 protected:
  void SetUp() override {
    IoTest::SetUp();
    folder_ = ::testing::TempDir() + "/file_test_XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }

  void TearDown() override {
    EXPECT_EQ(blocked_workers, 0);
    now = Now::kKernel;
    IoTest::TearDown();
    std::filesystem::remove_all(folder_);
  }

  std::string PathOf(const std::string& name) const {
    return folder_ + '/' + name;
  }

  static File MustOpen(const std::string& path, int flags) {
    auto file = File::Open(path, flags);
    EXPECT_TRUE(file) << file.error();
    return *std::move(file);
  }

  // A file for reading that holds `bytes`. Made on the test's thread, which
  // needs no thread of the pool.
  File FileOf(std::string_view bytes) const {
    File file = MustOpen(PathOf("file"), O_RDWR | O_CREAT | O_TRUNC);
    ExpectOk(file.WriteAt(0, bytes));
    now_calls = 0;
    blocking_calls = 0;
    return file;
  }

  static void ExpectOk(const Status& status) {
    EXPECT_TRUE(status.ok()) << status;
  }

  static std::string Read(const File& file, std::uint64_t offset,
                          std::size_t size) {
    std::string bytes(size, '?');
    const auto got = file.ReadAt(offset, bytes);
    EXPECT_TRUE(got) << got.error();
    return bytes.substr(0, got.value_or(0));
  }

  template <class T>
  static void ExpectError(int code, const std::string& text,
                          const Expected<T>& got) {
    ASSERT_FALSE(got);
    ExpectError(code, text, got.error());
  }
  static void ExpectError(int code, const std::string& text,
                          const Status& status) {
    EXPECT_EQ(status, StatusFromErrno(code, text));
  }

  template <class F>
  static void OnBoth(F f) {
    f();
    Fiber(f).join();
  }

  std::string folder_;
};
FLARE_INSTANTIATE_RUNTIME_TEST(FileTest);

TEST_P(FileTest, ReadsAndWrites) {
  OnBoth([this] {
    const std::string path = PathOf("file");
    File file = MustOpen(path, O_RDWR | O_CREAT | O_TRUNC);
    EXPECT_EQ(file.path(), path);
    EXPECT_EQ(*file.Size(), 0U);
    EXPECT_EQ(Read(file, 0, 10), "");
    ExpectOk(file.WriteAt(0, "begin"));
    ExpectOk(file.WriteAt(100000, CreateBufferSlow("end")));
    EXPECT_EQ(*file.Size(), 100003U);
    EXPECT_EQ(Read(file, 0, 5), "begin");
    EXPECT_EQ(Read(file, 3, 70000), "in" + std::string(69998, '\0'));
    EXPECT_EQ(Read(file, 99999, 100), std::string("\0end", 4));
    EXPECT_EQ(FlattenSlow(*file.ReadAt(100001, 100)), "nd");
    EXPECT_EQ(Read(file, 100003, 1), "");
    EXPECT_EQ(Read(file, 1 << 30, 1), "");
    EXPECT_TRUE(file.ReadAt(1 << 30, 10)->empty());
    EXPECT_EQ(Read(file, 0, 0), "");
    ExpectOk(file.Truncate(2));
    ExpectOk(file.Append("come"));
    ExpectOk(file.Append(Buffer()));
    ExpectOk(file.Truncate(7));
    ExpectOk(file.Append(CreateBufferSlow("!")));
    ExpectOk(file.SyncData());
    ExpectOk(file.Sync());
    EXPECT_EQ(*ReadFile(path), std::string("become\0!", 8));
    const File other = std::move(file);
    EXPECT_EQ(FlattenSlow(*other.ReadAt(2, 4)), "come");
  });
}

// Whatever this file system does.
TEST_P(FileTest, ReadsFromTheDisk) {
  const std::string bytes = testing::Pattern(1 << 20);
  File file = FileOf(bytes);
  ExpectOk(file.Sync());
  EXPECT_EQ(::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED), 0);
  Fiber([&] {
    EXPECT_EQ(Read(file, 5000, 1 << 20), bytes.substr(5000));
    EXPECT_EQ(Read(file, 0, 5000), bytes.substr(0, 5000));
  }).join();
}

TEST_P(FileTest, BytesInMemoryTakeOneSystemCall) {
  const File file = FileOf("in memory");
  now = Now::kAll;
  Fiber([&] {
    EXPECT_EQ(Read(file, 3, 6), "memory");
    EXPECT_EQ(now_calls, 1);
    EXPECT_EQ(Read(file, 3, 60), "memory");  // The end is no reason to wait.
    EXPECT_EQ(Read(file, 9, 60), "");
    EXPECT_EQ(now_calls, 3);
  }).join();
  EXPECT_EQ(blocking_calls, 0);
  EXPECT_EQ(fiber::GetRuntimeStatistics().blocking_threads, 0U);
}

// More would hold the worker for long.
TEST_P(FileTest, WorkersCopyLittle) {
  const std::string bytes = testing::Pattern(1 << 20);
  File file = FileOf(bytes);
  now = Now::kAll;
  Fiber([&] {
    EXPECT_EQ(Read(file, 0, 1 << 20), bytes);
    EXPECT_EQ(now_calls, 1);
    EXPECT_EQ(blocking_calls, 1);
    ExpectOk(file.WriteAt(0, bytes));
    EXPECT_EQ(now_calls, 1);
    EXPECT_EQ(blocking_calls, 2);
  }).join();
}

// With these flags the kernel waits for the disk in any case.
TEST_P(FileTest, SynchronousFilesAreLeftToThePool) {
  const std::string path = FileOf("text").path();
  now = Now::kAll;
  Fiber([&] {
    for (const int flag : {O_SYNC, O_DSYNC}) {
      File file = MustOpen(path, O_RDWR | flag);
      now_calls = 0;
      ExpectOk(file.WriteAt(0, "next"));
      EXPECT_EQ(now_calls, 0);
      EXPECT_EQ(Read(file, 0, 4), "next");
      EXPECT_EQ(now_calls, 1);
    }
    auto direct = File::Open(path, O_RDWR | O_DIRECT);
    if (!direct) return;  // The file system has none.
    now_calls = 0;
    std::array<char, 4> unaligned;
    static_cast<void>(direct->ReadAt(0, unaligned));
    static_cast<void>(direct->WriteAt(0, "same"));
    EXPECT_EQ(now_calls, 0);
  }).join();
}

TEST_P(FileTest, OthersAreReadByThePool) {
  const File file = FileOf("on the disk");
  for (const Now each : {Now::kHalf, Now::kNothing, Now::kZero}) {
    now = each;
    now_calls = 0;
    blocking_calls = 0;
    Fiber([&] { EXPECT_EQ(Read(file, 3, 8), "the disk"); }).join();
    EXPECT_EQ(now_calls, 1);
    EXPECT_EQ(blocking_calls, 1);
  }
}

// The fiber that lets the reader go on may need the reader's worker.
TEST_P(FileTest, AWorkerDoesNotWaitForTheDisk) {
  const File file = FileOf("slow");
  now = Now::kNothing;
  fiber::Event spins;
  disk = &spins;
  std::vector<Fiber> readers;
  for (int i = 0; i != 20; ++i) {
    readers.emplace_back([&] { EXPECT_EQ(Read(file, 0, 4), "slow"); });
  }
  Fiber([&] { spins.Set(); }).join();
  for (Fiber& each : readers) each.join();
  disk = nullptr;
}

TEST_P(FileTest, RemembersThatTheKernelCannotTell) {
  File file = FileOf("text");
  now = Now::kUnsupported;
  Fiber([&] {
    for (int i = 0; i != 3; ++i) {
      EXPECT_EQ(Read(file, 0, 4), "text");
      ExpectOk(file.WriteAt(0, "text"));
    }
  }).join();
  EXPECT_EQ(now_calls, 2);  // One to read, one to write.
  EXPECT_EQ(blocking_calls, 6);
}

TEST_P(FileTest, ThreadsJustBlock) {
  const File file = FileOf("text");
  EXPECT_EQ(Read(file, 0, 4), "text");
  EXPECT_EQ(now_calls, 0);
  EXPECT_EQ(fiber::GetRuntimeStatistics().blocking_threads, 0U);
}

TEST_P(FileTest, WritesWithoutWaiting) {
  for (const Now each : {Now::kAll, Now::kHalf, Now::kNothing}) {
    File file = FileOf("0123456789");
    now = each;
    Fiber([&] {
      ExpectOk(file.WriteAt(2, "two"));
      Buffer pieces = CreateBufferSlow("fi");
      pieces.Append(MakeReferencingBuffer("ve", 2));
      ExpectOk(file.WriteAt(5, pieces));
    }).join();
    EXPECT_EQ(now_calls, 2);
    EXPECT_EQ(blocking_calls, each == Now::kAll ? 0 : 2);
    EXPECT_EQ(*ReadFile(file.path()), "01twofive9");
  }
}

TEST_P(FileTest, InterruptedCallsAreRepeated) {
  File file = FileOf("text");
  now = Now::kNothing;
  OnBoth([&] {
    interrupts = 2;
    EXPECT_EQ(Read(file, 0, 4), "text");
    interrupts = 2;
    ExpectOk(file.WriteAt(0, "text"));
    EXPECT_EQ(interrupts, 0);
  });
}

// More of them than one system call takes.
TEST_P(FileTest, WritesManySlices) {
  Buffer bytes;
  std::string all = testing::Pattern(5000);
  for (char& each : all) bytes.Append(MakeReferencingBuffer(&each, 1));
  // Neighbours in memory, but blocks of their own.
  ASSERT_EQ(bytes.SliceCount(), all.size());
  File file = FileOf("");
  OnBoth([&] {
    ExpectOk(file.WriteAt(1, bytes));
    EXPECT_EQ(Read(file, 1, all.size() + 1), all);
    ExpectOk(file.Truncate(0));
  });
}

TEST_P(FileTest, AppendsStayTogether) {
  File file = FileOf("");
  now = Now::kHalf;  // They don't ask.
  std::vector<Fiber> writers;
  for (char name = 'a'; name != 'i'; ++name) {
    writers.emplace_back([&file, line = std::string(199, name) + '\n'] {
      for (int i = 0; i != 20; ++i) {
        const std::string_view text = line;
        Buffer bytes = CreateBufferSlow(text.substr(0, 150));
        bytes.Append(MakeReferencingBuffer(text.data() + 150, 50));
        ExpectOk(i % 2 == 0 ? file.Append(text) : file.Append(bytes));
      }
    });
  }
  for (Fiber& each : writers) each.join();
  const std::string all = *ReadFile(file.path());
  ASSERT_EQ(all.size(), 8 * 20 * 200U);
  for (std::size_t i = 0; i != all.size(); i += 200) {
    EXPECT_EQ(all.substr(i, 200), std::string(199, all[i]) + '\n');
  }
}

TEST_P(FileTest, Errors) {
  OnBoth([this] {
    const std::string absent = PathOf("absent");
    ExpectError(ENOENT, "can't open '" + absent + "'", File::Open(absent));
    ExpectError(EISDIR, "can't open '" + folder_ + "'",
                File::Open(folder_, O_WRONLY));
    ExpectError(ENOENT, "can't read '" + absent + "'", ReadFile(absent));
    const File folder = MustOpen(folder_, O_RDONLY);
    ExpectError(EISDIR, "can't read '" + folder_ + "'", folder.ReadAt(0, 10));
    File full = MustOpen("/dev/full", O_WRONLY);
    ExpectError(ENOSPC, "can't write '/dev/full'", full.WriteAt(0, "bytes"));

    File file = FileOf("text");
    const std::string name = " '" + file.path() + "'";
    const std::uint64_t far = std::numeric_limits<std::uint64_t>::max();
    ExpectError(EINVAL, "can't read" + name, file.ReadAt(far, 10));
    ExpectError(EINVAL, "can't write" + name, file.WriteAt(far, "x"));
    ExpectError(EINVAL, "can't truncate" + name, file.Truncate(far));
    File reader = MustOpen(file.path(), O_RDONLY);
    ExpectError(EBADF, "can't write" + name, reader.WriteAt(0, "x"));
    EXPECT_EQ(ReadFile(file.path(), 3).error().code(), EFBIG);
    EXPECT_EQ(*ReadFile(file.path(), 4), "text");
  });
}

TEST_P(FileTest, Closed) {
  OnBoth([this] {
    File file = FileOf("text");
    const int fd = file.fd();
    ExpectOk(file.Close());
    EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
    ExpectOk(file.Close());
    EXPECT_EQ(file.fd(), -1);
    const std::string name = " '" + file.path() + "'";
    ExpectError(EBADF, "can't read" + name, file.ReadAt(0, 10));
    ExpectError(EBADF, "can't write" + name, file.WriteAt(0, "x"));
    ExpectError(EBADF, "can't write" + name, file.Append("x"));
    ExpectError(EBADF, "can't sync" + name, file.Sync());
    ExpectError(EBADF, "can't ask the size of" + name, file.Size());
  });
}

TEST_P(FileTest, TheDestructorCloses) {
  OnBoth([this] {
    int fd = -1;
    {
      const File file = FileOf("text");
      fd = file.fd();
      EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
    }
    struct stat now_there;
    struct stat text;
    ASSERT_EQ(::stat(PathOf("file").c_str(), &text), 0);
    // Another test's thread may have the number by now.
    EXPECT_TRUE(::fstat(fd, &now_there) != 0 ||
                now_there.st_ino != text.st_ino);
  });
}

TEST_P(FileTest, WriteFileAtomicallyReplaces) {
  OnBoth([this] {
    const std::string path = PathOf("state");
    ExpectOk(WriteFileAtomically(path, "the first content", 0600));
    struct stat info;
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U);
    const File before = MustOpen(path, O_RDONLY);
    ExpectOk(WriteFileAtomically(path, CreateBufferSlow("new")));
    EXPECT_EQ(*ReadFile(path), "new");
    EXPECT_EQ(Read(before, 0, 100), "the first content");

    EXPECT_EQ(WriteFileAtomically(PathOf("absent/state"), "x").code(), ENOENT);
    const std::string taken = PathOf("folder");
    std::filesystem::create_directory(taken);
    ExpectError(EISDIR, "can't replace '" + taken + "'",
                WriteFileAtomically(taken, "x"));
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"folder", "state"}));
  });
}

}  // namespace
}  // namespace flare::io

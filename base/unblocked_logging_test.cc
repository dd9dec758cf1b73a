#include "flare/base/unblocked_logging.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "flare/base/nonblocking_write.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

// stderr is a pipe from here to the end of the scope.
class StderrPipe {
 public:
  StderrPipe() : before_(::dup(STDERR_FILENO)) {
    int fds[2];
    CHECK_EQ(::pipe2(fds, O_CLOEXEC), 0);
    read_ = fds[0];
    ::dup2(fds[1], STDERR_FILENO);
    ::close(fds[1]);
  }
  ~StderrPipe() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(read_);
  }

  void Fill() {
    while (WriteNonBlocking(STDERR_FILENO, std::string(4096, 'x')) > 0) {
    }
  }

  // Returns the text that has arrived, which may be empty.
  std::string ReadNow() const {
    ::fcntl(read_, F_SETFL, O_NONBLOCK);
    std::string data = ReadOnce();
    ::fcntl(read_, F_SETFL, 0);
    return data;
  }

  // Blocks until `text` has come; returns all up to then.
  std::string ReadUntil(std::string_view text) const {
    std::string data;
    while (data.find(text) == data.npos) data += ReadOnce();
    return data;
  }

 private:
  std::string ReadOnce() const {
    std::string data(1 << 16, '\0');
    const ssize_t n = ::read(read_, data.data(), data.size());
    data.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return data;
  }

  const int before_;
  int read_ = -1;
};

class UnblockedLoggingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FLAGS_logtostderr = true;
    // In a process of its own: no other test's threads.
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    ::signal(SIGPIPE, SIG_IGN);
  }
};

TEST_F(UnblockedLoggingTest, LinesAreWrittenAtOnce) {
  const StderrPipe pipe;
  const UnblockedLogging logging;
  LOG(INFO) << "a line";
  EXPECT_NE(pipe.ReadNow().find("] a line\n"), std::string::npos);
  std::fprintf(stderr, "another %d\n", 1);
  EXPECT_EQ(pipe.ReadNow(), "another 1\n");
}

TEST_F(UnblockedLoggingTest, NobodyWaitsForAFullPipe) {
  StderrPipe pipe;
  std::optional<UnblockedLogging> logging;
  logging.emplace();
  pipe.Fill();
  const std::uint64_t lost_before = LostLogLines();
  const std::string text(1000, 'y');
  std::vector<std::thread> threads;
  for (int i = 0; i != 4; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j != 1000; ++j) LOG(INFO) << i << ' ' << j << ' ' << text;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::uint64_t lost = LostLogLines() - lost_before;
  EXPECT_GT(lost, 2000u);
  EXPECT_LT(lost, 3500u);
  // Now somebody reads, and gets the lines that there was room for, whole and
  // in order. These may be later ones: the writer may take the first off a full
  // queue.
  const std::string all = pipe.ReadUntil("lines of the log were lost");
  EXPECT_NE(all.find(std::to_string(lost) + " lines of the log were lost"),
            std::string::npos);
  std::size_t lines = 0;
  int next[4] = {};
  for (std::size_t at = 0; (at = all.find("] ", at)) != all.npos;) {
    at += 2;
    int thread = 0;
    int number = 0;
    if (std::sscanf(all.c_str() + at, "%d %d ", &thread, &number) != 2) {
      continue;
    }
    EXPECT_EQ(all.compare(all.find('y', at), 1001, text + '\n'), 0);
    EXPECT_LE(next[thread], number);
    next[thread] = number + 1;
    ++lines;
  }
  EXPECT_EQ(lines, 4000 - lost);
  EXPECT_EQ(LostLogLines() - lost_before, lost);
  LOG(INFO) << "as before";
  pipe.ReadUntil("as before");
}

TEST_F(UnblockedLoggingTest, TheEndPutsAllBack) {
  const StderrPipe pipe;
  std::FILE* const before = stderr;
  google::base::Logger* const logger = google::base::GetLogger(0);
  {
    const UnblockedLogging logging;
    EXPECT_NE(stderr, before);
    const UnblockedLogging another;  // Has no effect.
  }
  EXPECT_EQ(stderr, before);
  EXPECT_EQ(google::base::GetLogger(0), logger);
  LOG(INFO) << "after";
  EXPECT_NE(pipe.ReadNow().find("] after\n"), std::string::npos);
}

TEST_F(UnblockedLoggingTest, AForkedChildWritesByItself) {
  const StderrPipe pipe;
  const UnblockedLogging logging;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    LOG(INFO) << "from the child";
    std::_Exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_NE(pipe.ReadNow().find("] from the child\n"), std::string::npos);
}

TEST_F(UnblockedLoggingTest, TheProcessEndsWhileThePipeIsFull) {
  EXPECT_EXIT(
      {
        StderrPipe pipe;
        {
          const UnblockedLogging logging;
          pipe.Fill();
          for (int i = 0; i != 1000; ++i) LOG(INFO) << "nobody reads this";
        }
        LOG(INFO) << "nor that";
        std::exit(3);
      },
      ::testing::ExitedWithCode(3), "");
}

TEST_F(UnblockedLoggingTest, FatalErrorsEndItWhileThePipeIsFull) {
  EXPECT_EXIT(
      {
        StderrPipe pipe;
        const UnblockedLogging logging;
        pipe.Fill();
        LOG(ERROR) << "nobody reads this";
        LOG(FATAL) << "nor that";
      },
      ::testing::KilledBySignal(SIGABRT), "");
}

TEST_F(UnblockedLoggingTest, FatalErrorsAreSeenWithAllBefore) {
  const auto fail = [] {
    const UnblockedLogging logging;
    LOG(ERROR) << "this";
    CHECK_EQ(1 + 1, 3) << "is seen";
  };
  EXPECT_EXIT(fail(), ::testing::KilledBySignal(SIGABRT),
              "this\n.*1 \\+ 1 == 3 .*is seen\n.*stack trace");
}

// A FIFO in the place of glog's file, with a reader that doesn't read. Flags
// and all that follow are of the process that is to end.
int LogToStuckFile() {
  FLAGS_logtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;
  FLAGS_timestamp_in_logfile_name = false;
  google::InitGoogleLogging("test");
  const std::string path =
      ::testing::TempDir() + "/stuck_log." + std::to_string(::getpid());
  if (::mkfifo(path.c_str(), 0600) != 0) return 10;
  if (::open(path.c_str(), O_RDWR | O_CLOEXEC) < 0) return 11;
  google::SetLogDestination(google::INFO, path.c_str());
  {
    const UnblockedLogging logging;
    const std::string text(1000, 'z');
    for (int i = 0; i != 2000; ++i) LOG(INFO) << text;
    google::FlushLogFiles(google::INFO);
    if (LostLogLines() < 500) return 12;
  }
  LOG(INFO) << "after";
  ::unlink(path.c_str());
  return 4;
}

TEST_F(UnblockedLoggingTest, NobodyWaitsForAStuckFile) {
  EXPECT_EXIT(std::exit(LogToStuckFile()), ::testing::ExitedWithCode(4), "");
}

int LogToFile() {
  FLAGS_logtostderr = false;
  google::InitGoogleLogging("test");
  const std::string path =
      ::testing::TempDir() + "/log_file." + std::to_string(::getpid()) + ".";
  FLAGS_timestamp_in_logfile_name = false;
  google::SetLogDestination(google::INFO, path.c_str());
  const UnblockedLogging logging;
  LOG(INFO) << "in the file";
  bool written = false;
  // On a busy machine one flush may give up.
  for (int i = 0; i != 30 && !written; ++i) {
    google::FlushLogFiles(google::INFO);
    std::FILE* const file = std::fopen(path.c_str(), "r");
    if (file == nullptr) continue;
    char buffer[4096];
    const std::string text(buffer, std::fread(buffer, 1, sizeof(buffer), file));
    std::fclose(file);
    written = text.find("] in the file\n") != text.npos;
  }
  ::unlink(path.c_str());
  return written ? 0 : 10;
}

TEST_F(UnblockedLoggingTest, FilesAreWritten) {
  EXPECT_EXIT(std::exit(LogToFile()), ::testing::ExitedWithCode(0), "");
}

// Flushing must not create a file for lines that go to stderr only.
int FlushWithoutFile() {
  google::InitGoogleLogging("test");
  const std::string path =
      ::testing::TempDir() + "/no_log_file." + std::to_string(::getpid()) + ".";
  FLAGS_timestamp_in_logfile_name = false;
  google::SetLogDestination(google::INFO, path.c_str());
  const UnblockedLogging logging;
  LOG(INFO) << "to stderr";
  google::FlushLogFiles(google::INFO);
  return ::access(path.c_str(), F_OK) == 0 ? 10 : 0;
}

TEST_F(UnblockedLoggingTest, NoFileIsMadeOfNothing) {
  EXPECT_EXIT(std::exit(FlushWithoutFile()), ::testing::ExitedWithCode(0),
              "to stderr");
}

}  // namespace
}  // namespace flare

#include "example/proxy/access_log.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/testing/no_threads.h"
#include "flare/io/fd.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::MustParseEndpoint;
using namespace std::literals;

SessionReport SomeReport() {
  SessionReport report;
  report.client = MustParseEndpoint("10.1.2.3:4567");
  report.source = MustParseEndpoint("192.168.0.1:1");
  report.listener = MustParseEndpoint("0.0.0.0:80");
  report.upstream = flare::MakeRefCounted<Upstream>(
      "backend:8080", MustParseEndpoint("127.0.0.1:8080"));
  report.attempts = 2;
  report.end = SessionEnd::kUpstreamAborted;
  report.error = ECONNRESET;
  report.bytes_to_upstream = 123;
  report.bytes_to_client = 45678901234;
  report.accepted_ns = 1'000'000'000;
  report.connected_ns = 1'001'234'567;
  report.ended_ns = 3'500'000'000;
  return report;
}

// As if it had been accepted at 1,700,000,000 s.
std::string LineOf(const SessionReport& report) {
  const auto accepted = std::chrono::system_clock::time_point(1'700'000'000s);
  char line[kMaxAccessLine];
  return std::string(line, FormatAccessLine(report, report.ended_ns,
                                            accepted + 2'500ms, line));
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(AccessLineTest, HasTheDocumentedForm) {
  EXPECT_EQ(
      LineOf(SomeReport()),
      "2023-11-14T22:13:20.000000Z end=upstream-aborted client=10.1.2.3:4567 "
      "source=192.168.0.1:1 listener=0.0.0.0:80 upstream=backend:8080 "
      "attempts=2 connect_ms=1.234 total_ms=2500.000 to_upstream=123 "
      "to_client=45678901234 error=ECONNRESET\n");
}

TEST(AccessLineTest, OfWhatNeverWasConnected) {
  SessionReport report;
  report.client = MustParseEndpoint("[::1]:5");
  report.end = SessionEnd::kOverLimit;
  report.accepted_ns = 5;
  report.ended_ns = 5;
  const std::string line = LineOf(report);
  EXPECT_NE(line.find(" end=over-limit client=[::1]:5 source=- listener=- "
                      "upstream=- attempts=0 connect_ms=- total_ms=0.000 "
                      "to_upstream=0 to_client=0 error=-\n"),
            std::string::npos)
      << line;
}

// Whatever a name holds, a line is one line, and its words are words.
TEST(AccessLineTest, EscapesNames) {
  SessionReport report = SomeReport();
  report.upstream = flare::MakeRefCounted<Upstream>(
      "unix:/a b\nc\\d=\xc3\xa4", MustParseEndpoint("unix:/a"));
  const std::string line = LineOf(report);
  EXPECT_NE(line.find(" upstream=unix:/a\\x20b\\x0ac\\x5cd=\xc3\xa4 "),
            std::string::npos)
      << line;
}

// Be they as long as the kernel lets them be, with nothing but escapes.
TEST(AccessLineTest, NoNameOfASocketCutsIt) {
  const auto odd = MustParseEndpoint("unix:" + std::string(107, '\x01'));
  SessionReport report = SomeReport();
  report.client = report.source = report.listener = odd;
  report.upstream = flare::MakeRefCounted<Upstream>(odd.ToString(), odd);
  report.bytes_to_client = UINT64_MAX;
  report.bytes_to_upstream = UINT64_MAX;
  report.connected_ns = report.ended_ns = INT64_MAX;
  report.error = ESOCKTNOSUPPORT;
  const std::string line = LineOf(report);
  EXPECT_TRUE(
      line.ends_with(" to_client=18446744073709551615 "
                     "error=ESOCKTNOSUPPORT\n"))
      << line;
}

TEST(AccessLineTest, FitsWhateverTheNames) {
  SessionReport report = SomeReport();
  report.upstream = flare::MakeRefCounted<Upstream>(
      std::string(5000, 'x'), MustParseEndpoint("unix:/a"));
  const std::string line = LineOf(report);
  EXPECT_EQ(line.size(), kMaxAccessLine);
  EXPECT_EQ(line.back(), '\n');
}

// A lease on a file. For the kernel it is in the way of this process, too.
class Lease {
 public:
  explicit Lease(const std::string& path)
      : signal_before_(::signal(SIGIO, SIG_IGN)),  // Tells the holder.
        file_(::open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600)),
        is_held_(::fcntl(file_.get(), F_SETLEASE, F_RDLCK) == 0) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    file_.Reset();
    ::signal(SIGIO, signal_before_);
  }

  // False: this file system has none.
  bool is_held() const { return is_held_; }
  // Until somebody wants to write to the file. False: nobody does.
  bool WaitUntilInTheWay() const {
    const auto deadline = flare::ReadSteadyClock() + 60s;
    while (::fcntl(file_.get(), F_GETLEASE) != F_UNLCK) {
      if (flare::ReadSteadyClock() >= deadline) return false;
      std::this_thread::sleep_for(1ms);
    }
    return true;
  }
  void LetGo() const {
    EXPECT_EQ(::fcntl(file_.get(), F_SETLEASE, F_UNLCK), 0);
  }

 private:
  const sighandler_t signal_before_;
  flare::io::UniqueFd file_;
  const bool is_held_;
};

class AccessLogTest : public testing::Test {
 protected:
  AccessLogTest() { std::remove(path_.c_str()); }
  ~AccessLogTest() override {
    std::remove(path_.c_str());
    std::remove(leased_.c_str());
  }

  const std::string path_ =
      testing::TempDir() + "/access_log_test." + std::to_string(::getpid());
  const std::string leased_ = path_ + ".leased";
};

TEST_F(AccessLogTest, WritesOnFlushAndAtTheEnd) {
  {
    AccessLog log;
    log.Write(SomeReport());  // Goes nowhere.
    ASSERT_TRUE(log.Open(path_).ok());
    log.Write(SomeReport());
    log.Flush();
    EXPECT_NE(ReadAll(path_).find("end=upstream-aborted"), std::string::npos);
    log.Write(SomeReport());
  }
  const std::string all = ReadAll(path_);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 2);
}

TEST_F(AccessLogTest, LinesAppearWithoutFlush) {
  AccessLog log;
  ASSERT_TRUE(log.Open(path_).ok());
  log.Write(SomeReport());
  const auto deadline = flare::ReadSteadyClock() + 60s;
  while (ReadAll(path_).empty() && flare::ReadSteadyClock() < deadline) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_NE(ReadAll(path_), "");
}

// The steps of log rotation: rename, then tell the program.
TEST_F(AccessLogTest, OpensTheFileAnew) {
  const std::string renamed = path_ + ".1";
  AccessLog log;
  ASSERT_TRUE(log.Open(path_).ok());
  log.Write(SomeReport());
  ASSERT_EQ(std::rename(path_.c_str(), renamed.c_str()), 0);
  log.Write(SomeReport());
  ASSERT_TRUE(log.Open(path_).ok());
  log.Write(SomeReport());
  log.Flush();
  const std::string before = ReadAll(renamed);
  const std::string after = ReadAll(path_);
  EXPECT_EQ(std::count(before.begin(), before.end(), '\n'), 2);
  EXPECT_EQ(std::count(after.begin(), after.end(), '\n'), 1);
  std::remove(renamed.c_str());
}

TEST_F(AccessLogTest, AFileThatCantBeOpenedChangesNothing) {
  AccessLog log;
  ASSERT_TRUE(log.Open(path_).ok());
  const flare::Status status = log.Open("/no/such/folder/access.log");
  EXPECT_EQ(status.code(), ENOENT);
  EXPECT_EQ(status.message(),
            "can't open the access log '/no/such/folder/access.log': No such "
            "file or directory");
  log.Write(SomeReport());
  log.Flush();
  EXPECT_NE(ReadAll(path_), "");
  ASSERT_TRUE(log.Open("").ok());
  const std::string all = ReadAll(path_);
  log.Write(SomeReport());
  log.Flush();
  EXPECT_EQ(ReadAll(path_), all);
}

// The lines of connections that end meanwhile don't wait.
TEST_F(AccessLogTest, WaitsForTheEndOfALease) {
  {
    const Lease lease(leased_);
    if (!lease.is_held()) GTEST_SKIP() << "no leases in " << leased_;
    AccessLog log;
    ASSERT_TRUE(log.Open(path_).ok());
    std::thread holder([&] {
      EXPECT_TRUE(lease.WaitUntilInTheWay());
      log.Write(SomeReport());
      lease.LetGo();
    });
    const flare::Status status = log.Open(leased_);
    holder.join();
    EXPECT_TRUE(status.ok()) << status;
    log.Write(SomeReport());
  }
  const std::string line = LineOf(SomeReport());
  EXPECT_EQ(ReadAll(path_).size(), line.size());
  EXPECT_EQ(ReadAll(leased_).size(), line.size());
}

TEST_F(AccessLogTest, ALeaseThatIsKeptChangesNothing) {
  {
    const Lease lease(leased_);
    if (!lease.is_held()) GTEST_SKIP() << "no leases in " << leased_;
    AccessLog log;
    ASSERT_TRUE(log.Open(path_).ok());
    const flare::Status status = log.Open(leased_);
    EXPECT_EQ(status.code(), EBUSY);
    EXPECT_TRUE(
        status.message().starts_with("can't open the access log '" + leased_ +
                                     "': another program holds a lease on it "))
        << status.message();
    log.Write(SomeReport());
  }
  EXPECT_NE(ReadAll(path_), "");
  EXPECT_EQ(ReadAll(leased_), "");
}

TEST_F(AccessLogTest, AThreadThatCantBeStartedChangesNothing) {
  AccessLog log;
  {
    const flare::fiber::testing::NoThreads no_threads;
    const flare::Status status = log.Open(path_);
    EXPECT_EQ(status.code(), EAGAIN);
    EXPECT_TRUE(status.message().starts_with(
        "can't start the thread of the access log: "))
        << status.message();
    EXPECT_TRUE(log.Open("").ok());  // Needs none.
  }
  log.Write(SomeReport());  // Goes nowhere.
  ASSERT_TRUE(log.Open(path_).ok());
  log.Write(SomeReport());
  {
    // One is enough for all files.
    const flare::fiber::testing::NoThreads no_threads;
    EXPECT_TRUE(log.Open(path_).ok());
  }
  log.Write(SomeReport());
  log.Flush();
  const std::string all = ReadAll(path_);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 2);
}

TEST_F(AccessLogTest, CountsWhatTheDiskRefuses) {
  AccessLog log;
  ASSERT_TRUE(log.Open("/dev/full").ok());
  log.Write(SomeReport());
  log.Write(SomeReport());
  log.Flush();
  EXPECT_EQ(log.dropped(), 2u);
}

// The system takes a part of a line, where the disk is full or, here, the file
// may grow no further.
TEST_F(AccessLogTest, ALineThatIsCutShortEndsThere) {
  const std::string line = LineOf(SomeReport());
  // A write beyond the limit fails with EFBIG then.
  const auto before_signal = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  AccessLog log;
  ASSERT_TRUE(log.Open(path_).ok());
  const rlimit half{.rlim_cur = line.size() / 2, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &half), 0);
  log.Write(SomeReport());
  log.Flush();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(log.dropped(), 1u);
  log.Write(SomeReport());
  log.Flush();
  log.Write(SomeReport());
  log.Flush();
  ::signal(SIGXFSZ, before_signal);
  const std::string all = ReadAll(path_);
  EXPECT_EQ(all.size(), line.size() / 2 + 1 + 2 * line.size());
  EXPECT_EQ(all[line.size() / 2], '\n');
  EXPECT_EQ(log.dropped(), 1u);
}

TEST_F(AccessLogTest, FifosNeedAReader) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  AccessLog log;
  const flare::Status status = log.Open(path_);
  EXPECT_EQ(status.code(), ENXIO);
  EXPECT_NE(status.message().find("nobody reads this FIFO"), std::string::npos)
      << status.message();
}

// A reader that doesn't read is waited for while nobody waits for us.
TEST_F(AccessLogTest, ReadersThatStoppedReadingLoseLines) {
  constexpr int kLines = 2000;  // More than a FIFO holds.
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const flare::io::UniqueFd reader(
      ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::string read;
  const auto read_what_is_there = [&] {
    char bytes[65'536];
    ssize_t n;
    while ((n = ::read(reader.get(), bytes, sizeof(bytes))) > 0) {
      read.append(bytes, static_cast<std::size_t>(n));
    }
  };
  std::uint64_t dropped = 0;
  {
    AccessLog log;
    ASSERT_TRUE(log.Open(path_).ok());
    for (int i = 0; i != kLines; ++i) log.Write(SomeReport());
    log.Flush();
    dropped = log.dropped();
    EXPECT_GT(dropped, 0u);
    // From now on there is room again.
    read_what_is_there();
    log.Write(SomeReport());
    log.Flush();
    EXPECT_EQ(log.dropped(), dropped);
    for (int i = 0; i != kLines; ++i) log.Write(SomeReport());
  }  // Ends, too.
  read_what_is_there();
  EXPECT_EQ(read.back(), '\n');
  const std::string line = LineOf(SomeReport());
  EXPECT_EQ(read.size() % line.size(), 0u);
  EXPECT_GT(read.size() / line.size(), kLines - dropped);
}

// It always has room in the end, but would take all in some twelve seconds.
TEST_F(AccessLogTest, ReadersThatAreSlowLoseLines) {
  constexpr int kLines = 5000;  // A megabyte.
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const flare::io::UniqueFd reader(
      ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_EQ(::fcntl(reader.get(), F_SETFL, 0), 0);
  std::atomic<bool> slow{true};
  std::string read;
  std::thread taker;
  std::uint64_t dropped = 0;
  {
    AccessLog log;
    ASSERT_TRUE(log.Open(path_).ok());
    for (int i = 0; i != kLines; ++i) log.Write(SomeReport());
    taker = std::thread([&] {
      char bytes[PIPE_BUF];
      ssize_t n;
      while ((n = ::read(reader.get(), bytes, sizeof(bytes))) > 0) {
        read.append(bytes, static_cast<std::size_t>(n));
        if (slow.load()) std::this_thread::sleep_for(50ms);
      }
    });
    log.Flush();
    dropped = log.dropped();
    slow.store(false);
  }
  taker.join();
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(read.back(), '\n');
  EXPECT_EQ(
      static_cast<std::uint64_t>(std::count(read.begin(), read.end(), '\n')),
      kLines - dropped);
}

TEST_F(AccessLogTest, ManyWritersAndRotation) {
  constexpr int kWriters = 4;
  constexpr int kLines = 2000;
  const std::string renamed = path_ + ".1";
  {
    AccessLog log;
    ASSERT_TRUE(log.Open(path_).ok());
    std::vector<std::thread> writers;
    for (int w = 0; w != kWriters; ++w) {
      writers.emplace_back([&log] {
        for (int i = 0; i != kLines; ++i) log.Write(SomeReport());
      });
    }
    for (int i = 0; i != 20; ++i) EXPECT_TRUE(log.Open(path_).ok());
    std::rename(path_.c_str(), renamed.c_str());
    EXPECT_TRUE(log.Open(path_).ok());
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(log.dropped(), 0u);
  }
  const std::string all = ReadAll(renamed) + ReadAll(path_);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), kWriters * kLines);
  EXPECT_EQ(all.size() % (kWriters * kLines), 0u);  // No line in another.
  std::remove(renamed.c_str());
}

}  // namespace
}  // namespace example::proxy

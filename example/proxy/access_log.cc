#include "example/proxy/access_log.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/nonblocking_write.h"
#include "flare/base/string.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"

namespace example::proxy {
namespace {

using flare::Status;
using namespace std::literals;

// Lines are written when they are so many bytes, or the oldest is so old.
constexpr std::size_t kBatchBytes = 64 << 10;
constexpr auto kMaxAge = 1s;
// More aren't kept for a disk that is too slow.
constexpr std::size_t kMaxBytes = 8 << 20;
// While somebody waits for it, the reader of a pipe has so much time to make
// room, and the holder of a lease on the file to let go of it.
constexpr std::int64_t kPatienceNs = 1'000'000'000;
// How often a file with a lease is tried.
constexpr auto kLeaseRetry = 10ms;

// Appends to a piece of memory; the rest that doesn't fit is cut off.
class LineWriter {
 public:
  LineWriter(char* out, std::size_t size) : at_(out), end_(out + size) {}

  void Text(std::string_view text) {
    const std::size_t n = std::min(text.size(), Room());
    at_ = std::copy_n(text.data(), n, at_);
  }

  // A value from outside: it must not look like more than one.
  void Word(std::string_view text) {
    if (text.empty()) Text("-");
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte > ' ' && byte != 0x7f && byte != '\\') {
        Text({&c, 1});
      } else {
        const auto hex = flare::HexOf(byte);
        const char escaped[] = {'\\', 'x', hex[0], hex[1]};
        Text({escaped, sizeof(escaped)});
      }
    }
  }

  // Numbers: short ones.
  template <class... Values>
  void Print(const char* format, Values... values) {
    char text[128];
    const int n = std::snprintf(text, sizeof(text), format, values...);
    if (n > 0) Text({text, std::min<std::size_t>(n, sizeof(text) - 1)});
  }

  char* at() const { return at_; }

 private:
  std::size_t Room() const { return static_cast<std::size_t>(end_ - at_); }

  char* at_;
  char* const end_;
};

void PrintTime(std::chrono::system_clock::time_point time, LineWriter* line) {
  const auto us =
      std::chrono::floor<std::chrono::microseconds>(time.time_since_epoch())
          .count();
  const time_t seconds = us / 1'000'000;
  tm parts;
  gmtime_r(&seconds, &parts);
  line->Print("%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", parts.tm_year + 1900,
              parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min,
              parts.tm_sec, static_cast<int>(us % 1'000'000));
}

// In milliseconds with three decimals.
void PrintMs(const char* name, std::int64_t ns, LineWriter* line) {
  const auto us = static_cast<long long>(std::max<std::int64_t>(ns, 0) / 1000);
  line->Print(" %s=%lld.%03lld", name, us / 1000, us % 1000);
}

// Writing waits for a reader, which may never read.
bool HasReader(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && !S_ISREG(info.st_mode);
}

bool IsSame(int one, int other) {
  struct stat a;
  struct stat b;
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool IsEmpty(int fd) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && info.st_size == 0;
}

// Opens `path`, or leaves the reason in errno. The kernel asks a program that
// holds a lease on the file to let go of it; EWOULDBLOCK: it hasn't in time.
// Those that wait are the fiber that starts or reloads, on a thread meant for
// that (where RunBlocking() has found none, SleepFor() leaves the worker to
// others), the thread that watches for SIGHUP, and a drain that is asked for
// meanwhile. Sessions don't: nothing is locked here.
flare::io::UniqueFd OpenToAppend(const std::string& path) {
  const std::int64_t deadline_ns = flare::NowNs() + kPatienceNs;
  for (;;) {
    // Opens without waiting for a FIFO's reader or for a lease.
    flare::io::UniqueFd file(
        ::open(path.c_str(),
               O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
    if (file || flare::fiber::GetLastError() != EWOULDBLOCK ||
        flare::NowNs() >= deadline_ns) {
      return file;
    }
    flare::this_fiber::SleepFor(kLeaseRetry);
  }
}

// The size of as many lines as a pipe that has room at all takes as a whole.
std::size_t FirstLines(std::string_view lines) {
  static_assert(kMaxAccessLine <= PIPE_BUF);
  if (lines.size() <= PIPE_BUF) return lines.size();
  return lines.rfind('\n', PIPE_BUF - 1) + 1;
}

}  // namespace

std::size_t FormatAccessLine(const SessionReport& report, std::int64_t now_ns,
                             std::chrono::system_clock::time_point now,
                             char* out) {
  // The last byte is the line's end.
  LineWriter line(out, kMaxAccessLine - 1);
  const std::chrono::nanoseconds ago(now_ns - report.accepted_ns);
  PrintTime(now - std::chrono::duration_cast<std::chrono::microseconds>(ago),
            &line);
  line.Text(" end=");
  line.Text(ToString(report.end));
  line.Text(" client=");
  line.Word(report.client.ToString());
  line.Text(" source=");
  line.Word(report.source.ToString());
  line.Text(" listener=");
  line.Word(report.listener.ToString());
  line.Text(" upstream=");
  line.Word(report.upstream ? report.upstream->name() : "");
  line.Print(" attempts=%d", report.attempts);
  if (report.connected_ns != 0) {
    PrintMs("connect_ms", report.connected_ns - report.accepted_ns, &line);
  } else {
    line.Text(" connect_ms=-");
  }
  PrintMs("total_ms", report.ended_ns - report.accepted_ns, &line);
  line.Print(" to_upstream=%llu to_client=%llu error=",
             static_cast<unsigned long long>(report.bytes_to_upstream),
             static_cast<unsigned long long>(report.bytes_to_client));
  const char* const error =
      report.error == 0 ? nullptr : ::strerrorname_np(report.error);
  line.Word(error == nullptr ? "" : error);
  *line.at() = '\n';
  return static_cast<std::size_t>(line.at() + 1 - out);
}

AccessLog::~AccessLog() {
  if (!thread_.joinable()) return;
  {
    flare::ScopedLock guard(lock_);
    end_ = true;
    give_up_ns_ = flare::NowNs() + kPatienceNs;
  }
  filled_.notify_one();
  thread_.join();
}

Status AccessLog::Open(const std::string& path) {
  flare::io::UniqueFd file;
  if (path == "-") {
    file.Reset(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
  } else if (!path.empty()) {
    file = OpenToAppend(path);
  }
  if (!file && !path.empty()) {
    const int error = flare::fiber::GetLastError();
    const std::string failed = "can't open the access log '" + path + "'";
    if (error == EWOULDBLOCK) {
      return Status(EBUSY, failed +
                               ": another program holds a lease on it (a Samba "
                               "or NFS server, say); have it let go of the "
                               "file, or name another one");
    }
    Status status = flare::StatusFromErrno(error, failed);
    if (error != ENXIO) return status;
    return Status(error, status.message() + " (nobody reads this FIFO)");
  }
  flare::ScopedLock guard(lock_);
  if (file && !thread_.joinable()) {
    try {
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error& error) {
      return Status(EAGAIN, "can't start the thread of the access log: "s +
                                error.what() +
                                "; raise the limit of threads (ulimit -u, the "
                                "cgroup's pids.max) or of memory");
    }
  }
  FlushLocked();
  has_reader_ = file && HasReader(file.get());
  if (!file || IsEmpty(file.get()) || !IsSame(file.get(), file_.get())) {
    cut_short_ = false;
  }
  file_ = std::move(file);
  open_ = !path.empty();
  return Status();
}

void AccessLog::Write(const SessionReport& report) {
  char line[kMaxAccessLine];
  const std::size_t size =
      FormatAccessLine(report, flare::NowNs(), flare::ReadSystemClock(), line);
  bool wake = false;
  {
    flare::ScopedLock guard(lock_);
    if (!open_) return;
    if (lines_.size() + size > kMaxBytes) {
      ++dropped_;
      return;
    }
    const std::size_t before = lines_.size();
    lines_.append(line, size);
    put_ += size;
    wake =
        before == 0 || (before < kBatchBytes && lines_.size() >= kBatchBytes);
  }
  if (wake) filled_.notify_one();
}

void AccessLog::Flush() {
  flare::ScopedLock guard(lock_);
  FlushLocked();
}

void AccessLog::FlushLocked() {
  flush_to_ = put_;
  give_up_ns_ = flare::NowNs() + kPatienceNs;
  filled_.notify_one();
  while (writing_ || done_ < *flush_to_) written_.wait(lock_);
  flush_to_.reset();
  give_up_ns_ = 0;
  filled_.notify_one();  // There may be more by now.
}

std::uint64_t AccessLog::dropped() const {
  flare::ScopedLock guard(lock_);
  return dropped_;
}

void AccessLog::Run() {
  std::string lines;
  while (TakeLines(&lines)) {
    std::string why;
    const std::size_t lost = WriteOut(lines, &why);
    const auto lost_lines = std::count(
        lines.end() - static_cast<std::ptrdiff_t>(lost), lines.end(), '\n');
    const std::size_t size = lines.size();
    flare::ClearKeeping(&lines, 4 * kBatchBytes);
    std::uint64_t dropped = 0;
    {
      flare::ScopedLock guard(lock_);
      dropped_ += static_cast<std::uint64_t>(lost_lines);
      dropped = dropped_;
      done_ += size;
      writing_ = false;
    }
    written_.notify_all();
    if (lost == 0) continue;
    if (const auto left_out = throttle_.Admit()) {
      LOG(ERROR) << "Can't write to the access log: " << why << "; " << dropped
                 << " lines are lost so far."
                 << flare::rpc::LogThrottle::Note(*left_out);
    }
  }
}

bool AccessLog::TakeLines(std::string* lines) {
  flare::ScopedLock guard(lock_);
  while (!end_ && (lines_.empty() || (flush_to_ && done_ >= *flush_to_))) {
    filled_.wait(lock_);
  }
  if (lines_.empty()) return false;
  const auto deadline = std::chrono::steady_clock::now() + kMaxAge;
  while (lines_.size() < kBatchBytes && !flush_to_ && !end_ &&
         filled_.wait_until(lock_, deadline) == std::cv_status::no_timeout) {
  }
  // Both strings keep their memory: no allocation once they have grown.
  lines->swap(lines_);
  writing_ = true;
  return true;
}

std::size_t AccessLog::WriteOut(std::string_view lines, std::string* why) {
  bool ends_line = cut_short_;  // Before there may be another one.
  // The first piece is tried in any case: this thread may come late.
  for (bool first = true; !lines.empty(); first = false) {
    if (has_reader_ && ((!first && GivesUp()) || !WaitForReader())) {
      *why = "nobody takes the lines";
      return lines.size();
    }
    std::string_view next = "\n";
    if (!ends_line) {
      next = lines.substr(0, has_reader_ ? FirstLines(lines) : lines.size());
    }
    // Others may have filled the pipe meanwhile, if it is theirs, too.
    ssize_t n = -1;
    if (has_reader_) n = flare::WriteNonBlocking(file_.get(), next);
    if (!has_reader_ || (n < 0 && errno == ENOTSUP)) {
      n = ::write(file_.get(), next.data(), next.size());
    }
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) {
      *why = std::system_category().message(errno);
      return lines.size();
    }
    const auto written = static_cast<std::size_t>(n);
    cut_short_ = next[written - 1] != '\n';
    if (!std::exchange(ends_line, false)) lines.remove_prefix(written);
  }
  return 0;
}

// Until there is room for PIPE_BUF bytes. False: it has taken too long.
bool AccessLog::WaitForReader() {
  constexpr int kLookMs = 100;
  pollfd file{file_.get(), POLLOUT, 0};
  while (::poll(&file, 1, kLookMs) == 0) {
    if (GivesUp()) return false;
  }
  return true;
}

bool AccessLog::GivesUp() {
  flare::ScopedLock guard(lock_);
  return give_up_ns_ != 0 && flare::NowNs() >= give_up_ns_;
}

}  // namespace example::proxy

#include "example/proxy/access_log.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
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

// Appends to a piece of memory; what doesn't fit is cut off.
class LineWriter {
 public:
  LineWriter(char* out, std::size_t size) : at_(out), end_(out + size) {}

  void Text(std::string_view text) {
    const std::size_t n = std::min(text.size(), Room());
    at_ = std::copy_n(text.data(), n, at_);
  }

  // A value from outside: it must not look like more than one.
  void Word(std::string_view text) {
    constexpr char kHex[] = "0123456789abcdef";
    if (text.empty()) Text("-");
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte > ' ' && byte != 0x7f && byte != '\\') {
        Text({&c, 1});
      } else {
        const char escaped[] = {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
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
    std::scoped_lock guard(lock_);
    end_ = true;
  }
  filled_.notify_one();
  thread_.join();
}

Status AccessLog::Open(const std::string& path) {
  flare::io::UniqueFd file;
  if (path == "-") {
    file.Reset(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
  } else if (!path.empty()) {
    file.Reset(
        ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  }
  if (!file && !path.empty()) {
    return flare::StatusFromErrno(errno,
                                  "can't open the access log '" + path + "'");
  }
  Flush();
  std::scoped_lock guard(lock_);
  // Lines that came since Flush() go to the new file, which is as good.
  while (writing_) emptied_.wait(lock_);
  file_ = std::move(file);
  open_ = !path.empty();
  if (open_ && !thread_.joinable()) thread_ = std::thread([this] { Run(); });
  return Status();
}

void AccessLog::Write(const SessionReport& report) {
  char line[kMaxAccessLine];
  const std::size_t size =
      FormatAccessLine(report, flare::NowNs(), flare::ReadSystemClock(), line);
  bool wake = false;
  {
    std::scoped_lock guard(lock_);
    if (!open_) return;
    if (lines_.size() + size > kMaxBytes) {
      ++dropped_;
      return;
    }
    const std::size_t before = lines_.size();
    lines_.append(line, size);
    wake =
        before == 0 || (before < kBatchBytes && lines_.size() >= kBatchBytes);
  }
  if (wake) filled_.notify_one();
}

void AccessLog::Flush() {
  std::unique_lock guard(lock_);
  if (!thread_.joinable()) return;
  hurry_ = true;
  filled_.notify_one();
  while (writing_ || !lines_.empty()) emptied_.wait(guard);
  hurry_ = false;
}

std::uint64_t AccessLog::dropped() const {
  std::scoped_lock guard(lock_);
  return dropped_;
}

void AccessLog::Run() {
  std::string lines;
  while (TakeLines(&lines)) {
    const std::size_t lost = WriteOut(lines);
    const int error = errno;
    const auto lost_lines = std::count(
        lines.end() - static_cast<std::ptrdiff_t>(lost), lines.end(), '\n');
    flare::ClearKeeping(&lines, 4 * kBatchBytes);
    std::uint64_t dropped = 0;
    {
      std::scoped_lock guard(lock_);
      dropped_ += static_cast<std::uint64_t>(lost_lines);
      dropped = dropped_;
      writing_ = false;
    }
    emptied_.notify_all();
    if (lost == 0) continue;
    if (const auto left_out = throttle_.Admit()) {
      LOG(ERROR) << "Can't write to the access log: "
                 << std::system_category().message(error) << "; " << dropped
                 << " lines are lost so far."
                 << flare::rpc::LogThrottle::Note(*left_out);
    }
  }
}

bool AccessLog::TakeLines(std::string* lines) {
  std::unique_lock guard(lock_);
  while (lines_.empty() && !end_) filled_.wait(guard);
  if (lines_.empty()) return false;
  const auto deadline = std::chrono::steady_clock::now() + kMaxAge;
  while (lines_.size() < kBatchBytes && !hurry_ && !end_ &&
         filled_.wait_until(guard, deadline) == std::cv_status::no_timeout) {
  }
  // Both strings keep their memory: no allocation once they have grown.
  lines->swap(lines_);
  writing_ = true;
  return true;
}

std::size_t AccessLog::WriteOut(std::string_view lines) {
  while (!lines.empty()) {
    const ssize_t n = ::write(file_.get(), lines.data(), lines.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return lines.size();
    lines.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

}  // namespace example::proxy

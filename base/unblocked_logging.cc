// glog has no seam in front of its writes to stderr, but all of them, except
// the stack trace of LOG(FATAL), go through the C library's `stderr`, which is
// a variable: it is replaced by a stream whose write function is ours. In front
// of its files there is one, base::Logger.
#include "flare/base/unblocked_logging.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <new>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/log_queue.h"
#include "flare/base/nonblocking_write.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "glog/logging.h"

namespace flare {
namespace {

// How long lines may hold up the end of a process.
constexpr std::int64_t kLogPatienceNs = kNsPerSecond;
// How often a log that has no room is looked at anew, in case that descriptor 2
// has become another one. The kernel tells of room at once.
constexpr int kLookMs = 1000;

// It has neither the threads of the queues nor, maybe, their locks.
std::atomic<bool> in_forked_child{false};

bool InForkedChild() {
  // relaxed: set when the process has one thread.
  return in_forked_child.load(std::memory_order_relaxed);
}

// Returns the piece that may be written at once after poll() has seen room: a
// pipe has it for this many bytes, and takes them as a whole.
std::string_view PieceThatFits(std::string_view text) {
  if (text.size() <= PIPE_BUF) return text;
  const std::size_t end = text.rfind('\n', PIPE_BUF - 1);
  return text.substr(0, end == text.npos ? PIPE_BUF : end + 1);
}

// On the queue's thread: waits for room as long as it takes.
bool WriteWaiting(const LogQueue::Line& line) {
  std::string_view rest = line.text;
  while (!rest.empty()) {
    ssize_t n = WriteNonBlocking(STDERR_FILENO, rest);
    const bool can_not = n < 0 && errno == ENOTSUP;
    if (n < 0 && (can_not || errno == EAGAIN)) {
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      if (::poll(&room, 1, kLookMs) <= 0 || !can_not) continue;
      const std::string_view piece = PieceThatFits(rest);
      n = ::write(STDERR_FILENO, piece.data(), piece.size());
    }
    if (n >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR && errno != EAGAIN) {
      return false;
    }
  }
  return true;
}

bool WriteToFile(const LogQueue::Line& line) {
  if (line.text.empty()) {
    line.logger->Flush();  // Write() would make a file.
  } else {
    line.logger->Write(line.flush, line.time, line.text.data(),
                       line.text.size());
  }
  return true;
}

LogQueue& StderrQueue() {
  static auto* const queue = new LogQueue("stderr", &WriteWaiting);
  return *queue;
}

LogQueue& FileQueue() {
  static auto* const queue = new LogQueue("the log's files", &WriteToFile);
  return *queue;
}

// Behind lines that wait, else at once: so a crash finds all lines written.
void WriteOrKeep(std::string_view text) {
  if (StderrQueue().empty()) {
    const ssize_t n = WriteNonBlocking(STDERR_FILENO, text);
    if (n >= 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EAGAIN && errno != ENOTSUP && errno != EINTR) {
      return StderrQueue().CountLost(text);
    }
  }
  if (text.empty()) return;
  try {
    StderrQueue().Push({.text = std::string(text)});
  } catch (const std::bad_alloc&) {
    StderrQueue().CountLost(text);
  }
}

// In a forked child.
void WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno != EINTR) return;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// The new stream's, which the C library calls under the stream's lock.
ssize_t TakeText(void*, const char* data, std::size_t size) noexcept {
  const int error = errno;
  if (InForkedChild()) {
    WriteAll({data, size});
  } else {
    WriteOrKeep({data, size});
  }
  errno = error;
  return static_cast<ssize_t>(size);  // All of it is dealt with.
}

std::FILE* NewStderr() {
  std::FILE* const stream = ::fopencookie(
      nullptr, "w",
      {.read = nullptr, .write = &TakeText, .seek = nullptr, .close = nullptr});
  if (stream != nullptr) std::setvbuf(stream, nullptr, _IONBF, 0);
  return stream;
}

// In front of the one of glog's loggers that writes a severity's file.
class QueuedLogger final : public google::base::Logger {
 public:
  explicit QueuedLogger(google::base::Logger* file) : file_(file) {}

  google::base::Logger* file() const { return file_; }

  void Write(bool force_flush, std::time_t timestamp, const char* message,
             std::size_t length) override {
    if (InForkedChild()) {
      return file_->Write(force_flush, timestamp, message, length);
    }
    FileQueue().Push({.text = std::string(message, length),
                      .logger = file_,
                      .flush = force_flush,
                      .time = timestamp});
  }

  void Flush() override {
    if (InForkedChild()) return file_->Flush();
    if (!FileQueue().used()) return;
    FileQueue().Push({.logger = file_});
    FileQueue().Flush(kLogPatienceNs);
  }

  google::uint32 LogSize() override { return file_->LogSize(); }

 private:
  google::base::Logger* const file_;
};

// Only glog's own: a logger of the program's is left on the threads that it
// expects. That class has no name outside of glog.
bool IsFileOfGlog(google::base::Logger* logger) {
  return std::string_view(typeid(*logger).name()).find("LogFileObject") !=
         std::string_view::npos;
}

// Hears of a LOG(FATAL) after its text was written, before the stack trace is.
class FatalSink final : public google::LogSink {
 public:
  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char*, std::size_t) override {
    if (severity == google::GLOG_FATAL) fatal_ = true;
  }
  void WaitTillSent() override {
    if (!std::exchange(fatal_, false) || InForkedChild()) return;
    StderrQueue().Flush(kLogPatienceNs);
    FileQueue().Flush(kLogPatienceNs);
    KeepStderrFromBlocking();
  }

 private:
  static thread_local bool fatal_;
};
thread_local bool FatalSink::fatal_ = false;

// exit() writes the content of glog's streams, and waits for a stuck file for
// ever.
void LeaveIfStuck(int status, void*) {
  if (InForkedChild()) return;
  StderrQueue().Flush(kLogPatienceNs);
  if (!FileQueue().Flush(kLogPatienceNs)) ::_exit(status);
}

void PrepareOnce() {
  static const bool prepared = [] {
    pthread_atfork(nullptr, nullptr, [] {
      // relaxed: orders nothing.
      in_forked_child.store(true, std::memory_order_relaxed);
    });
    ::on_exit(&LeaveIfStuck, nullptr);
    return true;
  }();
  static_cast<void>(prepared);
}

struct Installed {
  ThreadMutex lock;
  bool is FLARE_GUARDED_BY(lock) = false;
  std::FILE* before FLARE_GUARDED_BY(lock) = nullptr;
  FatalSink* sink FLARE_GUARDED_BY(lock) = nullptr;
};
Installed& GetInstalled() {
  static auto* const installed = new Installed();
  return *installed;
}

}  // namespace

UnblockedLogging::UnblockedLogging() {
  Installed& installed = GetInstalled();
  ScopedLock guard(installed.lock);
  if (installed.is || InForkedChild()) return;
  static std::FILE* const stream = NewStderr();
  if (stream == nullptr) return;
  PrepareOnce();
  std::fflush(stderr);
  installed.before = std::exchange(stderr, stream);
  for (int i = 0; i != google::NUM_SEVERITIES; ++i) {
    google::base::Logger* const logger = google::base::GetLogger(i);
    if (IsFileOfGlog(logger)) {
      google::base::SetLogger(i, new QueuedLogger(logger));
    }
  }
  installed.sink = new FatalSink();
  google::AddLogSink(installed.sink);
  installed.is = installed_ = true;
}

UnblockedLogging::~UnblockedLogging() {
  if (!installed_ || InForkedChild()) return;
  Installed& installed = GetInstalled();
  ScopedLock guard(installed.lock);
  const bool written = StderrQueue().Stop(kLogPatienceNs);
  if (!FileQueue().Stop(kLogPatienceNs) || !written) return;
  google::RemoveLogSink(installed.sink);
  delete std::exchange(installed.sink, nullptr);
  for (int i = 0; i != google::NUM_SEVERITIES; ++i) {
    auto* const queued =
        dynamic_cast<QueuedLogger*>(google::base::GetLogger(i));
    if (queued == nullptr) continue;
    google::base::SetLogger(i, queued->file());
    delete queued;
  }
  // Other threads may still be writing to ours, so it isn't closed.
  stderr = std::exchange(installed.before, nullptr);
  installed.is = false;
}

std::uint64_t LostLogLines() {
  return StderrQueue().lost() + FileQueue().lost();
}

}  // namespace flare

// Lines on their way to a log that may be slow or stuck: a bounded queue, and a
// thread of its own that writes them. The thread is started by the first line,
// so a queue that isn't used costs nothing.
//
//   LogQueue queue("stderr", [](const LogQueue::Line& line) {
//     return WriteAll(line.text);  // False: the line is lost.
//   });
//   queue.Push({.text = "..."});
//   queue.Flush(1'000'000'000);
//
// Objects live for ever: a thread that is stuck in a write can't be ended.
#ifndef FLARE_BASE_LOG_QUEUE_H_
#define FLARE_BASE_LOG_QUEUE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <deque>
#include <string>
#include <string_view>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace google::base {
class Logger;
}

namespace flare {

class LogQueue {
 public:
  struct Line {
    std::string text = {};  // Several, or a part of one.
    // For glog's files; without text it is only flushed.
    google::base::Logger* logger = nullptr;
    bool flush = false;
    std::time_t time = 0;
  };
  // Called by the thread alone. May block. False: the text is lost.
  using Write = bool (*)(const Line&);

  // `where` names the log in messages. Both must live for ever.
  LogQueue(const char* where, Write write) : where_(where), write_(write) {}

  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // Appends a line, or drops and counts it: if the lines that wait take 1 MiB,
  // or no thread can be started. Any thread; doesn't block.
  void Push(Line line);

  // Has everything been written? Any thread; doesn't block.
  bool empty() const;

  // Has there been a line? Any thread; doesn't block.
  bool used() const;

  // Blocks the thread until all lines of before are written. False: that takes
  // longer than `patience_ns`, or has for somebody else who has waited, and
  // nothing was written since.
  bool Flush(std::int64_t patience_ns);

  // Flushes and ends the thread, which the next line starts again. False: it is
  // stuck and goes on.
  bool Stop(std::int64_t patience_ns);

  // Counts lines that are lost elsewhere. Any thread.
  void CountLost(std::string_view text) noexcept;

  // Lines that were lost, since the start. Any thread; doesn't block.
  std::uint64_t lost() const;

 private:
  bool StartThread() FLARE_REQUIRES(lock_);
  void Run();
  void ReportLost();

  const char* const where_;
  const Write write_;

  mutable ThreadMutex lock_;
  std::condition_variable_any filled_;
  std::condition_variable_any written_;
  std::deque<Line> lines_ FLARE_GUARDED_BY(lock_);
  std::size_t bytes_ FLARE_GUARDED_BY(lock_) = 0;  // The size of lines_.
  int stops_ FLARE_GUARDED_BY(lock_) = 0;       // Callers of Stop() that wait.
  bool stuck_ FLARE_GUARDED_BY(lock_) = false;  // Flush() has waited in vain.
  std::uint64_t pushed_ FLARE_GUARDED_BY(lock_) = 0;
  std::uint64_t done_ FLARE_GUARDED_BY(lock_) = 0;
  bool running_ FLARE_GUARDED_BY(lock_) = false;  // The thread, detached.

  std::atomic<std::uint64_t> lost_{0};
  std::uint64_t reported_ = 0;  // The thread's own part of lost_.
};

}  // namespace flare

#endif  // FLARE_BASE_LOG_QUEUE_H_

// One line for each connection that ended, in a file.
//
//   AccessLog log;
//   if (Status s = log.Open("/var/log/proxy.log"); !s.ok()) return s;
//   log.Write(report);                        // any thread
//   log.Reopen();                             // somebody has renamed the file
//
// Lines are gathered in memory and written by a thread of their own, so that a
// slow disk doesn't hold connections up. If it falls behind by more than 8 MiB,
// lines are dropped, and counted; so are those that the reader of a FIFO or of
// a pipe doesn't take while somebody waits for them to be written.

#ifndef EXAMPLE_PROXY_ACCESS_LOG_H_
#define EXAMPLE_PROXY_ACCESS_LOG_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "example/proxy/proxy.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/io/fd.h"
#include "flare/rpc/log_throttle.h"

namespace example::proxy {

// Writes the line for `report`, with its end, to `out`, which has room for
// kMaxAccessLine bytes; returns its length. `now_ns` and `now` are the same
// moment by NowNs() and by the wall clock. docs/proxy.md has the format.
inline constexpr std::size_t kMaxAccessLine = 2048;
std::size_t FormatAccessLine(const SessionReport& report, std::int64_t now_ns,
                             std::chrono::system_clock::time_point now,
                             char* out);

class AccessLog {
 public:
  AccessLog() = default;
  // Writes the rest. Blocks the thread as Flush() does.
  ~AccessLog();

  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // Lines go to the end of this file from now on ("": nowhere; "-": stdout);
  // those before it to where they belong. Also opens the same file anew. Blocks
  // the thread as Flush() does, and for up to a second where another program
  // holds a lease on the file (fcntl(2)). Errors: the file can't be opened,
  // also a FIFO that nobody reads; EBUSY: there is still such a lease; EAGAIN:
  // the thread that writes can't be started, and nothing else. Lines go where
  // they went then. Open() and Flush() not at the same time.
  flare::Status Open(const std::string& path);

  // Any thread; a copy under a short lock, without system calls except a
  // wake-up once in 64 KiB.
  void Write(const SessionReport& report);

  // Waits until the file has been given all lines so far. Blocks the thread for
  // as long as the file system takes, but at most a second for the reader of a
  // FIFO or a pipe.
  void Flush();

  // Lines that were lost: the disk was too slow, or refused them. Any thread.
  std::uint64_t dropped() const;

 private:
  void Run();
  // Waits for lines, and a while for more. False: there will be none.
  bool TakeLines(std::string* lines);
  // Returns how many bytes were not written, those from an error on, and why.
  std::size_t WriteOut(std::string_view lines, std::string* why);
  bool WaitForReader();
  // True: a waiter for the lines has waited for long enough. A reader that is
  // slow has room for one piece now and then, so each is preceded by this
  // question.
  bool GivesUp();
  // When it returns, the thread doesn't use the file until `lock_` is free.
  void FlushLocked() FLARE_REQUIRES(lock_);

  mutable flare::ThreadMutex lock_;
  std::condition_variable_any filled_;   // For the thread.
  std::condition_variable_any written_;  // For Flush().
  std::string lines_ FLARE_GUARDED_BY(lock_);
  bool open_ FLARE_GUARDED_BY(lock_) = false;
  bool writing_ FLARE_GUARDED_BY(lock_) = false;  // The thread has some lines.
  // Bytes that were ever put into `lines_`, and that the thread is done with.
  std::uint64_t put_ FLARE_GUARDED_BY(lock_) = 0;
  std::uint64_t done_ FLARE_GUARDED_BY(lock_) = 0;
  // Write so many, without waiting for more, and then none, until this is gone.
  std::optional<std::uint64_t> flush_to_ FLARE_GUARDED_BY(lock_);
  bool end_ FLARE_GUARDED_BY(lock_) = false;
  // When the lines' reader has had time enough; 0: it has all of it.
  std::int64_t give_up_ns_ FLARE_GUARDED_BY(lock_) = 0;
  std::uint64_t dropped_ FLARE_GUARDED_BY(lock_) = 0;
  // The thread's, and Open()'s while there is nothing to write.
  flare::io::UniqueFd file_;
  bool has_reader_ = false;  // The file is a FIFO, a pipe, a terminal.
  bool cut_short_ = false;   // The file ends with a part of a line.
  flare::rpc::LogThrottle throttle_{10'000'000'000};
  std::thread thread_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_ACCESS_LOG_H_

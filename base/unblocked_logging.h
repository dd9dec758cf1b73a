// Logging that never waits for the log's reader. glog writes to stderr, and to
// its files, on the thread that logs and under one lock for all: if stderr is a
// pipe that nobody reads, the first thread that finds it full stops, and so do
// all that log after it, workers and the end of the process included.
//
//   int main(int argc, char** argv) {
//     flare::UnblockedLogging logging;   // flare::Start() has one.
//     google::InitGoogleLogging(argv[0]);
//     ...
//   }
//
// While one exists:
//  - Lines for stderr are written at once, without waiting. Those for which
//    there is no room are kept, up to 1 MiB, and written by a thread when there
//    is; further ones are dropped and counted, and a line says how many once
//    the log is read again. That holds for everything that is written to the C
//    library's `stderr`, also by other libraries, but not for std::cerr and
//    std::clog.
//  - glog's files are written by a thread of their own, under the same limits.
//  - LOG(FATAL) gives lines that still wait a second to be written, and glog's
//    later output (the stack trace) doesn't block any more.
// A forked child writes as without one.
//
// Costs nothing where nothing is logged: threads are started by the first line
// that needs one. A line for a pipe or terminal costs four system calls more.
#ifndef FLARE_BASE_UNBLOCKED_LOGGING_H_
#define FLARE_BASE_UNBLOCKED_LOGGING_H_

#include <cstdint>

namespace flare {

class UnblockedLogging {
 public:
  // Does nothing if there is one already, or one before has found its log
  // stuck.
  UnblockedLogging();
  // Gives lines that still wait a second to be written. If that isn't enough
  // they are abandoned, and all goes on as if this still existed: the process
  // can end, where exit() would wait for a stuck file for ever.
  ~UnblockedLogging();

  UnblockedLogging(const UnblockedLogging&) = delete;
  UnblockedLogging& operator=(const UnblockedLogging&) = delete;

 private:
  bool installed_ = false;
};

// Lines that were lost since the process began, for stderr and files together
// (a line for both counts twice). Any thread; doesn't block.
std::uint64_t LostLogLines();

}  // namespace flare

#endif  // FLARE_BASE_UNBLOCKED_LOGGING_H_

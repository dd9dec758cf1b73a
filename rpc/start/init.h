// Where a program starts.
//
//   int Entry(int argc, char** argv) {
//     flare::Server server;
//     ...
//     flare::WaitForQuitSignal();
//     server.Stop();
//     server.Join();
//     return 0;
//   }
//
//   int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
#ifndef FLARE_RPC_START_INIT_H_
#define FLARE_RPC_START_INIT_H_

#include "flare/base/function.h"

namespace flare {

// Parses the command line (rpc/start/command_line.h), applies the overrides of
// init/override_flag.h, initialises glog, keeps logging from waiting for the
// log's reader (base/unblocked_logging.h), has protobuf log there (at most a
// line per second), ignores SIGPIPE, raises the soft limit of open files to the
// hard one, runs the callbacks of init/on_init.h, starts the fiber runtime with
// epoll under it and runs `cb` on a fiber, with the arguments that weren't
// flags. When it returns, all is torn down in reverse order and its value is
// returned.
//
// Blocks the calling thread, which must not be a fiber worker. Once at a time
// in a process. A command line that can't be understood, a file of --flagfile
// that can't be read, and a runtime that can't be started, end in a message on
// stderr and 1: by returning it, except for flags that gflags itself refuses
// (unknown, not a number), where it exits the process. Lines of such a file
// that it passes over are warnings in the log.
int Start(int argc, char** argv, Function<int(int, char**)> cb);

// Blocks the fiber (or thread) until the process is sent SIGINT, SIGQUIT or
// SIGTERM. If the workers are held then, so that the fiber isn't resumed, or
// later, up to the end of Start(), running servers begin to stop by themselves
// (Server::Stop()). From the first call of this or the next function on, these
// signals no longer end the process. A second one (not within 200 ms of the
// first, as process managers tend to send them in pairs) aborts the process
// unless
// --noflare_abort_on_double_quit_signal. Ends the process with 1, and a line
// in the log, if there is no thread or descriptor for this. Only inside
// Start(), and woken only by signals that come before `cb` has returned: a
// fiber that still waits then is abandoned, with an error in the log, as all
// that are suspended when the runtime ends; a plain thread must not wait by
// then, as it would for ever.
void WaitForQuitSignal();

// Has there been such a signal? Doesn't block. Any thread inside Start().
bool CheckForQuitSignal();

}  // namespace flare

#endif  // FLARE_RPC_START_INIT_H_

// Writes to a descriptor of the process's standard output or error, which it
// shares with others: O_NONBLOCK would change the mode for all of them, and a
// plain write waits for as long as nobody reads the pipe behind it.
//
//   const ssize_t n = WriteNonBlocking(STDERR_FILENO, line);
//   if (n < 0 && errno == EAGAIN) ...  // There is no room now.
#ifndef FLARE_BASE_NONBLOCKING_WRITE_H_
#define FLARE_BASE_NONBLOCKING_WRITE_H_

#include <sys/types.h>

#include <string_view>

namespace flare {

// Writes some of `data` and returns how many bytes, or -1 and errno. Never
// waits for a reader; a regular file may wait for its disk. EAGAIN: there is no
// room now. ENOTSUP: this pipe or terminal can't be opened a second time
// (/proc is missing, it belongs to another user, there are no descriptors
// left), so only a blocking write is left. Others: as of write(2). Up to five
// system calls. Any thread; async-signal-safe.
ssize_t WriteNonBlocking(int fd, std::string_view data) noexcept;

// Makes all further writes of this process to stderr non-blocking, also those
// of other libraries by write(2): for a process that is about to die and must
// not hang over its last words. Text beyond the room in the pipe is lost. Other
// processes that share stderr don't notice. Where WriteNonBlocking() has
// ENOTSUP, and for sockets, writes are left as they are if there is room, else
// they go to /dev/null. Any thread; async-signal-safe; keeps errno.
void KeepStderrFromBlocking() noexcept;

}  // namespace flare

#endif  // FLARE_BASE_NONBLOCKING_WRITE_H_

#include "flare/base/nonblocking_write.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <iterator>

namespace flare {
namespace {

enum class Waiting {
  kNever,    // A file, or something else that takes all at once.
  kPerMode,  // A pipe or a terminal: unless its description is non-blocking.
  kSocket,
};

Waiting WaitingOf(int fd) noexcept {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Waiting::kNever;  // write() says why.
  if (S_ISSOCK(info.st_mode)) return Waiting::kSocket;
  const bool waits =
      S_ISFIFO(info.st_mode) || (S_ISCHR(info.st_mode) && ::isatty(fd) == 1);
  return waits ? Waiting::kPerMode : Waiting::kNever;
}

// A description of its own for the pipe or terminal behind `fd`.
int OpenNonBlocking(int fd) noexcept {
  constexpr std::string_view kFolder = "/proc/self/fd/";
  char path[kFolder.size() + 16] = {};
  char* const number = std::copy(kFolder.begin(), kFolder.end(), path);
  std::to_chars(number, std::end(path) - 1, fd);
  return ::open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

}  // namespace

ssize_t WriteNonBlocking(int fd, std::string_view data) noexcept {
  switch (WaitingOf(fd)) {
    case Waiting::kSocket:
      return ::send(fd, data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    case Waiting::kNever:
      return ::write(fd, data.data(), data.size());
    case Waiting::kPerMode:
      break;
  }
  if (const int mode = ::fcntl(fd, F_GETFL);
      mode >= 0 && (mode & O_NONBLOCK) != 0) {
    return ::write(fd, data.data(), data.size());
  }
  const int own = OpenNonBlocking(fd);
  if (own < 0) {
    // A pipe without a reader can't be opened and makes no write wait.
    if (errno == ENXIO) return ::write(fd, data.data(), data.size());
    errno = ENOTSUP;
    return -1;
  }
  const ssize_t n = ::write(own, data.data(), data.size());
  const int error = errno;
  ::close(own);
  errno = error;
  return n;
}

// In a forked child, fibers may have used the errno of this thread from threads
// that the child doesn't have; ThreadSanitizer takes that for a race.
__attribute__((no_sanitize("thread"))) void KeepStderrFromBlocking() noexcept {
  const int error = errno;
  const Waiting waiting = WaitingOf(STDERR_FILENO);
  int instead = -1;
  if (waiting == Waiting::kPerMode) instead = OpenNonBlocking(STDERR_FILENO);
  if (instead < 0 && waiting != Waiting::kNever) {
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&room, 1, 0) == 0) {
      instead = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    }
  }
  if (instead >= 0) {
    ::dup2(instead, STDERR_FILENO);
    ::close(instead);
  }
  errno = error;
}

}  // namespace flare

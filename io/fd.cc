#include "flare/io/fd.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>

namespace flare::io {
namespace {

// Some systems allow a thousand million. Code that closes all descriptors that
// may be open, as in programs that are started by this one, would be at it for
// minutes.
constexpr rlim_t kMostDescriptors = 1 << 20;

}  // namespace

void UniqueFd::Reset(int fd) noexcept {
  if (fd == fd_) return;
  const int old = std::exchange(fd_, fd);
  if (old < 0) return;
  const int saved = errno;
  // It isn't repeated on EINTR: Linux has freed the number by then.
  ::close(old);
  errno = saved;
}

void SignalEventFd(int fd) noexcept {
  const std::uint64_t one = 1;
  ssize_t written;
  do {
    written = ::write(fd, &one, sizeof(one));
  } while (written < 0 && errno == EINTR);
}

std::size_t DescriptorLimit() noexcept {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return limit.rlim_cur;
}

void RaiseDescriptorLimit() noexcept {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::max(limit.rlim_cur,
                            std::min<rlim_t>(limit.rlim_max, kMostDescriptors));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void ReserveDescriptors(std::size_t count) noexcept {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto most = static_cast<int>(std::min<rlim_t>(
      {count, limit.rlim_cur, std::numeric_limits<int>::max()}));
  if (most < 1) return;
  // Anything that needs no file.
  const UniqueFd any(::epoll_create1(EPOLL_CLOEXEC));
  if (!any) return;
  // The table grows to hold this number, and never shrinks.
  const UniqueFd last(::fcntl(any.get(), F_DUPFD_CLOEXEC, most - 1));
}

}  // namespace flare::io

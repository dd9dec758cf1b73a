#include "flare/io/fd.h"

#include <cerrno>

namespace flare::io {

void UniqueFd::Reset(int fd) noexcept {
  if (fd == fd_) return;
  const int old = std::exchange(fd_, fd);
  if (old < 0) return;
  const int saved = errno;
  // Not repeated on EINTR: Linux has freed the number by then.
  ::close(old);
  errno = saved;
}

}  // namespace flare::io

#include "example/proxy/splice_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace example::proxy {

using flare::io::UniqueFd;

std::unique_ptr<SplicePipe> SplicePipe::Open(std::size_t capacity) {
  int fds[2];
  if (::pipe2(fds, O_NONBLOCK | O_CLOEXEC) != 0) return nullptr;
  // Refused to users who have too much in pipes already; then it is smaller.
  static_cast<void>(::fcntl(fds[1], F_SETPIPE_SZ, static_cast<int>(capacity)));
  return std::unique_ptr<SplicePipe>(
      new SplicePipe(UniqueFd(fds[0]), UniqueFd(fds[1]), capacity));
}

SplicePipe::SplicePipe(UniqueFd out, UniqueFd in, std::size_t capacity)
    : out_(std::move(out)), in_(std::move(in)), capacity_(capacity) {}

ssize_t SplicePipe::FillFrom(int source) {
  const ssize_t n = ::splice(source, nullptr, in_.get(), nullptr, capacity_,
                             SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  if (n > 0) size_ += static_cast<std::size_t>(n);
  return n;
}

ssize_t SplicePipe::DrainTo(int sink) {
  const ssize_t n = ::splice(out_.get(), nullptr, sink, nullptr, size_,
                             SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
  if (n > 0) size_ -= static_cast<std::size_t>(n);
  return n;
}

}  // namespace example::proxy

// A pipe through which the kernel moves bytes from one socket to another
// without copying them to us and back (splice(2)).
//
// Pays for long streams only: two more system calls a round than a copy of a
// message needs, and two file descriptors. docs/decisions/0007 has figures.

#ifndef EXAMPLE_PROXY_SPLICE_PIPE_H_
#define EXAMPLE_PROXY_SPLICE_PIPE_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>

#include "flare/io/fd.h"

namespace example::proxy {

// Not thread-safe. Nothing blocks.
class SplicePipe {
 public:
  // Null if there are no descriptors left. It holds up to `capacity` bytes, or
  // fewer: the system limits users' memory in pipes.
  static std::unique_ptr<SplicePipe> Open(std::size_t capacity);

  // Bytes inside.
  std::size_t size() const noexcept { return size_; }

  // Takes the input of `source`, a non-blocking socket. Only while the pipe is
  // empty, so that EAGAIN tells something about the socket. Returns and sets
  // errno like recv(); but little input doesn't mean that this was all.
  ssize_t FillFrom(int source);

  // Gives `sink`, a non-blocking socket, as much as it takes. Returns and sets
  // errno like send(). Raises SIGPIPE if that isn't ignored.
  ssize_t DrainTo(int sink);

 private:
  SplicePipe(flare::io::UniqueFd out, flare::io::UniqueFd in,
             std::size_t capacity);

  const flare::io::UniqueFd out_;
  const flare::io::UniqueFd in_;
  const std::size_t capacity_;
  std::size_t size_ = 0;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_SPLICE_PIPE_H_

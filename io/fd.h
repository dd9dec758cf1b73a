// An owned file descriptor, and the process's table of them.

#ifndef FLARE_IO_FD_H_
#define FLARE_IO_FD_H_

#include <unistd.h>

#include <cstddef>
#include <utility>

namespace flare::io {

// Closes its descriptor on destruction. Move-only. Not thread-safe.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

  // Gives the descriptor away.
  [[nodiscard]] int Release() noexcept { return std::exchange(fd_, -1); }

  // Closes the descriptor held, then holds `fd`. Resetting to the descriptor
  // that is already held does nothing. errno is kept.
  void Reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

// Adds one to an eventfd's counter, which wakes the threads that wait for it.
// If that fails the counter is full, and nobody sleeps. Any thread;
// async-signal-safe, except for errno.
void SignalEventFd(int fd) noexcept;

// Makes the kernel's table of this process's descriptors large enough for
// `count` of them, or as many as the soft limit allows (RLIMIT_NOFILE). Linux
// doubles it when it is full; if the process has threads, the thread that opens
// the descriptor that doesn't fit then sleeps until all CPUs have been through
// the kernel: 8 to 24 ms (docs/decisions/0021-a-large-descriptor-table.md). So
// will the caller, unless this comes before the first thread. Eight bytes of
// kernel memory for each. Costs two system calls where there is room; a failure
// is ignored.
void ReserveDescriptors(std::size_t count) noexcept;

// How many the process may have: its soft limit.
std::size_t DescriptorLimit() noexcept;

// Raises that to the hard limit, or to 2^20 where that allows more.
void RaiseDescriptorLimit() noexcept;

}  // namespace flare::io

#endif  // FLARE_IO_FD_H_

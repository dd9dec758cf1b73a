// An owned file descriptor.

#ifndef FLARE_IO_FD_H_
#define FLARE_IO_FD_H_

#include <unistd.h>

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

  // Closes what is held, then holds `fd`. Resetting to the descriptor that is
  // already held does nothing. errno is kept.
  void Reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

}  // namespace flare::io

#endif  // FLARE_IO_FD_H_

// The file of a Unix socket that this process listens on, to be removed at the
// end.

#ifndef FLARE_IO_SOCKET_FILE_H_
#define FLARE_IO_SOCKET_FILE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "flare/base/endpoint.h"

namespace flare::io {

// The file's path. Empty for other families and for the abstract namespace.
std::string SocketFilePath(const Endpoint& address);

class SocketFile {
 public:
  SocketFile() = default;  // There is none.
  // That of a socket bound to `local`, as it is now. One system call if that
  // has a file.
  explicit SocketFile(const Endpoint& local);
  SocketFile(SocketFile&& other) noexcept
      : path_(std::move(other.path_)),
        device_(other.device_),
        // relaxed: as in Forget().
        inode_(other.inode_.exchange(0, std::memory_order_relaxed)) {}

  // Removes it, unless another file has taken its place. While there still is a
  // socket that listens: then nobody takes the file for one left over and
  // replaces it, maybe with one of the same number. Any thread; once removed it
  // is forgotten.
  void Remove();

  // Leaves the file to another process.
  void Forget() noexcept {
    // relaxed: only the number counts, nothing is read through it.
    inode_.store(0, std::memory_order_relaxed);
  }

 private:
  std::string path_;
  std::uint64_t device_ = 0;
  std::atomic<std::uint64_t> inode_{0};  // 0: there is none (any more).
};

}  // namespace flare::io

#endif  // FLARE_IO_SOCKET_FILE_H_

#include "flare/io/socket_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "flare/fiber/scheduler/fork_guard.h"

namespace flare::io {

std::string SocketFilePath(const Endpoint& address) {
  const std::string_view path = address.path();
  return path.empty() || path.front() == '\0' ? std::string()
                                              : std::string(path);
}

SocketFile::SocketFile(const Endpoint& local) : path_(SocketFilePath(local)) {
  struct stat file;
  if (path_.empty() || ::lstat(path_.c_str(), &file) != 0) return;
  device_ = file.st_dev;
  // relaxed: nobody else knows it yet.
  inode_.store(file.st_ino, std::memory_order_relaxed);
}

void SocketFile::Remove() {
  // relaxed: only one gets it.
  const auto inode = inode_.exchange(0, std::memory_order_relaxed);
  if (inode == 0) return;
  // The file is the parent's.
  if (fiber::IsForkedChild()) [[unlikely]] {
    fiber::DieAsForkedChild();
  }
  struct stat file;
  if (::lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ &&
      file.st_ino == inode) {
    ::unlink(path_.c_str());
  }
}

}  // namespace flare::io

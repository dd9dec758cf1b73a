#include "flare/rpc/socket_activation.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare {
namespace {

constexpr int kFirst = 3;  // Behind stdin, stdout and stderr.

std::string_view Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// Empty: none is left.
std::string_view NextName(std::string_view* names) {
  const std::string_view name = names->substr(0, names->find(':'));
  names->remove_prefix(std::min(name.size() + 1, names->size()));
  return name;
}

Expected<int, Status> Count() {
  const std::string_view text = Variable("LISTEN_FDS");
  const char* const end = text.data() + text.size();
  int count = 0;
  const auto [stopped, error] = std::from_chars(text.data(), end, count);
  if (error == std::errc() && stopped == end && count >= 0 &&
      static_cast<std::size_t>(count) < io::DescriptorLimit()) {
    return count;
  }
  return Status(EINVAL, "LISTEN_FDS is \"" + std::string(text) +
                            "\", not a number of descriptors; is the program "
                            "started by a service manager?");
}

class Activated {
 public:
  Expected<std::vector<io::UniqueFd>, Status> Take(std::string_view name)
      FLARE_EXCLUDES(mutex_) {
    ScopedLock guard(mutex_);
    if (!std::exchange(read_, true)) {
      if (Status status = Read(); !status.ok()) return status;
    }
    const bool any = !sockets_.empty();
    std::vector<io::UniqueFd> taken;
    std::erase_if(sockets_, [&](Socket& socket) {
      if (!name.empty() && socket.name != name) return false;
      taken.push_back(std::move(socket.fd));
      return true;
    });
    if (taken.empty() && any) {
      return Status(ENOENT,
                    "no socket that this process was started for has "
                    "the name \"" +
                        std::string(name) + "\"; they are " +
                        std::string(Variable("LISTEN_FDNAMES")));
    }
    return taken;
  }

 private:
  struct Socket {
    std::string name;
    io::UniqueFd fd;
  };

  Status Read() FLARE_REQUIRES(mutex_) {
    if (Variable("LISTEN_PID") != std::to_string(::getpid())) return Status();
    const auto count = Count();
    if (!count) return count.error();
    std::string_view names = Variable("LISTEN_FDNAMES");
    for (int fd = kFirst; fd < kFirst + *count; ++fd) {
      if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        return StatusFromErrno(errno,
                               "descriptor " + std::to_string(fd) +
                                   " of LISTEN_FDS=" + std::to_string(*count));
      }
      sockets_.push_back({std::string(NextName(&names)), io::UniqueFd(fd)});
    }
    return Status();
  }

  ThreadMutex mutex_;
  bool read_ FLARE_GUARDED_BY(mutex_) = false;
  std::vector<Socket> sockets_ FLARE_GUARDED_BY(mutex_);
};

}  // namespace

Expected<std::vector<io::UniqueFd>, Status> TakeActivatedSockets(
    std::string_view name) {
  static Activated activated;
  return activated.Take(name);
}

}  // namespace flare

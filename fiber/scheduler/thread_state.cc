#include "flare/fiber/scheduler/thread_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

namespace flare::fiber {

bool SleepsInKernel(pid_t thread) noexcept {
  char text[64];
  std::snprintf(text, sizeof(text), "/proc/self/task/%d/stat",
                static_cast<int>(thread));
  const int file = open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  // "123 (its name) S ...": a name has 15 bytes at most.
  const ssize_t length = read(file, text, sizeof(text));
  close(file);
  if (length <= 0) return false;
  const std::string_view read_text(text, static_cast<std::size_t>(length));
  const std::size_t name_end = read_text.rfind(") ");
  if (name_end == std::string_view::npos || name_end + 2 >= read_text.size()) {
    return false;
  }
  const char state = read_text[name_end + 2];
  return state == 'S' || state == 'D';
}

}  // namespace flare::fiber

#include "example/rpc/text_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

#include "flare/io/fd.h"

namespace example {

flare::Expected<std::string, flare::Status> ReadTextFile(
    const std::string& path) {
  const bool is_stdin = path == "-";
  const std::string what = "can't read " + (is_stdin ? "stdin" : path);
  flare::io::UniqueFd file;
  if (!is_stdin) {
    file.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return flare::StatusFromErrno(errno, what);
  }
  std::string text;
  std::array<char, 1 << 14> piece;
  while (true) {
    const ssize_t got =
        read(is_stdin ? STDIN_FILENO : file.get(), piece.data(), piece.size());
    if (got == 0) return text;
    if (got > 0) {
      text.append(piece.data(), static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      return flare::StatusFromErrno(errno, what);
    }
  }
}

}  // namespace example

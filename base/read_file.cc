#include "flare/base/read_file.h"

#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <fstream>

#include "flare/base/status.h"

namespace flare {

Expected<std::string> ReadFile(const std::string& path, std::size_t max_bytes) {
  const std::string failed = "can't read '" + path + "'";
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 1 << 14> piece;
  while (file && text.size() <= max_bytes) {
    file.read(piece.data(), piece.size());
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file && !file.eof()) {  // A folder can be opened.
    return StatusFromErrno(errno != 0 ? errno : EIO, failed);
  }
  if (text.size() > max_bytes) {
    return Status(EFBIG, failed + ": it has more than " +
                             std::to_string(max_bytes >> 10) + " KiB");
  }
  return text;
}

std::string VersionOfFile(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return "";
  return std::to_string(info.st_ino) + ' ' + std::to_string(info.st_size) +
         ' ' + std::to_string(info.st_mtim.tv_sec) + ' ' +
         std::to_string(info.st_mtim.tv_nsec);
}

}  // namespace flare

#include "flare/base/read_file.h"

#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "flare/base/status.h"

namespace flare {
namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string SizeText(std::size_t bytes) {
  return bytes % 1024 == 0 ? std::to_string(bytes / 1024) + " KiB"
                           : std::to_string(bytes) + " bytes";
}

}  // namespace

Expected<std::string> ReadFile(const std::string& path, std::size_t max_bytes) {
  const std::string failed = "can't read '" + path + "'";
  // "e": programs that this one starts don't get it.
  const std::unique_ptr<std::FILE, Closer> file(
      std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) return StatusFromErrno(errno, failed);
  std::string text;
  std::array<char, 1 << 14> piece;
  while (text.size() <= max_bytes) {
    const std::size_t some =
        std::fread(piece.data(), 1, piece.size(), file.get());
    text.append(piece.data(), some);
    if (some == piece.size()) continue;
    // A folder can be opened.
    if (std::ferror(file.get()) != 0) return StatusFromErrno(errno, failed);
    break;
  }
  if (text.size() > max_bytes) {
    return Status(EFBIG, failed + ": it has more than " + SizeText(max_bytes));
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

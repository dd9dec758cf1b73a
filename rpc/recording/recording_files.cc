#include "flare/rpc/recording/recording_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <utility>

#include "flare/rpc/recording/recording_format.h"
#include "flare/rpc/recording/recording_reader.h"

namespace flare {
namespace {

// "20261201T001500.000000Z-4711.calls".
std::string NameAt(std::chrono::system_clock::time_point time) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(
                      time.time_since_epoch())
                      .count();
  const auto seconds = static_cast<std::time_t>(us / 1'000'000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char name[64];
  const std::size_t size =
      std::strftime(name, sizeof(name), "%Y%m%dT%H%M%S", &utc);
  std::snprintf(name + size, sizeof(name) - size, ".%06dZ-%d",
                static_cast<int>(us % 1'000'000), static_cast<int>(getpid()));
  return std::string(name) + std::string(kRecordingSuffix);
}

// 0, or an errno.
int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

RecordingFiles::RecordingFiles(Options options)
    : options_(std::move(options)) {}

Status RecordingFiles::Prepare() {
  const std::string& folder = options_.folder;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return StatusFromErrno(errno, "can't make the folder " + folder);
  }
  struct stat found {};
  if (stat(folder.c_str(), &found) == 0 && !S_ISDIR(found.st_mode)) {
    return StatusFromErrno(ENOTDIR, "can't record calls in " + folder);
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return StatusFromErrno(errno, "can't record calls in " + folder);
  }
  return {};
}

Status RecordingFiles::Write(std::string_view records) {
  if (file_ && room() < records.size() && size_ > kRecordingHeadBytes) {
    file_.Reset();
  }
  if (!file_) {
    if (Status begun = Begin(); !begun.ok()) return begun;
  }
  if (const int error = WriteAll(file_.get(), records); error != 0) {
    // Nothing of a record is left over that a later one would follow.
    if (ftruncate(file_.get(), static_cast<off_t>(size_)) != 0 ||
        lseek(file_.get(), 0, SEEK_END) < 0) {
      file_.Reset();
    }
    return StatusFromErrno(error, "can't write to " + path_);
  }
  size_ += records.size();
  return {};
}

std::size_t RecordingFiles::room() const {
  if (!file_) return options_.bytes_per_file;
  return options_.bytes_per_file - std::min(size_, options_.bytes_per_file);
}

Status RecordingFiles::Begin() {
  auto time = std::chrono::system_clock::now();
  std::string path;
  int fd = -1;
  do {  // Another one of the same microsecond has the name.
    path = options_.folder + '/' + NameAt(time);
    // Requests may be private.
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    time += std::chrono::microseconds(1);
  } while (fd < 0 && errno == EEXIST);
  if (fd < 0) return StatusFromErrno(errno, "can't make " + path);
  io::UniqueFd file(fd);
  const std::string head = EncodeRecordingHead();
  if (const int error = WriteAll(fd, head); error != 0) {
    unlink(path.c_str());
    return StatusFromErrno(error, "can't write to " + path);
  }
  file_ = std::move(file);
  path_ = std::move(path);
  size_ = head.size();
  RemoveOldest();
  return {};
}

void RecordingFiles::RemoveOldest() {
  const auto paths = ListRecordings(options_.folder);
  if (!paths) return;  // The next file's beginning tries again.
  for (std::size_t i = 0; i + options_.max_files < paths->size(); ++i) {
    if ((*paths)[i] != path_) unlink((*paths)[i].c_str());
  }
}

}  // namespace flare

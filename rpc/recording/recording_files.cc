#include "flare/rpc/recording/recording_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

#include "flare/base/string.h"
#include "flare/rpc/recording/recording_format.h"
#include "flare/rpc/recording/recording_reader.h"

namespace flare {
namespace {

using std::chrono::microseconds;

// "20261201T001500.000000Z-4711.calls".
std::string NameAt(microseconds unix_time) {
  return FormatUtc("%Y%m%dT%H%M%S", unix_time) + '-' +
         std::to_string(getpid()) + std::string(kRecordingSuffix);
}

// The time in the name of a recorder's file; nothing: it has another name.
std::optional<microseconds> TimeOf(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  std::tm utc{};
  const char* const rest = strptime(name.c_str(), "%Y%m%dT%H%M%S", &utc);
  if (rest == nullptr) return std::nullopt;
  const std::string_view fraction = rest;  // ".000000Z-4711.calls"
  if (fraction.size() < 9 || fraction[0] != '.' ||
      fraction.substr(7, 2) != "Z-") {
    return std::nullopt;
  }
  const auto us = TryParse<std::uint32_t>(fraction.substr(1, 6));
  if (!us) return std::nullopt;
  return std::chrono::seconds(timegm(&utc)) + microseconds(*us);
}

microseconds UnixTime() {
  return std::chrono::duration_cast<microseconds>(
      std::chrono::system_clock::now().time_since_epoch());
}

bool IsRemoved(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 && found.st_nlink == 0;
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
  const std::string failure = "can't record calls in " + folder;
  struct stat found {};
  if (stat(folder.c_str(), &found) != 0) return StatusFromErrno(errno, failure);
  if (!S_ISDIR(found.st_mode)) return StatusFromErrno(ENOTDIR, failure);
  if (found.st_uid != geteuid()) {
    return Status(EPERM, failure + ": it belongs to user " +
                             std::to_string(found.st_uid) +
                             ", and this process to user " +
                             std::to_string(geteuid()));
  }
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Status(EPERM, failure +
                             ": other users may write there, and calls are "
                             "secrets; chmod go-w helps, or another folder");
  }
  if (access(folder.c_str(), R_OK | W_OK | X_OK) != 0) {
    return StatusFromErrno(errno, failure);
  }
  return {};
}

Status RecordingFiles::Write(std::string_view records) {
  const bool full = room() < records.size() && size_ > kRecordingHeadBytes;
  if (file_ && (full || IsRemoved(file_.get()))) file_.Reset();
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
  auto paths = ListRecordings(options_.folder);
  if (!paths) return paths.error();
  std::erase_if(*paths, [](const std::string& path) { return !TimeOf(path); });
  // Before the new one is made: on a full disk there may be no room before.
  for (std::size_t i = 0; i + options_.max_files <= paths->size(); ++i) {
    unlink((*paths)[i].c_str());
  }
  // Behind all others, also if the clock was set back: those with the first
  // names are removed.
  microseconds time = UnixTime();
  if (!paths->empty()) {
    time = std::max(time, *TimeOf(paths->back()) + microseconds(1));
  }
  std::string path;
  int fd = -1;
  do {  // Another one of the same microsecond has the name.
    path = options_.folder + '/' + NameAt(time);
    // Requests may be private.
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    time += microseconds(1);
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
  return {};
}

}  // namespace flare

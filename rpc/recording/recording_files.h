// The files of a recorder: writes records, begins another file when one is
// full, and removes the oldest ones.
#ifndef FLARE_RPC_RECORDING_RECORDING_FILES_H_
#define FLARE_RPC_RECORDING_RECORDING_FILES_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "flare/base/status.h"
#include "flare/io/fd.h"

namespace flare {

// Not thread-safe. All functions block the thread.
class RecordingFiles {
 public:
  struct Options {
    std::string folder;
    std::size_t bytes_per_file = 0;  // The last record may go beyond it.
    std::size_t max_files = 0;       // At least 1, with those of earlier runs.
  };

  explicit RecordingFiles(Options options);
  RecordingFiles(const RecordingFiles&) = delete;
  RecordingFiles& operator=(const RecordingFiles&) = delete;

  // Makes the folder, for this user only, unless it exists, and finds out
  // whether files can be made there. Fails with an errno; with EPERM if the
  // folder is another user's, or others may write there.
  Status Prepare();

  // Appends `records`, whole ones, to the file; begins one if there is none, or
  // it was removed. They stay together. If that fails the file is as it was
  // before.
  Status Write(std::string_view records);

  // Bytes that the current file still takes before it is full.
  std::size_t room() const;
  // The file that is written to; empty: none has been begun.
  const std::string& path() const { return path_; }

 private:
  Status Begin();

  const Options options_;
  io::UniqueFd file_;
  std::string path_;
  std::size_t size_ = 0;
};

}  // namespace flare

#endif  // FLARE_RPC_RECORDING_RECORDING_FILES_H_

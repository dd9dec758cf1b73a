// Reads recordings of calls.
//
//   auto reader = flare::RecordingReader::Open(path);
//   if (!reader) return Fail(reader.error().message());
//   while (true) {
//     auto call = (*reader)->Next();
//     if (!call) return Fail(call.error().message());
//     if (!*call) break;                            // The end.
//     std::cout << (*call)->method << '\n';
//   }
//   if ((*reader)->cut_off()) ...                   // Its writer was killed.
#ifndef FLARE_RPC_RECORDING_RECORDING_READER_H_
#define FLARE_RPC_RECORDING_RECORDING_READER_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/recording/recorded_call.h"

namespace flare {

// For one thread or fiber at a time. All functions block the thread.
class RecordingReader {
 public:
  // Fails if the file can't be read (the code is an errno), or with EBADMSG if
  // it is no recording. Texts name the file. A file that is cut off within its
  // head has no calls.
  static Expected<std::unique_ptr<RecordingReader>, Status> Open(
      const std::string& path);

  // The next call; nullopt: there are no more. Fails with EBADMSG for a record
  // that is damaged, with its number and place: no later one can be read.
  Expected<std::optional<RecordedCall>, Status> Next();

  // At the end: whether the file ends within a record or its head, or in zeros,
  // as where its writer, or the machine, died. A file may also be written to
  // still.
  bool cut_off() const { return cut_off_; }

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  RecordingReader(std::string path, std::FILE* file)
      : path_(std::move(path)), file_(file) {}

  Status ReadHead();
  // False: the end came first, or the system failed.
  bool Read(std::size_t size, std::string* bytes);
  // Whether nothing but zeros, or nothing, is left to read.
  bool RestIsZero();
  // For Next(): no more calls.
  Expected<std::optional<RecordedCall>, Status> End(bool cut_off);
  Status CannotRead() const;
  Status Damaged(const Status& why) const;

  const std::string path_;
  const std::unique_ptr<std::FILE, CloseFile> file_;
  std::uint64_t records_ = 0;   // Read so far ...
  std::uint64_t position_ = 0;  // ... and their end.
  bool cut_off_ = false;
  std::string bytes_;
};

// The recordings in a folder (names that end in ".calls"), the oldest first.
// Fails with an errno. Blocks the thread.
Expected<std::vector<std::string>, Status> ListRecordings(
    const std::string& folder);

}  // namespace flare

#endif  // FLARE_RPC_RECORDING_RECORDING_READER_H_

#include "flare/rpc/recording/recording_reader.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "flare/rpc/recording/recording_format.h"

namespace flare {

Expected<std::unique_ptr<RecordingReader>, Status> RecordingReader::Open(
    const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return StatusFromErrno(errno, "can't read " + path);
  std::unique_ptr<RecordingReader> reader(new RecordingReader(path, file));
  std::string head;
  if (!reader->Read(kRecordingHeadBytes, &head) && std::ferror(file) != 0) {
    return StatusFromErrno(EIO, "can't read " + path);
  }
  head.resize(kRecordingHeadBytes);
  if (const Status good = CheckRecordingHead(head); !good.ok()) {
    return Status(good.code(), path + ' ' + good.message());
  }
  reader->position_ = kRecordingHeadBytes;
  return reader;
}

Expected<std::optional<RecordedCall>, Status> RecordingReader::Next() {
  const std::optional<RecordedCall> end;
  if (cut_off_ || !Read(kRecordHeadBytes, &bytes_)) {
    cut_off_ = cut_off_ || !bytes_.empty();
    if (std::ferror(file_.get()) == 0) return end;
    return StatusFromErrno(EIO, "can't read " + path_);
  }
  const auto head = DecodeRecordHead(bytes_);
  if (!head) return Unreadable(head.error());
  if (!Read(head->length, &bytes_)) {
    cut_off_ = true;
    if (std::ferror(file_.get()) == 0) return end;
    return StatusFromErrno(EIO, "can't read " + path_);
  }
  auto call = DecodeRecordBody(*head, bytes_);
  if (!call) return Unreadable(call.error());
  ++records_;
  position_ += kRecordHeadBytes + head->length;
  return std::optional<RecordedCall>(*std::move(call));
}

bool RecordingReader::Read(std::size_t size, std::string* bytes) {
  // Piece by piece: a damaged length mustn't take a gigabyte.
  constexpr std::size_t kPiece = 1 << 20;
  bytes->clear();
  while (bytes->size() != size) {
    const std::size_t begin = bytes->size();
    const std::size_t wanted = std::min(size - begin, kPiece);
    bytes->resize(begin + wanted);
    const std::size_t got =
        std::fread(bytes->data() + begin, 1, wanted, file_.get());
    bytes->resize(begin + got);
    if (got != wanted) return false;
  }
  return true;
}

Status RecordingReader::Unreadable(const Status& why) const {
  return Status(why.code(), path_ + ": record " + std::to_string(records_ + 1) +
                                ", at byte " + std::to_string(position_) +
                                ", is damaged: " + why.message());
}

Expected<std::vector<std::string>, Status> ListRecordings(
    const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() == kRecordingSuffix) {
      paths.push_back(entry->path().string());
    }
  }
  if (error) {
    return StatusFromErrno(error.value(), "can't read the folder " + folder);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace flare

#include "flare/rpc/recording/recording_reader.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "flare/rpc/recording/recording_format.h"

namespace flare {
namespace {

// A damaged length mustn't take a gigabyte at once.
constexpr std::size_t kPiece = 1 << 20;

bool IsZero(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == bytes.npos;
}

}  // namespace

Expected<std::unique_ptr<RecordingReader>, Status> RecordingReader::Open(
    const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return StatusFromErrno(errno, "can't read " + path);
  std::unique_ptr<RecordingReader> reader(new RecordingReader(path, file));
  if (Status begun = reader->ReadHead(); !begun.ok()) return begun;
  return reader;
}

Status RecordingReader::ReadHead() {
  static_cast<void>(Read(kRecordingHeadBytes, &bytes_));
  const Status good = CheckRecordingHead(bytes_);
  cut_off_ = !good.ok() && IsCutRecordingHead(bytes_) && RestIsZero();
  if (std::ferror(file_.get()) != 0) return CannotRead();
  position_ = kRecordingHeadBytes;
  if (good.ok() || cut_off_) return {};
  return Status(good.code(), path_ + ' ' + good.message());
}

Expected<std::optional<RecordedCall>, Status> RecordingReader::Next() {
  if (cut_off_) return End(true);
  if (!Read(kRecordHeadBytes, &bytes_)) return End(!bytes_.empty());
  const auto head = DecodeRecordHead(bytes_);
  if (!head) {
    if (IsZero(bytes_) && RestIsZero()) return End(true);
    return Damaged(head.error());
  }
  if (!Read(head->length, &bytes_)) return End(true);
  auto call = DecodeRecordBody(*head, bytes_);
  if (!call) {
    // The file system may have kept a part of it, and zeros for the rest.
    if (!HasRightChecksum(*head, bytes_) && bytes_.back() == '\0' &&
        RestIsZero()) {
      return End(true);
    }
    return Damaged(call.error());
  }
  ++records_;
  position_ += kRecordHeadBytes + head->length;
  return std::optional<RecordedCall>(*std::move(call));
}

Expected<std::optional<RecordedCall>, Status> RecordingReader::End(
    bool cut_off) {
  if (std::ferror(file_.get()) != 0) return CannotRead();
  cut_off_ = cut_off;
  return std::optional<RecordedCall>();
}

bool RecordingReader::Read(std::size_t size, std::string* bytes) {
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

bool RecordingReader::RestIsZero() {
  std::string piece;
  bool more = true;
  while (more) {
    more = Read(kPiece, &piece);
    if (!IsZero(piece)) return false;
  }
  return true;
}

Status RecordingReader::CannotRead() const {
  return StatusFromErrno(EIO, "can't read " + path_);
}

Status RecordingReader::Damaged(const Status& why) const {
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

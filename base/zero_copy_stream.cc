#include "flare/base/zero_copy_stream.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string_view>
#include <utility>

#include "glog/logging.h"

namespace flare {

namespace {

// Protobuf's sizes are ints.
constexpr std::size_t kMaxPiece = std::numeric_limits<int>::max();

}  // namespace

bool BufferInputStream::Next(const void** data, int* size) {
  if (slice_ == end_) return false;
  const std::string_view bytes = (*slice_).substr(offset_, kMaxPiece);
  *data = bytes.data();
  *size = static_cast<int>(bytes.size());
  consumed_ += *size;

  last_slice_ = slice_;
  last_end_ = offset_ + bytes.size();
  offset_ = last_end_;
  if (offset_ == (*slice_).size()) {
    ++slice_;
    offset_ = 0;
  }
  return true;
}

void BufferInputStream::BackUp(int count) {
  DCHECK_GE(count, 0);
  DCHECK_LE(static_cast<std::size_t>(count), last_end_);
  if (count == 0) return;
  slice_ = last_slice_;
  last_end_ -= count;
  offset_ = last_end_;
  consumed_ -= count;
}

bool BufferInputStream::Skip(int count) {
  DCHECK_GE(count, 0);
  while (count > 0) {
    const void* data;
    int size;
    if (!Next(&data, &size)) return false;
    if (size > count) BackUp(size - count);
    count -= size;
  }
  return true;
}

bool BufferOutputStream::Next(void** data, int* size) {
  try {
    Flush();
  } catch (const std::bad_alloc&) {
    return false;  // The library's destructors don't expect exceptions.
  }
  *data = builder_->data();
  *size = static_cast<int>(std::min(builder_->SizeAvailable(), kMaxPiece));
  pending_ = *size;
  return true;
}

void BufferOutputStream::BackUp(int count) {
  DCHECK_GE(count, 0);
  DCHECK_LE(count, pending_);
  pending_ -= count;
}

void BufferOutputStream::Flush() {
  if (pending_ == 0) return;
  // Before it may throw: once only.
  const int written = std::exchange(pending_, 0);
  finished_ += written;
  builder_->MarkWritten(static_cast<std::size_t>(written));
}

}  // namespace flare

#include <algorithm>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"

namespace flare {

namespace {

// From this many bytes on a larger block pays.
constexpr std::size_t kBigWorthwhile = kBigBlockSize / 2;

bool IsBig(const WritableBlock& space) {
  return space.block->capacity == kBigBlockSize - kBlockHeaderSize;
}

}  // namespace

BufferBuilder::~BufferBuilder() {
  if (space_) DisposeOfSpace();
}

void BufferBuilder::DisposeOfSpace() {
  space_.cursor = start_;  // nobody refers to the unsealed part
  if (IsBig(space_)) {
    space_.Drop();
  } else {
    GiveBackHotBlock(HotBlock::kBuild, space_);
  }
}

void BufferBuilder::NextBlock() {
  Seal();
  const std::size_t written = sealed_.size();
  const bool big =
      expected_end_ > written && expected_end_ - written >= kBigWorthwhile;
  DisposeOfSpace();
  space_ = WritableBlock();  // As there may be no memory for another one.
  start_ = nullptr;
  if (big) {
    BufferBlock* block = NewBigBlock();
    space_ = MakeWritable(block, NativeData(block));
  } else {
    // Never the one just given back, unless it has room or can be rewound.
    space_ = TakeHotBlock(HotBlock::kBuild);
  }
  start_ = space_.cursor;
}

void BufferBuilder::AppendSlow(std::string_view bytes) {
  expected_end_ = std::max(expected_end_, ByteSize() + bytes.size());
  while (!bytes.empty()) {
    const std::size_t n = bytes.copy(space_.cursor, SizeAvailable());
    MarkWritten(n);
    bytes.remove_prefix(n);
  }
}

void BufferBuilder::Append(Buffer buffer) {
  if (buffer.size() <= kCopyAtMost) {
    for (std::string_view slice : buffer) Append(slice);
    return;
  }
  Seal();
  sealed_.Append(std::move(buffer));
}

}  // namespace flare

#include "flare/base/read_space.h"

#include <algorithm>
#include <new>
#include <utility>

#include "glog/logging.h"

namespace flare {

ReadSpace::ReadSpace(std::size_t hint)
    : hot_(TakeHotBlock(HotBlock::kRead)), capacity_(hot_.room()) {
  iovecs_[0] = {hot_.cursor, hot_.room()};
  while (capacity_ < hint && big_count_ < kMaxBigBlocks) {
    BufferBlock* block;
    try {
      block = NewBigBlock();
    } catch (const std::bad_alloc&) {
      break;  // It is a hint.
    }
    big_[big_count_++] = block;
    iovecs_[big_count_] = {NativeData(block), block->capacity};
    capacity_ += block->capacity;
  }
}

ReadSpace::~ReadSpace() {
  GiveBackHotBlock(HotBlock::kRead, hot_);
  for (std::size_t i = 0; i < big_count_; ++i) {
    if (big_[i] != nullptr) big_[i]->Deref();
  }
}

Buffer ReadSpace::Commit(std::size_t n) {
  CHECK_LE(n, capacity_) << "Can't commit more than the space holds.";
  Buffer read;
  const std::size_t head = std::min(n, hot_.room());
  if (head) {
    read.AppendSlice(hot_.TakeRef(), hot_.cursor, head);
    hot_.cursor += head;
  }
  std::size_t left = n - head;
  std::size_t used = 0;
  for (; left; ++used) {
    BufferBlock* block = big_[used];
    const std::size_t size = std::min<std::size_t>(left, block->capacity);
    left -= size;
    block->Ref();
    read.AppendSlice(block, NativeData(block), size);
    // The hot block is full. The last one filled is the next to be read to.
    hot_.Drop();
    hot_ = MakeWritable(block, NativeData(block) + size);
    big_[used] = nullptr;  // Also if the next slice can't be made.
  }
  // Those used now belong to slices and to hot_.
  std::copy(big_ + used, big_ + big_count_, big_);
  big_count_ -= used;
  return read;
}

}  // namespace flare

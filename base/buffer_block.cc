// Blocks come from one pool per size and go back to it when their last
// reference is dropped. Each thread keeps two of them hot, partly written, in
// thread-local slots.
//
// Rules:
//  B1  Bytes before a WritableBlock's cursor are never written again, unless
//      the block has a sole owner; bytes from the cursor on are seen by nobody
//      else. So slices of one block may be read while its rest is written.
//  B2  A WritableBlock has one owner: a slot, or the code that took it from
//      there.
//  B3  refs = prepaid + the references of all slices (BufferSlice::refs);
//      prepaid >= 1 as long as somebody owns the WritableBlock.
//  B4  Only the functions marked noinline touch the slots, and none of them
//      can suspend a fiber in between.
//  B5  Reads and writes through a reference happen before the block is used
//      anew: each Deref() releases, and the last one acquires, as does
//      IsSoleOwner().

#include "flare/base/buffer_block.h"

#include <new>
#include <utility>

#include "flare/base/object_pool.h"

namespace flare {
namespace {

// References prepaid at a time: more than slices are usually cut from a block
// before it is used up.
constexpr std::uint32_t kPrepay = 1 << 14;

// kKept: free blocks per thread and per NUMA node.
template <std::size_t kSize, std::size_t kKeptByThread, std::size_t kKeptByNode>
struct NativePool {
  using Pool = PointerPool<
      RawMemoryPolicy<kSize, kBlockHeaderSize, kKeptByThread, kKeptByNode>>;

  static BufferBlock* New(std::uint32_t refs) {
    auto* block = ::new (Pool::Get()) BufferBlock;
    // relaxed: nobody else knows the block yet.
    block->refs.store(refs, std::memory_order_relaxed);
    block->capacity = kSize - kBlockHeaderSize;
    block->destroy = [](BufferBlock* self) { Pool::Put(self); };
    return block;
  }
};

// At most 512 KiB, 512 KiB and 2 MiB per thread; 32, 32 and 64 MiB per node.
using BuildPool = NativePool<kBuildBlockSize, 32, 2048>;
using ReadPool = NativePool<kReadBlockSize, 16, 1024>;
using BigPool = NativePool<kBigBlockSize, 32, 1024>;

WritableBlock NewHotBlock(HotBlock which) {
  BufferBlock* block = which == HotBlock::kBuild ? BuildPool::New(kPrepay)
                                                 : ReadPool::New(kPrepay);
  return MakeWritable(block, NativeData(block), kPrepay);
}

// A WritableBlock at rest; empty if `block` is null.
struct Slot {
  BufferBlock* block;
  char* cursor;
  std::uint32_t prepaid;
};

// Trivial, so that the hot path needs no check for initialisation; AtExit
// empties it when the thread ends.
struct Slots {
  Slot hot[2];
  bool watched;  // AtExit is registered
  bool exited;
};

constinit thread_local Slots slots{};

struct AtExit {
  ~AtExit() {
    slots.exited = true;
    for (Slot& slot : slots.hot) {
      if (slot.block) std::exchange(slot.block, nullptr)->Deref(slot.prepaid);
    }
  }
  void Register() {}
};

// Whether the slots may be filled: not while the thread ends.
bool WatchThreadExit() {
  if (slots.exited) return false;
  static thread_local AtExit at_exit;
  at_exit.Register();
  slots.watched = true;
  return true;
}

}  // namespace

void WritableBlock::Drop() {
  block->Deref(prepaid);
  *this = WritableBlock();
}

void WritableBlock::Prepay() {
  block->Ref(kPrepay);
  prepaid += kPrepay;
}

BufferBlock* NewBigBlock() { return BigPool::New(1); }

[[gnu::noinline]] WritableBlock TakeHotBlock(HotBlock which) {
  Slot& slot = slots.hot[static_cast<int>(which)];
  if (!slot.block) return NewHotBlock(which);
  WritableBlock taken = MakeWritable(slot.block, slot.cursor, slot.prepaid);
  slot.block = nullptr;  // [B2]
  // From the start whenever possible, not just when there is no room: the
  // caches hold the bytes that were written last. [B1]
  if (taken.IsSoleOwner()) taken.Rewind();
  if (taken.room() <
      (which == HotBlock::kBuild ? kMinBuildRoom : kMinReadRoom)) {
    taken.Drop();
    return NewHotBlock(which);
  }
  return taken;
}

[[gnu::noinline]] void GiveBackHotBlockParts(HotBlock which, BufferBlock* block,
                                             char* cursor,
                                             std::uint32_t prepaid) {
  if ((!slots.watched || slots.exited) && !WatchThreadExit()) {
    block->Deref(prepaid);
    return;
  }
  Slot& slot = slots.hot[static_cast<int>(which)];
  if (slot.block) {
    // Another user of this thread was faster: keep the roomier one.
    WritableBlock other = MakeWritable(slot.block, slot.cursor, slot.prepaid);
    if (other.room() >= MakeWritable(block, cursor, prepaid).room()) {
      block->Deref(prepaid);
      return;
    }
    other.Drop();
  }
  slot = {block, cursor, prepaid};  // [B2]
}

}  // namespace flare

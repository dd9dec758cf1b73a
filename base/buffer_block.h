// The memory under a Buffer: reference-counted blocks, and the partly written
// block that each thread keeps hot. For the files of Buffer only; everybody
// else uses buffer.h and read_space.h.

#ifndef FLARE_BASE_BUFFER_BLOCK_H_
#define FLARE_BASE_BUFFER_BLOCK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace flare {

// Some memory and the number of references to it. `destroy` runs, on whatever
// thread that happens, when the last reference is dropped.
struct BufferBlock {
  std::atomic<std::uint32_t> refs;
  std::uint32_t capacity;  // of native blocks: bytes at NativeData()
  void (*destroy)(BufferBlock* self);

  // The caller holds a reference already.
  void Ref(std::uint32_t n = 1) {
    // relaxed: orders nothing, see RefCounted::Ref.
    refs.fetch_add(n, std::memory_order_relaxed);
  }

  void Deref(std::uint32_t n = 1) {
    // acq_rel: the release pairs with the acquire half of the last Deref and
    // with the acquire load in WritableBlock::IsSoleOwner [B5].
    if (refs.fetch_sub(n, std::memory_order_acq_rel) == n) destroy(this);
  }
};

// Sizes of pooled blocks, header included.
//  - build: messages being written. A batch of small replies fits one.
//  - read: for reads of sockets; room for many small requests.
//  - big: the bulk of large messages.
inline constexpr std::size_t kBuildBlockSize = 16 * 1024;
inline constexpr std::size_t kReadBlockSize = 32 * 1024;
inline constexpr std::size_t kBigBlockSize = 64 * 1024;

// Bytes before the data of a native (pooled) block.
inline constexpr std::size_t kBlockHeaderSize = 64;
static_assert(sizeof(BufferBlock) <= kBlockHeaderSize);

inline char* NativeData(BufferBlock* block) {
  return reinterpret_cast<char*>(block) + kBlockHeaderSize;
}

// A native block whose bytes from `cursor` to `end` were given to nobody yet,
// and references taken in advance for the slices to be cut from it: taking a
// reference for a slice is then a plain decrement of `prepaid`. At least one
// prepaid reference keeps the block alive. A plain value with one owner at a
// time, which must dispose of it (Drop, or GiveBackHotBlock).
struct WritableBlock {
  BufferBlock* block = nullptr;
  char* cursor = nullptr;
  char* end = nullptr;
  std::uint32_t prepaid = 0;

  std::size_t room() const { return static_cast<std::size_t>(end - cursor); }
  explicit operator bool() const { return block != nullptr; }

  // A reference for one more slice; the caller owns it.
  BufferBlock* TakeRef() {
    if (prepaid == 1) Prepay();
    --prepaid;
    return block;
  }

  // Whether no slice refers to the block any more, so that it may be written
  // again from its start.
  bool IsSoleOwner() const {
    // acquire: pairs with the release in BufferBlock::Deref [B5].
    return block->refs.load(std::memory_order_acquire) == prepaid;
  }

  // Back to the start of the block. Needs IsSoleOwner().
  void Rewind() { cursor = NativeData(block); }

  // Gives the prepaid references back and forgets the block.
  void Drop();

 private:
  void Prepay();
};

// A native block of kBigBlockSize with one reference, the caller's.
BufferBlock* NewBigBlock();

// The part of `block` from `cursor` on, to be written to. Takes over
// `prepaid` references from the caller.
inline WritableBlock MakeWritable(BufferBlock* block, char* cursor,
                                  std::uint32_t prepaid = 1) {
  return {block, cursor, NativeData(block) + block->capacity, prepaid};
}

// Which of a thread's two hot blocks.
enum class HotBlock : std::uint8_t { kBuild, kRead };

// A message started in a build block, or a read, finds at least this room.
inline constexpr std::size_t kMinBuildRoom = 1024;
inline constexpr std::size_t kMinReadRoom = 8 * 1024;

// Takes this thread's hot block: it goes on where the last user on this
// thread stopped, or from its start if nothing of it is in use any more.
// The result has the room promised above. It belongs to the caller, who may
// move to another thread with it.
WritableBlock TakeHotBlock(HotBlock which);

// Does as GiveBackHotBlock, with the parts in registers: copying the struct
// would load, in one piece, values that were just stored in several, and stall.
void GiveBackHotBlockParts(HotBlock which, BufferBlock* block, char* cursor,
                           std::uint32_t prepaid);

// Makes `block` the hot block of the calling thread, unless that has a better
// one by now.
inline void GiveBackHotBlock(HotBlock which, const WritableBlock& block) {
  GiveBackHotBlockParts(which, block.block, block.cursor, block.prepaid);
}

}  // namespace flare

#endif  // FLARE_BASE_BUFFER_BLOCK_H_

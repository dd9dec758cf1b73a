// The queue between the writers of a connection and its flusher: any number of
// producers, one consumer, no lock.
//
//   if (list.Push(node) == OutputList::PushResult::kBecomeFlusher) { submit }
//   ...
//   the flusher:  while (auto* n = list.TakeAll().nodes) ...;  list.Release()
//
// The flusher is a role, not a thread: a writer that pushes onto a list without
// one must see to it that a flusher runs, and the code that runs as the flusher
// keeps the role until Release() says that it gave it up. See output_list.cc
// for the states and their rules.

#ifndef FLARE_IO_OUTPUT_LIST_H_
#define FLARE_IO_OUTPUT_LIST_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "flare/base/buffer.h"
#include "flare/base/cpu.h"

namespace flare::io {

// One Write(). Pooled: Make() and Free() call the general allocator only until
// the pool is warm. A cache line, so that the node that one writer fills in
// isn't taken from another one, which has the next node.
struct alignas(kCacheLine) OutputNode {
  OutputNode* next = nullptr;
  Buffer data;
  bool last = false;  // Nothing may be sent after it.

  static OutputNode* Make(Buffer&& data, bool last = false);
  static void Free(OutputNode* node) noexcept;
  // Along `next`. Returns the bytes that they count as, with kWriteCharge each
  // but the last one.
  static std::size_t FreeAll(OutputNode* first) noexcept;
};

// The memory that one Write() takes besides its bytes, with the usual one
// slice. Counted as output, or a connection with many short ones that wait
// would take several times its limit.
inline constexpr std::size_t kWriteCharge =
    sizeof(OutputNode) + sizeof(BufferSlice);

class OutputList {
 public:
  enum class PushResult {
    kQueued,         // A flusher is there and will see it.
    kBecomeFlusher,  // The caller has got the flusher's role.
    kClosed,         // Refused: the node is still the caller's.
  };
  enum class ReleaseResult {
    kReleased,  // The role is given up: touch nothing any more.
    kNotEmpty,  // Still the flusher: there are new nodes.
    kClosed,    // The list was closed: this was the last flusher.
  };
  struct Taken {
    OutputNode* nodes;  // Oldest first; nullptr: none.
    std::size_t count;  // Their number.
    bool closed;
  };
  struct Closed {
    OutputNode* nodes;  // The nodes that nobody will send, in no useful order.
    bool flusher;       // Somebody has the role, or had it to the end.
  };

  // With `held`, the list starts with the flusher's role taken, by its owner.
  explicit OutputList(bool held = false);
  ~OutputList();
  OutputList(const OutputList&) = delete;
  OutputList& operator=(const OutputList&) = delete;

  // Any thread. Lock-free.
  [[nodiscard]] PushResult Push(OutputNode* node) noexcept;

  // The flusher only.
  [[nodiscard]] Taken TakeAll() noexcept;
  [[nodiscard]] ReleaseResult Release() noexcept;

  // seq_cst, as Close() is.
  bool closed() const noexcept {
    // seq_cst: pairs with the exchange in Close [OL4].
    return head_.load(std::memory_order_seq_cst) == End();
  }

  // Ends the list: all later pushes are refused. By any thread, once; and by
  // the flusher, which is the last one then.
  [[nodiscard]] Closed Close() noexcept;

 private:
  // Two addresses at which there is no node.
  static OutputNode* Busy() noexcept {
    return reinterpret_cast<OutputNode*>(std::uintptr_t{1});
  }
  static OutputNode* End() noexcept {
    return reinterpret_cast<OutputNode*>(std::uintptr_t{2});
  }

  std::atomic<OutputNode*> head_;
};

}  // namespace flare::io

#endif  // FLARE_IO_OUTPUT_LIST_H_

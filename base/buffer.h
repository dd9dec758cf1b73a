// Buffer: bytes that are cut, joined and shared without being copied.
//
//   BufferBuilder builder;
//   builder.Append("head");
//   builder.Append(std::move(body));        // a Buffer: linked, not copied
//   Buffer message = builder.DestructiveGet();
//
//   Buffer first = message.Cut(4);          // the first four bytes
//   message.Skip(2);
//   for (std::string_view slice : message) Use(slice);
//
// From a string: CreateBufferSlow(view) copies, MakeForeignBuffer(std::move(s))
// mostly doesn't; FlattenSlow(buffer) makes a string.
//
// A Buffer is a chain of slices; each slice refers to part of a
// reference-counted block of memory. Copying a Buffer shares its blocks; their
// bytes are never changed again once they are in a Buffer. Slices that follow
// each other in one block are merged when they are joined, so messages built
// one after another by a worker leave in one piece.
//
// Thread safety: one object is used by one thread (fiber) at a time; Buffers
// that share blocks may be used by different threads. Nothing here blocks or
// suspends. Memory comes from per-thread pools: in steady state no operation
// on small messages calls the general allocator.

#ifndef FLARE_BASE_BUFFER_H_
#define FLARE_BASE_BUFFER_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "flare/base/buffer_block.h"
#include "flare/base/function.h"
#include "glog/logging.h"

namespace flare {

// One link of a Buffer; never empty. Owns references to its block: one, and
// maybe more, which it gets when slices are joined and gives away when others
// are cut off it, so that most of that leaves the shared count alone.
struct BufferSlice {
  BufferSlice* next;
  BufferBlock* block;
  const char* data;
  std::size_t size;
  std::uint32_t refs;
};

class Buffer {
 public:
  class const_iterator;

  Buffer() noexcept = default;
  // Shares the blocks; O(slices).
  Buffer(const Buffer& other) { Append(other); }
  Buffer(Buffer&& other) noexcept
      : head_(std::exchange(other.head_, nullptr)),
        tail_(std::exchange(other.tail_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(const Buffer& other) {
    Buffer(other).Swap(*this);
    return *this;
  }
  // Inlined: mostly there is nothing to free.
  [[gnu::always_inline]] Buffer& operator=(Buffer&& other) noexcept {
    BufferSlice* const head = std::exchange(other.head_, nullptr);
    BufferSlice* const tail = other.tail_;
    const std::size_t size = std::exchange(other.size_, 0);
    if (head_) FreeSlices();
    head_ = head;
    tail_ = tail;
    size_ = size;
    return *this;
  }
  ~Buffer() {
    if (head_) FreeSlices();
  }

  // Bytes in total.
  std::size_t size() const noexcept { return size_; }
  std::size_t ByteSize() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  bool Empty() const noexcept { return size_ == 0; }

  // Drops all bytes.
  void Clear() noexcept {
    if (head_) FreeSlices();
  }
  void Swap(Buffer& other) noexcept {
    std::swap(head_, other.head_);
    std::swap(tail_, other.tail_);
    std::swap(size_, other.size_);
  }

  // Moves the bytes of `other` behind these; O(1). Appending a Buffer to
  // itself is an error.
  void Append(Buffer&& other) {
    if (!other.head_) return;
    if (!head_) {
      Swap(other);
    } else {
      Link(other);
    }
  }
  // Shares the bytes of `other` (which may be this very Buffer); O(slices).
  void Append(const Buffer& other);
  // Copies `bytes`. A series of these is cheaper through a BufferBuilder.
  void Append(std::string_view bytes);

  // Removes the first `n` bytes and returns them. Needs `n` <= size().
  // O(slices touched), no byte is copied.
  [[nodiscard]] Buffer Cut(std::size_t n);
  // Removes the first `n` bytes. Needs `n` <= size().
  void Skip(std::size_t n);

  // The first slice; empty if the Buffer is. Valid until the Buffer changes.
  std::string_view FirstContiguous() const noexcept {
    return head_ ? std::string_view(head_->data, head_->size)
                 : std::string_view();
  }

  // Copies up to `n` bytes from `offset` on to `out`, without consuming them;
  // returns how many there were.
  std::size_t CopyTo(void* out, std::size_t n, std::size_t offset = 0) const;

  // The first `n` bytes (or all, if there are fewer) in one piece: where they
  // are, if they lie in the first slice, otherwise copied to `scratch`, which
  // has room for `n` bytes. Valid until the Buffer or `scratch` changes.
  std::string_view Peek(std::size_t n, char* scratch) const {
    if (head_ && head_->size >= n) return {head_->data, n};
    return {scratch, CopyTo(scratch, n)};
  }

  // Describes the bytes from `skip` on for writev, in at most `max` pieces;
  // returns the number of pieces. The bytes live as long as they are in this
  // Buffer (or another one shares them).
  std::size_t FillIovecs(struct iovec* out, std::size_t max,
                         std::size_t skip = 0) const;

  // Copies the bytes together if they lie scattered in many blocks that hold
  // little of them. For a Buffer that is kept and grows by small pieces, such
  // as the beginning of a message whose rest trickles in: afterwards it keeps
  // at most one block (up to 64 KiB) per 4 KiB of its bytes, and 16 more.
  // Looks at each slice; returns how many there are then.
  std::size_t CompactIfSparse();

  // Iteration over the slices, as std::string_view; none is empty.
  const_iterator begin() const noexcept;
  const_iterator end() const noexcept;
  std::size_t SliceCount() const noexcept;

 private:
  friend class BufferBuilder;
  friend class ReadSpace;
  friend Buffer MakeForeignBuffer(std::string&& bytes);
  friend Buffer MakeReferencingBuffer(const void* data, std::size_t size,
                                      Function<void()> completion);

  // Appends one slice; takes over the caller's reference to `block`.
  void AppendSlice(BufferBlock* block, const char* data, std::size_t size);
  // Appends `other`; both have slices.
  void Link(Buffer& other);
  void FreeSlices() noexcept;

  BufferSlice* head_ = nullptr;
  BufferSlice* tail_ = nullptr;  // meaningful only while head_ is set
  std::size_t size_ = 0;
};

// CompactIfSparse() for a Buffer that grows without a known limit, behind each
// append: it looks again only after as many of them as there were slices, so
// that an append costs the same however large the Buffer is. If each brings one
// block, that keeps at most one per 2 KiB of its bytes, and 33 more.
class PacedCompaction {
 public:
  void AfterAppend(Buffer* buffer) {
    // It may have been emptied since the last look.
    left_ = std::min(left_, 16 + buffer->size() / 4096);
    if (left_ == 0) {
      left_ = buffer->CompactIfSparse();
    } else {
      --left_;
    }
  }

 private:
  std::size_t left_ = 0;  // Appends until the next look.
};

class Buffer::const_iterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = std::string_view;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = std::string_view;

  const_iterator() = default;
  explicit const_iterator(const BufferSlice* slice) : slice_(slice) {}

  std::string_view operator*() const { return {slice_->data, slice_->size}; }
  const_iterator& operator++() {
    slice_ = slice_->next;
    return *this;
  }
  const_iterator operator++(int) {
    const_iterator old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const_iterator a, const_iterator b) = default;

 private:
  const BufferSlice* slice_ = nullptr;
};

inline Buffer::const_iterator Buffer::begin() const noexcept {
  return const_iterator(head_);
}
inline Buffer::const_iterator Buffer::end() const noexcept {
  return const_iterator();
}

// Writes a Buffer from its start to its end. While it lives it holds the
// calling thread's hot block, so build one message at a time and let the
// builder go soon; a second builder beside it works, with a block of its own.
// It may be used, and destroyed, on another thread than it was made on.
class BufferBuilder {
 public:
  // The most that Reserve() gives.
  static constexpr std::size_t kMaxReserve = 1024;
  // Buffers of up to this size are copied rather than linked.
  static constexpr std::size_t kCopyAtMost = 256;

  BufferBuilder()
      : space_(TakeHotBlock(HotBlock::kBuild)), start_(space_.cursor) {}
  ~BufferBuilder();
  BufferBuilder(const BufferBuilder&) = delete;
  BufferBuilder& operator=(const BufferBuilder&) = delete;

  // Where the next bytes go; SizeAvailable() (never zero) of them fit. Write
  // there, then call MarkWritten. Invalidated by every other member.
  char* data() const noexcept { return space_.cursor; }
  std::size_t SizeAvailable() const noexcept { return space_.room(); }
  // `n` bytes were written at data(). Needs `n` <= SizeAvailable().
  void MarkWritten(std::size_t n) {
    DCHECK_LE(n, SizeAvailable());
    space_.cursor += n;
    if (space_.cursor == space_.end) NextBlock();
  }

  // As data(), with room for `n` (<= kMaxReserve) bytes.
  [[nodiscard]] char* DataWithRoom(std::size_t n) {
    DCHECK_LE(n, kMaxReserve);
    if (n > SizeAvailable()) NextBlock();
    return data();
  }

  // `n` (<= kMaxReserve) bytes in one piece that count as written and that the
  // caller fills in later, at the latest before DestructiveGet().
  [[nodiscard]] char* Reserve(std::size_t n) {
    char* const reserved = DataWithRoom(n);
    MarkWritten(n);
    return reserved;
  }

  // Copies `bytes`.
  void Append(std::string_view bytes) {
    if (bytes.size() < SizeAvailable()) {
      bytes.copy(space_.cursor, bytes.size());
      space_.cursor += bytes.size();
    } else {
      AppendSlow(bytes);
    }
  }
  void Append(const void* bytes, std::size_t n) {
    Append(std::string_view(static_cast<const char*>(bytes), n));
  }
  void Append(char c) { Append(std::string_view(&c, 1)); }
  // Links `buffer`, or copies it if it is short.
  void Append(Buffer buffer);
  // Copies several strings, or values that convert to std::string_view.
  template <class... Pieces>
  requires(sizeof...(Pieces) > 1 &&
           (std::is_convertible_v<const Pieces&, std::string_view> &&
            ...)) void Append(const Pieces&... pieces) {
    (Append(std::string_view(pieces)), ...);
  }

  // About `n` more bytes will be written: if they are many, they go to larger
  // blocks. Never needed for correctness.
  void ExpectBytes(std::size_t n) { expected_end_ = ByteSize() + n; }

  // Bytes written so far.
  std::size_t ByteSize() const noexcept {
    return sealed_.size() + static_cast<std::size_t>(space_.cursor - start_);
  }

  // Everything written so far; the builder is then empty and may be used on.
  [[nodiscard]] Buffer DestructiveGet() {
    Seal();
    expected_end_ = 0;
    return std::move(sealed_);
  }

 private:
  // Turns the bytes from start_ to the cursor into a slice of sealed_.
  void Seal() {
    if (space_.cursor == start_) return;
    sealed_.AppendSlice(space_.TakeRef(), start_,
                        static_cast<std::size_t>(space_.cursor - start_));
    start_ = space_.cursor;
  }
  // Goes on in another block.
  void NextBlock();
  void AppendSlow(std::string_view bytes);
  // Gives the block up, with the bytes written to it since Seal().
  void DisposeOfSpace();

  WritableBlock space_;
  char* start_;    // of the bytes in space_ that are not in sealed_ yet
  Buffer sealed_;  // everything before them
  std::size_t expected_end_ = 0;  // ByteSize() at the end, as far as known
};

// A Buffer with a copy of `bytes`.
Buffer CreateBufferSlow(std::string_view bytes);
inline Buffer CreateBufferSlow(const void* bytes, std::size_t n) {
  return CreateBufferSlow(std::string_view(static_cast<const char*>(bytes), n));
}

// The first `max` bytes of `buffer`, as a string.
std::string FlattenSlow(
    const Buffer& buffer,
    std::size_t max = std::numeric_limits<std::size_t>::max());

// A Buffer that owns `bytes`, without copying them (unless they are few).
Buffer MakeForeignBuffer(std::string&& bytes);

// A Buffer that refers to memory of somebody else. `completion` (if any) is
// called, once and on any thread, when no Buffer refers to the memory any
// more; it must neither block nor throw. With zero bytes that is at once.
Buffer MakeReferencingBuffer(const void* data, std::size_t size,
                             Function<void()> completion = {});

// The names by which users of the published framework know these.
using NoncontiguousBuffer = Buffer;
using NoncontiguousBufferBuilder = BufferBuilder;

}  // namespace flare

#endif  // FLARE_BASE_BUFFER_H_

#include "flare/base/buffer.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "flare/base/object_pool.h"

namespace flare {
namespace {

// Takes over a reference to `block`, also if it throws.
BufferSlice* NewSlice(BufferBlock* block, const char* data, std::size_t size) {
  void* memory;
  try {
    memory = PoolAllocate<sizeof(BufferSlice)>();
  } catch (...) {
    block->Deref(1);
    throw;
  }
  return ::new (memory) BufferSlice{nullptr, block, data, size, 1};
}

// Drops the slice's references, too.
void FreeSlice(BufferSlice* slice) noexcept {
  slice->block->Deref(slice->refs);
  PoolFree<sizeof(BufferSlice)>(slice);
}

// Takes a reference for bytes cut off `slice`. Taken for many cuts at a time,
// as far as there is something to cut: the count is another core's as often as
// not.
BufferBlock* TakeRefOf(BufferSlice* slice) {
  constexpr std::size_t kBytesForEach = 64;
  constexpr std::size_t kMost = 64;
  if (slice->refs == 1) {
    const auto n = static_cast<std::uint32_t>(
        1 + std::min(slice->size / kBytesForEach, kMost));
    slice->block->Ref(n);
    slice->refs += n;
  }
  --slice->refs;
  return slice->block;
}

}  // namespace

void Buffer::FreeSlices() noexcept {
  for (BufferSlice* slice = head_; slice;) {
    BufferSlice* next = slice->next;
    FreeSlice(slice);
    slice = next;
  }
  head_ = tail_ = nullptr;
  size_ = 0;
}

void Buffer::AppendSlice(BufferBlock* block, const char* data,
                         std::size_t size) {
  DCHECK_GT(size, 0u);
  if (!head_) {
    head_ = tail_ = NewSlice(block, data, size);
  } else if (tail_->block == block && tail_->data + tail_->size == data) {
    tail_->size += size;
    ++tail_->refs;
  } else {
    tail_->next = NewSlice(block, data, size);
    tail_ = tail_->next;
  }
  size_ += size;  // Last: NewSlice() may throw.
}

void Buffer::Link(Buffer& other) {
  DCHECK(this != &other) << "Can't move a Buffer behind itself.";
  BufferSlice* first = other.head_;
  if (tail_->block == first->block &&
      tail_->data + tail_->size == first->data) {
    tail_->size += first->size;
    tail_->refs += first->refs;
    tail_->next = first->next;
    if (first != other.tail_) tail_ = other.tail_;
    PoolFree<sizeof(BufferSlice)>(first);
  } else {
    tail_->next = first;
    tail_ = other.tail_;
  }
  size_ += other.size_;
  other.head_ = other.tail_ = nullptr;
  other.size_ = 0;
}

void Buffer::Append(const Buffer& other) {
  // By count, since `other` may be this and grow.
  const BufferSlice* last = other.head_ ? other.tail_ : nullptr;
  const std::size_t last_size = last ? last->size : 0;
  for (const BufferSlice* slice = other.head_; slice; slice = slice->next) {
    const bool at_end = slice == last;
    slice->block->Ref();
    AppendSlice(slice->block, slice->data, at_end ? last_size : slice->size);
    if (at_end) break;
  }
}

void Buffer::Append(std::string_view bytes) {
  BufferBuilder builder;
  builder.Append(bytes);
  Append(builder.DestructiveGet());
}

Buffer Buffer::Cut(std::size_t n) {
  CHECK_LE(n, size_) << "Can't cut more than the Buffer holds.";
  Buffer front;
  if (n == 0) return front;
  if (n == size_) {
    front.Swap(*this);
    return front;
  }
  // Whole slices change hands; the one that spans the cut is shared.
  BufferSlice* last = nullptr;
  BufferSlice* slice = head_;
  std::size_t left = n;
  for (; left >= slice->size; slice = slice->next) {
    left -= slice->size;
    last = slice;
  }
  // First, as it may throw.
  BufferSlice* const part =
      left ? NewSlice(TakeRefOf(slice), slice->data, left) : nullptr;
  front.size_ = n;
  if (last) {
    front.head_ = head_;
    front.tail_ = last;
    last->next = part;
    head_ = slice;
  } else {
    front.head_ = part;
  }
  if (part) {
    front.tail_ = part;
    slice->data += left;
    slice->size -= left;
  }
  size_ -= n;
  return front;
}

void Buffer::Skip(std::size_t n) {
  CHECK_LE(n, size_) << "Can't skip more than the Buffer holds.";
  size_ -= n;
  while (n) {
    if (n < head_->size) {
      head_->data += n;
      head_->size -= n;
      return;
    }
    n -= head_->size;
    FreeSlice(std::exchange(head_, head_->next));
  }
}

std::size_t Buffer::CopyTo(void* out, std::size_t n, std::size_t offset) const {
  char* to = static_cast<char*>(out);
  std::size_t copied = 0;
  for (std::string_view slice : *this) {
    if (copied == n) break;
    if (offset >= slice.size()) {
      offset -= slice.size();
      continue;
    }
    copied += slice.copy(to + copied, n - copied, offset);
    offset = 0;
  }
  return copied;
}

std::size_t Buffer::FillIovecs(struct iovec* out, std::size_t max,
                               std::size_t skip) const {
  std::size_t count = 0;
  for (std::string_view slice : *this) {
    if (count == max) break;
    if (skip >= slice.size()) {
      skip -= slice.size();
      continue;
    }
    out[count].iov_base = const_cast<char*>(slice.data() + skip);
    out[count].iov_len = slice.size() - skip;
    skip = 0;
    ++count;
  }
  return count;
}

std::size_t Buffer::SliceCount() const noexcept {
  return static_cast<std::size_t>(std::distance(begin(), end()));
}

std::size_t Buffer::CompactIfSparse() {
  // A stream of ordinary reads leaves one slice per 4 KiB behind. The number of
  // appends until the next copy pays for the cost of a copy.
  const std::size_t allowed = 16 + size_ / 4096;
  std::size_t count = 0;
  for (const BufferSlice* slice = head_; slice; slice = slice->next) {
    if (++count > allowed) {
      BufferBuilder builder;
      builder.ExpectBytes(size_);
      for (std::string_view bytes : *this) builder.Append(bytes);
      *this = builder.DestructiveGet();
      return SliceCount();
    }
  }
  return count;
}

Buffer CreateBufferSlow(std::string_view bytes) {
  Buffer buffer;
  buffer.Append(bytes);
  return buffer;
}

std::string FlattenSlow(const Buffer& buffer, std::size_t max) {
  std::string flat;
  flat.reserve(std::min(max, buffer.size()));
  for (std::string_view slice : buffer) {
    flat += slice.substr(0, max - flat.size());
    if (flat.size() == max) break;
  }
  return flat;
}

namespace {

// A block of other memory than the pool's, kept alive by `owner`.
template <class Owner>
struct ForeignBlock : BufferBlock {
  Owner owner;

  static ForeignBlock* New(Owner owner) {
    return ::new (PoolAllocate<sizeof(ForeignBlock)>())
        ForeignBlock(std::move(owner));
  }

 private:
  explicit ForeignBlock(Owner&& o) : owner(std::move(o)) {
    // relaxed: nobody else knows the block yet.
    refs.store(1, std::memory_order_relaxed);
    capacity = 0;
    destroy = [](BufferBlock* base) {
      auto* self = static_cast<ForeignBlock*>(base);
      self->~ForeignBlock();
      PoolFree<sizeof(ForeignBlock)>(self);
    };
  }
};

// Calls the function it was made with when it dies, unless moved from.
struct Completion {
  Function<void()> function;

  explicit Completion(Function<void()> f) : function(std::move(f)) {}
  Completion(Completion&&) = default;
  ~Completion() {
    if (function) function();
  }
};

}  // namespace

Buffer MakeForeignBuffer(std::string&& bytes) {
  if (bytes.size() <= BufferBuilder::kCopyAtMost) {
    return CreateBufferSlow(bytes);
  }
  auto* block = ForeignBlock<std::string>::New(std::move(bytes));
  Buffer buffer;
  buffer.AppendSlice(block, block->owner.data(), block->owner.size());
  return buffer;
}

Buffer MakeReferencingBuffer(const void* data, std::size_t size,
                             Function<void()> completion) {
  Completion owner(std::move(completion));
  if (size == 0) return Buffer();
  auto* block = ForeignBlock<Completion>::New(std::move(owner));
  Buffer buffer;
  buffer.AppendSlice(block, static_cast<const char*>(data), size);
  return buffer;
}

}  // namespace flare

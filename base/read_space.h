// ReadSpace: where a socket reads to.
//
//   ReadSpace space(bytes_still_missing);      // or no hint
//   ssize_t n = ReceivePieces(fd, space.iovecs(), space.iovec_count());
//   if (n > 0) input.Append(space.Commit(n));
//
// First comes the rest of this thread's hot read block: reads of small messages
// share blocks, whichever connection they are from. With a hint that more is
// coming, large blocks follow, so that a big body takes few reads and lies in
// few pieces. Consecutive reads of one connection that are adjacent in memory
// merge in Buffer::Append.
//
// Nothing is allocated per read in steady state; nothing blocks or suspends.
// A fiber that is parked between constructor and Commit keeps the memory from
// the thread's other connections: read only when there is something to read.

#ifndef FLARE_BASE_READ_SPACE_H_
#define FLARE_BASE_READ_SPACE_H_

#include <sys/uio.h>

#include <cstddef>

#include "flare/base/buffer.h"
#include "flare/base/buffer_block.h"

namespace flare {

class ReadSpace {
 public:
  // There is always room for at least this much.
  static constexpr std::size_t kMinCapacity = kMinReadRoom;
  // Big blocks used at most: a megabyte per read.
  static constexpr std::size_t kMaxBigBlocks = 16;

  // `hint`: how many bytes are known to be still missing, 0 if unknown.
  explicit ReadSpace(std::size_t hint = 0);
  // Gives back the space that was not committed. May run on another thread.
  ~ReadSpace();
  ReadSpace(const ReadSpace&) = delete;
  ReadSpace& operator=(const ReadSpace&) = delete;

  const struct iovec* iovecs() const noexcept { return iovecs_; }
  int iovec_count() const noexcept { return static_cast<int>(big_count_) + 1; }
  // The sum of the iovecs' lengths.
  std::size_t capacity() const noexcept { return capacity_; }

  // The first `n` (<= capacity()) bytes of the space, as a Buffer. Call it at
  // most once, after the read; afterwards the iovecs are void.
  [[nodiscard]] Buffer Commit(std::size_t n);

 private:
  WritableBlock hot_;
  std::size_t capacity_;
  std::size_t big_count_ = 0;
  // Uninitialised beyond big_count_: zeroing them would cost each read.
  BufferBlock* big_[kMaxBigBlocks];
  struct iovec iovecs_[kMaxBigBlocks + 1];
};

}  // namespace flare

#endif  // FLARE_BASE_READ_SPACE_H_

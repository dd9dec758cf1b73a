// Protobuf reads from and writes to Buffers without a copy in between:
//
//   BufferInputStream in(&body);          // `body` stays as it is
//   bool ok = request->ParseFromZeroCopyStream(&in);
//
//   BufferBuilder builder;
//   BufferOutputStream out(&builder, response.ByteSizeLong());
//   bool ok = response.SerializeToZeroCopyStream(&out);
//   out.Flush();
//   Buffer bytes = builder.DestructiveGet();
//
// One thread (fiber) at a time. Nothing blocks or suspends.

#ifndef FLARE_BASE_ZERO_COPY_STREAM_H_
#define FLARE_BASE_ZERO_COPY_STREAM_H_

#include <google/protobuf/io/zero_copy_stream.h>

#include <cstddef>
#include <cstdint>

#include "flare/base/buffer.h"

namespace flare {

// Reads a Buffer from its start, leaving the Buffer as it is. The Buffer must
// outlive the stream and not change meanwhile; Next()'s results point into it.
class BufferInputStream : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit BufferInputStream(const Buffer* buffer)
      : slice_(buffer->begin()), end_(buffer->end()) {}

  bool Next(const void** data, int* size) override;
  void BackUp(int count) override;
  bool Skip(int count) override;
  std::int64_t ByteCount() const override { return consumed_; }

 private:
  Buffer::const_iterator slice_;  // where the next byte is
  Buffer::const_iterator end_;
  std::size_t offset_ = 0;  // of the next byte in slice_; < its size
  // The slice that Next() returned last, for BackUp().
  Buffer::const_iterator last_slice_;
  std::size_t last_end_ = 0;
  std::int64_t consumed_ = 0;
};

// Appends to a BufferBuilder, which nobody else must use until Flush() was
// called or the stream destroyed.
class BufferOutputStream : public google::protobuf::io::ZeroCopyOutputStream {
 public:
  // `expected`: about how many bytes will be written, as far as known.
  explicit BufferOutputStream(BufferBuilder* builder, std::size_t expected = 0)
      : builder_(builder) {
    if (expected) builder_->ExpectBytes(expected);
  }
  ~BufferOutputStream() override { Flush(); }

  bool Next(void** data, int* size) override;
  void BackUp(int count) override;
  std::int64_t ByteCount() const override { return finished_ + pending_; }

  // Hands the written bytes to the builder.
  void Flush();

 private:
  BufferBuilder* const builder_;
  std::int64_t finished_ = 0;  // bytes the builder knows of
  int pending_ = 0;  // bytes given out by the last Next(), not yet marked
};

}  // namespace flare

#endif  // FLARE_BASE_ZERO_COPY_STREAM_H_

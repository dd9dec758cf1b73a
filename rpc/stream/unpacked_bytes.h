// Bytes of requests that came compressed and are decompressed now: those of one
// server together, of unary calls until they answer, of streams until the next
// message is read. Thread-safe; nothing blocks.
#ifndef FLARE_RPC_STREAM_UNPACKED_BYTES_H_
#define FLARE_RPC_STREAM_UNPACKED_BYTES_H_

#include <atomic>
#include <cstddef>

namespace flare::rpc {

class UnpackedBytes {
 public:
  explicit UnpackedBytes(std::size_t most) : most_(most) {}

  // Whether there is room for another request, however large.
  bool HasRoom() const {
    // relaxed, here and below: a counter that orders nothing.
    return bytes_.load(std::memory_order_relaxed) < most_;
  }
  void Add(std::size_t bytes) {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void Remove(std::size_t bytes) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }

 private:
  const std::size_t most_;
  std::atomic<std::size_t> bytes_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_STREAM_UNPACKED_BYTES_H_

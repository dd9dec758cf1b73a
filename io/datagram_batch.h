// Datagrams that UdpSocket receives, or sends, by one system call.
//
//   io::DatagramBatch batch(64, 2048);  // up to 64, of up to 2048 bytes each
//   while (socket.Receive(&batch)) {
//     for (std::size_t i = 0; i != batch.size(); ++i) Use(batch.data(i));
//     socket.Send(batch);               // back to where they came from
//   }
//
//   batch.Clear();
//   batch.Add(endpoint, "hello");
//   socket.Send(batch);
//
// Has memory for all of them, made once: the bytes, and some 220 more for each.
// One batch is used by one fiber at a time. Nothing blocks.

#ifndef FLARE_IO_DATAGRAM_BATCH_H_
#define FLARE_IO_DATAGRAM_BATCH_H_

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"

namespace flare::io {

class DatagramBatch {
 public:
  // The kernel takes no more in one system call.
  static constexpr std::size_t kMostDatagrams = 1024;

  // Room for `capacity` datagrams, cut to 1 ... kMostDatagrams, of `bytes`
  // bytes each. 65,535 bytes are enough for any.
  DatagramBatch(std::size_t capacity, std::size_t bytes);

  std::size_t capacity() const noexcept { return headers_.size(); }
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

  // Datagram `i` < size(). Views are valid until the next change of the batch.
  std::string_view data(std::size_t i) const;
  // Where it came from, or goes to. Empty: the peer of a connected socket.
  Endpoint endpoint(std::size_t i) const;
  // It was longer than the room for it; the rest is lost.
  bool truncated(std::size_t i) const;

  // Adds a copy of `datagram`. False: the batch is full, or the datagram longer
  // than the room for one.
  [[nodiscard]] bool Add(const Endpoint& to, std::string_view datagram);
  // ... to the peer of a connected socket.
  [[nodiscard]] bool Add(std::string_view datagram) {
    return Add(Endpoint(), datagram);
  }
  // Changes datagram `i`, and leaves its endpoint as it is: a reply. False: as
  // of Add().
  [[nodiscard]] bool Replace(std::size_t i, std::string_view datagram);
  void Clear() noexcept { size_ = 0; }

 private:
  friend class UdpSocket;

  // Empties the batch; all of its room.
  std::span<mmsghdr> BeginReceive();
  void EndReceive(std::size_t count);
  // The system call writes the number of sent bytes into the headers.
  std::span<mmsghdr> ToSend(std::size_t first) const;

  char* room(std::size_t i) const { return bytes_.get() + i * bytes_each_; }

  std::size_t bytes_each_;
  std::unique_ptr<char[]> bytes_;
  std::vector<sockaddr_storage> addresses_;
  std::vector<iovec> pieces_;
  mutable std::vector<mmsghdr> headers_;
  std::size_t size_ = 0;
  // How many of the first headers describe a datagram, not the room for one.
  std::size_t used_ = 0;
};

}  // namespace flare::io

#endif  // FLARE_IO_DATAGRAM_BATCH_H_

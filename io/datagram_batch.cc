#include "flare/io/datagram_batch.h"

#include <algorithm>

#include "glog/logging.h"

namespace flare::io {

DatagramBatch::DatagramBatch(std::size_t capacity, std::size_t bytes)
    : bytes_each_(bytes) {
  capacity = std::clamp(capacity, std::size_t{1}, kMostDatagrams);
  bytes_ = std::make_unique_for_overwrite<char[]>(capacity * bytes);
  addresses_.resize(capacity);
  pieces_.resize(capacity);
  headers_.resize(capacity);
  for (std::size_t i = 0; i != capacity; ++i) {
    pieces_[i].iov_base = room(i);
    msghdr& header = headers_[i].msg_hdr;
    header.msg_name = &addresses_[i];
    header.msg_iov = &pieces_[i];
    header.msg_iovlen = 1;
  }
  used_ = capacity;
}

std::string_view DatagramBatch::data(std::size_t i) const {
  DCHECK_LT(i, size_);
  return {room(i), pieces_[i].iov_len};
}

Endpoint DatagramBatch::endpoint(std::size_t i) const {
  DCHECK_LT(i, size_);
  const msghdr& header = headers_[i].msg_hdr;
  if (header.msg_namelen == 0) return Endpoint();
  return Endpoint::FromSockaddr(static_cast<const sockaddr*>(header.msg_name),
                                header.msg_namelen);
}

bool DatagramBatch::truncated(std::size_t i) const {
  DCHECK_LT(i, size_);
  return (headers_[i].msg_hdr.msg_flags & MSG_TRUNC) != 0;
}

bool DatagramBatch::Add(const Endpoint& to, std::string_view datagram) {
  if (size_ == capacity() || datagram.size() > bytes_each_) return false;
  used_ = std::max(used_, ++size_);
  headers_[size_ - 1].msg_hdr.msg_namelen =
      to.ToSockaddr(&addresses_[size_ - 1]);
  return Replace(size_ - 1, datagram);
}

bool DatagramBatch::Replace(std::size_t i, std::string_view datagram) {
  DCHECK_LT(i, size_);
  if (datagram.size() > bytes_each_) return false;
  // It may be a view of the same bytes, as of a datagram's own end.
  std::copy(datagram.begin(), datagram.end(), room(i));
  pieces_[i].iov_len = datagram.size();
  headers_[i].msg_hdr.msg_flags = 0;
  return true;
}

std::span<mmsghdr> DatagramBatch::BeginReceive() {
  for (std::size_t i = 0; i != used_; ++i) {
    pieces_[i].iov_len = bytes_each_;
    headers_[i].msg_hdr.msg_namelen = sizeof(sockaddr_storage);
  }
  used_ = 0;
  size_ = 0;
  return headers_;
}

void DatagramBatch::EndReceive(std::size_t count) {
  used_ = size_ = count;
  for (std::size_t i = 0; i != count; ++i) {
    pieces_[i].iov_len = headers_[i].msg_len;
  }
}

std::span<mmsghdr> DatagramBatch::ToSend(std::size_t first) const {
  DCHECK_LT(first, size_);
  return std::span(headers_).subspan(first, size_ - first);
}

}  // namespace flare::io

#include "benchmark/baseline/bare_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "flare/io/socket_calls.h"

namespace baseline {
namespace {

constexpr std::size_t kInputSize = 64 * 1024;
// The bytes that one connection may read before others get their turn.
constexpr std::size_t kInputBudget = 1 << 20;
constexpr std::size_t kMaxDropped = 1024;  // Pieces that are kept in memory.

}  // namespace

// --- BareOutput ------------------------------------------------------------

void BareOutput::Append(std::string_view bytes) {
  if (bytes.size() <= kCopyAtMost) {
    text_.append(bytes);
    return;
  }
  SealText();
  pieces_.push_back({bytes.data(), 0, bytes.size()});
}

void BareOutput::SealText() {
  if (text_.size() == sealed_) return;
  pieces_.push_back({nullptr, sealed_, text_.size() - sealed_});
  sealed_ = text_.size();
}

bool BareOutput::Send(int fd) {
  SealText();
  while (!pieces_.empty()) {
    const std::size_t size = FillIovecs();
    const ssize_t n = flare::io::SendPieces(fd, iovecs_.data(), iovecs_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return false;
    const std::size_t sent = n < 0 ? 0 : static_cast<std::size_t>(n);
    Drop(sent);
    // The socket is full: an edge will tell when it no longer is.
    if (sent != size) break;
  }
  return true;
}

std::size_t BareOutput::FillIovecs() {
  iovecs_.clear();
  std::size_t size = 0;
  for (std::size_t i = first_; i != pieces_.size(); ++i) {
    if (iovecs_.size() == IOV_MAX) break;
    const Piece& piece = pieces_[i];
    const char* const data =
        piece.data != nullptr ? piece.data : text_.data() + piece.at;
    iovecs_.push_back({const_cast<char*>(data), piece.size});
    size += piece.size;
  }
  return size;
}

void BareOutput::Drop(std::size_t sent) {
  while (sent != 0) {
    Piece& piece = pieces_[first_];
    const std::size_t n = std::min(sent, piece.size);
    if (piece.data != nullptr) piece.data += n;
    piece.at += n;
    piece.size -= n;
    sent -= n;
    if (piece.size == 0) ++first_;
  }
  if (first_ == pieces_.size()) {
    pieces_.clear();
    text_.clear();
    first_ = sealed_ = 0;
  } else if (first_ >= kMaxDropped) {
    Compact();
  }
}

// For output that never gets empty.
void BareOutput::Compact() {
  pieces_.erase(pieces_.begin(),
                pieces_.begin() + static_cast<std::ptrdiff_t>(first_));
  first_ = 0;
  std::size_t unused = sealed_;
  for (const Piece& piece : pieces_) {
    if (piece.data == nullptr) {
      unused = piece.at;
      break;
    }
  }
  text_.erase(0, unused);
  sealed_ -= unused;
  for (Piece& piece : pieces_) piece.at -= std::min(piece.at, unused);
}

// --- BareStream ------------------------------------------------------------

BareStream::BareStream(flare::io::UniqueFd fd)
    : Watched(std::move(fd)),
      input_(new char[kInputSize]),
      capacity_(kInputSize) {}

void BareStream::Close() {
  if (is_closed()) return;
  CloseFd();
  OnClosed();
  Discard();
}

void BareStream::SendOutput() {
  if (is_closed()) return;
  if (!output_.Send(fd())) return Close();
  if (closing_ && output_.empty()) Close();
}

void BareStream::OnEvents(std::uint32_t events) {
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up_ = true;
  std::size_t left = kInputBudget;
  SendOutput();
  while (MayRead()) {
    std::size_t bytes = 0;
    const bool more = ReadOnce(&bytes);
    SendOutput();
    // Emptied by a read that got less than there was room for: new input makes
    // another edge, except the end, which may have been part of one.
    if (!more && (!hung_up_ || bytes == 0)) return;
    if (is_closed()) return;
    if (bytes >= left) return AskAgain();
    left -= bytes;
  }
}

// False: there is no more input now.
bool BareStream::ReadOnce(std::size_t* bytes) {
  MakeRoom();
  const std::size_t room = capacity_ - size_;
  const ssize_t n = ::read(fd(), input_.get() + size_, room);
  if (n < 0 && errno == EINTR) return true;
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) {
    Close();
    return false;
  }
  *bytes = static_cast<std::size_t>(n);
  size_ += *bytes;
  if (size_ >= need_) {
    need_ = 0;
    const std::size_t used = OnInput(input_.get(), size_, &need_);
    if (used == kBadInput) {
      Close();
      return false;
    }
    consumed_ = used;
  }
  return *bytes == room;
}

// Before a read: output that refers to the input has been sent.
void BareStream::MakeRoom() {
  if (consumed_ != 0) {
    size_ -= consumed_;
    std::memmove(input_.get(), input_.get() + consumed_, size_);
    consumed_ = 0;
  }
  const std::size_t wanted = std::max(need_, size_ + 1);
  if (wanted <= capacity_) return;
  const std::size_t capacity = std::max(wanted, 2 * capacity_);
  std::unique_ptr<char[]> larger(new char[capacity]);
  std::memcpy(larger.get(), input_.get(), size_);
  input_ = std::move(larger);
  capacity_ = capacity;
}

}  // namespace baseline

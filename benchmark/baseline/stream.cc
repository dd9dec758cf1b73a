#include "benchmark/baseline/stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <utility>

#include "flare/base/read_space.h"
#include "flare/io/socket_calls.h"
#include "flare/io/socket_options.h"

namespace baseline {
namespace {

// The bytes that one connection may read before others get their turn.
constexpr std::size_t kReadBudget = 256 * 1024;
constexpr std::size_t kMaxPieces = 64;  // The pieces of one system call.

}  // namespace

void Stream::Send(flare::Buffer&& bytes) {
  if (is_closed() || closing_) return;
  output_.Append(std::move(bytes));
  if (!handling_events_) AskRoundEnd();
}

void Stream::CloseAfterSending() {
  if (is_closed() || closing_) return;
  closing_ = true;
  if (!handling_events_) AskRoundEnd();
}

void Stream::Close() {
  if (is_closed()) return;
  closing_ = true;
  CloseFd();
  input_.Clear();
  output_.Clear();
  OnClosed();
}

void Stream::ResumeInput() {
  if (!input_paused_ || is_closed()) return;
  if (!MayRead()) return;
  input_paused_ = false;
  AskAgain();
}

void Stream::OnEvents(std::uint32_t events) {
  handling_events_ = true;
  // The edge of a socket that is broken says all of these.
  if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0) writable_ = true;
  if ((events & (EPOLLRDHUP | EPOLLERR | EPOLLHUP)) != 0) hung_up_ = true;
  if (!connecting_ || FinishConnecting()) {
    if (hung_up_ || (events & EPOLLIN) != 0) ReadAll();
  }
  handling_events_ = false;
  if (!is_closed()) Flush();
}

bool Stream::FinishConnecting() {
  const int error = flare::io::TakeSocketError(fd());
  if (error != 0) {
    Close();
    return false;
  }
  if (flare::io::GetRemoteEndpoint(fd()).empty()) return false;
  connecting_ = false;
  OnConnected();
  return true;
}

void Stream::ReadAll() {
  std::size_t left = kReadBudget;
  while (!is_closed() && !input_ended_ && !closing_) {
    if (!MayRead()) {
      input_paused_ = true;
      return;
    }
    std::size_t bytes = 0;
    const Read outcome = ReadOnce(&bytes);
    if (is_closed() || closing_) return;
    if (outcome == Read::kEnded) return OnEndOfInput();
    // Less than there was room for: the socket is empty, and new input makes
    // another edge, except the end, which may have been part of an earlier one.
    if (outcome == Read::kDrained && (!hung_up_ || bytes == 0)) return;
    if (bytes >= left) return AskAgain();
    left -= bytes;
  }
}

Stream::Read Stream::ReadOnce(std::size_t* bytes) {
  bool filled;
  {
    flare::ReadSpace space(need_ > input_.size() ? need_ - input_.size() : 0);
    const ssize_t n =
        flare::io::ReceivePieces(fd(), space.iovecs(), space.iovec_count());
    if (n == 0) {
      input_ended_ = true;
      return Read::kEnded;
    }
    if (n < 0) {
      if (errno == EINTR) return Read::kMore;
      if (errno != EAGAIN) Close();
      return Read::kDrained;
    }
    *bytes = static_cast<std::size_t>(n);
    filled = *bytes == space.capacity();
    input_.Append(space.Commit(*bytes));
  }
  need_ = 0;
  if (!OnData(input_, &need_)) {
    Close();
    return Read::kDrained;
  }
  if (!input_.empty()) input_.CompactIfSparse();
  return filled ? Read::kMore : Read::kDrained;
}

bool Stream::MayRead() const {
  return (output_.size() <= kMaxOutput || ReadsWhileSending()) && WantsInput();
}

void Stream::Flush() {
  while (!is_closed() && !connecting_ && writable_ && !output_.empty()) {
    if (!WriteOnce()) return Close();
  }
  if (is_closed()) return;
  if (closing_ && output_.empty()) return Close();
  ResumeInput();
}

// False: the connection is broken.
bool Stream::WriteOnce() {
  iovec pieces[kMaxPieces];
  const std::size_t count = output_.FillIovecs(pieces, kMaxPieces);
  std::size_t size = 0;
  for (std::size_t i = 0; i != count; ++i) size += pieces[i].iov_len;
  const ssize_t n = flare::io::SendPieces(fd(), pieces, count);
  if (n < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN) return false;
    writable_ = false;
    return true;
  }
  output_.Skip(static_cast<std::size_t>(n));
  // Else it's full, and an edge will tell when it no longer is.
  writable_ = static_cast<std::size_t>(n) == size;
  return true;
}

}  // namespace baseline

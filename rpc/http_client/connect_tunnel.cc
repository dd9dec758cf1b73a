#include "flare/rpc/http_client/connect_tunnel.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "flare/base/string.h"
#include "flare/base/version.h"
#include "flare/io/socket_calls.h"

namespace flare::rpc {
namespace {

constexpr std::string_view kEndOfHead = "\r\n\r\n";

}  // namespace

ConnectTunnel::ConnectTunnel(std::string server, std::string_view lines,
                             std::unique_ptr<io::Transport> inner)
    : server_(std::move(server)), inner_(std::move(inner)) {
  request_ = "CONNECT " + server_ + " HTTP/1.1\r\nHost: " + server_ +
             "\r\nUser-Agent: flare/" + kVersion + "\r\n";
  request_.append(lines).append("\r\n");
}

void ConnectTunnel::Attach(int fd) {
  fd_ = fd;
  if (inner_ != nullptr) inner_->Attach(fd);
}

// --- the proxy ---------------------------------------------------------------

io::Transport::Progress ConnectTunnel::Handshake() {
  if (!open_) {
    Progress progress = SendRequest();
    if (progress == Progress::kDone) progress = ReadAnswer();
    if (progress != Progress::kDone) return progress;
    open_ = true;
    FreeCapacity(&request_);
    answer_.clear();
    FreeCapacity(&answer_);
  }
  return inner_ == nullptr ? Progress::kDone : inner_->Handshake();
}

io::Transport::Progress ConnectTunnel::SendRequest() {
  while (!request_.empty()) {
    const ssize_t n =
        ::send(fd_, request_.data(), request_.size(), MSG_NOSIGNAL);
    if (n >= 0) {
      request_.erase(0, static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      return Progress::kWaiting;
    } else if (errno != EINTR) {
      return Fail(std::strerror(errno));
    }
  }
  return Progress::kDone;
}

// No byte behind the answer is taken off the socket: it is the server's.
io::Transport::Progress ConnectTunnel::ReadAnswer() {
  for (;;) {
    char space[2048];
    const ssize_t n = ::recv(fd_, space, sizeof(space), MSG_PEEK);
    if (n < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Progress::kWaiting : Fail(std::strerror(errno));
    }
    if (n == 0) return Fail("it has closed the connection");
    const std::size_t before = answer_.size();
    answer_.append(space, static_cast<std::size_t>(n));
    const std::size_t end = answer_.find(kEndOfHead);
    if (end != answer_.npos) answer_.resize(end + kEndOfHead.size());
    const std::size_t mine = answer_.size() - before;
    size_ += mine;
    if (::recv(fd_, space, mine, 0) != static_cast<ssize_t>(mine)) {
      return Fail("bytes that it had sent are gone");
    }
    if (size_ > kMaxAnswer) return Fail("its head is too large");
    if (end == answer_.npos) continue;
    if (const Progress progress = TakeHead(); progress != Progress::kWaiting) {
      return progress;
    }
  }
}

// kWaiting: it was an interim one.
io::Transport::Progress ConnectTunnel::TakeHead() {
  const std::string_view line =
      std::string_view(answer_).substr(0, answer_.find("\r\n"));
  const auto status =
      TryParse<int>(line.substr(std::min<std::size_t>(9, line.size()), 3));
  if (!line.starts_with("HTTP/1.") || !status || *status < 100) {
    return Fail("that isn't HTTP");
  }
  if (*status < 200) {
    answer_.clear();
    return Progress::kWaiting;
  }
  if (*status < 300) return Progress::kDone;
  return Fail(OneLine(line.substr(9, 200)));
}

io::Transport::Progress ConnectTunnel::Fail(std::string_view why) {
  failure_ = flare::Status(ECONNREFUSED, "the proxy answered CONNECT to " +
                                             server_ + ": " + std::string(why));
  return Progress::kFailed;
}

// --- the server --------------------------------------------------------------

io::Handshakes* ConnectTunnel::handshakes() const {
  return inner_ == nullptr ? nullptr : inner_->handshakes();
}

ssize_t ConnectTunnel::Receive(const iovec* pieces, int count) {
  if (inner_ != nullptr) return inner_->Receive(pieces, count);
  const ssize_t n = io::ReceivePieces(fd_, pieces, count);
  taken_ = n > 0 ? static_cast<std::size_t>(n) : 0;
  if (n < 0 && errno != EAGAIN && errno != EINTR) {
    const int error = errno;
    failure_ = StatusFromErrno(error, "recv");
    errno = error;
  }
  return n;
}

bool ConnectTunnel::HasMore() const {
  return inner_ != nullptr && inner_->HasMore();
}

std::size_t ConnectTunnel::taken() const {
  return inner_ != nullptr ? inner_->taken() : taken_;
}

bool ConnectTunnel::cut_short() const {
  return inner_ != nullptr && inner_->cut_short();
}

ssize_t ConnectTunnel::Send(const iovec* pieces, std::size_t count, int flags) {
  if (inner_ != nullptr) return inner_->Send(pieces, count, flags);
  // sendmsg(2) doesn't write to them.
  return io::SendPieces(fd_, const_cast<iovec*>(pieces), count, flags);
}

ssize_t ConnectTunnel::SendEnd() {
  return inner_ == nullptr ? 0 : inner_->SendEnd();
}

bool ConnectTunnel::end_sent() const {
  // The bare socket needs no more than its own end.
  return inner_ == nullptr || inner_->end_sent();
}

flare::Status ConnectTunnel::failure() const {
  if (!failure_.ok() || inner_ == nullptr) return failure_;
  return inner_->failure();
}

const PeerIdentity* ConnectTunnel::peer_identity() const {
  return inner_ == nullptr ? nullptr : inner_->peer_identity();
}

std::string_view ConnectTunnel::alpn() const {
  return inner_ == nullptr ? std::string_view() : inner_->alpn();
}

}  // namespace flare::rpc

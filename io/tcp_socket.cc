#include "flare/io/tcp_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <new>
#include <string>

#include "flare/base/clock.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/socket_calls.h"
#include "flare/io/socket_options.h"

namespace flare::io {
namespace {

// Slices that one system call sends.
constexpr std::size_t kMostPieces = 64;

// How often a Unix socket whose backlog is full is asked again. The kernel
// doesn't tell when there is room.
constexpr std::chrono::milliseconds kBacklogPause{2};

Status BindLocal(int fd, const Endpoint& local) {
  // The port may still be that of an ended connection, for a minute.
  SetReuseAddress(fd);
  // connect(2) chooses a port then, which has to be free for that peer only.
  const int on = 1;
  static_cast<void>(
      ::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on)));
  sockaddr_storage address;
  const socklen_t length = local.ToSockaddr(&address);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) {
    return Status();
  }
  return StatusFromErrno(errno, "bind " + local.ToString());
}

Expected<UniqueFd, Status> Open(const Endpoint& peer,
                                const TcpSocket::Options& options) {
  auto fd = CreateStreamSocket(peer.family());
  if (!fd) return fd;
  SetTcpNoDelay(fd->get());
  SetUrgentInline(fd->get());
  if (options.receive_buffer > 0) {
    SetReceiveBuffer(fd->get(), options.receive_buffer);
  }
  if (options.send_buffer > 0) SetSendBuffer(fd->get(), options.send_buffer);
  if (options.keep_alive > std::chrono::seconds(0)) {
    SetKeepAlive(fd->get(), options.keep_alive,
                 std::max(options.keep_alive / 6, std::chrono::seconds(1)));
  }
  if (options.local.empty()) return fd;
  Status status = BindLocal(fd->get(), options.local);
  if (!status.ok()) return status;
  return fd;
}

// 0: go on. Otherwise the reason to give up.
int PauseForBacklog(const WaitLimit& limit) {
  const std::int64_t now = NowNs();
  if (now >= limit.deadline_ns) return ETIMEDOUT;
  const std::int64_t end =
      std::min(limit.deadline_ns, now + ToNs(kBacklogPause));
  if (limit.stop == nullptr) {
    this_fiber::SleepUntilNs(end);
    return 0;
  }
  return this_fiber::SleepUntilNs(*limit.stop, end) ? 0 : ECANCELED;
}

Status Ended(std::size_t had, std::size_t wanted,
             const Endpoint& peer) noexcept {
  const int code = had == 0 ? ENODATA : ECONNRESET;
  try {
    std::string text = "the peer " + peer.ToString() + " ended its output";
    if (had != 0) {
      text += " after " + std::to_string(had) + " of " +
              std::to_string(wanted) + " bytes";
    }
    return Status(code, std::move(text));
  } catch (const std::bad_alloc&) {
    return Status(code);
  }
}

}  // namespace

Expected<TcpSocket, Status> TcpSocket::Connect(const Endpoint& peer,
                                               const Options& options,
                                               const WaitLimit& limit) try {
  auto fd = Open(peer, options);
  if (!fd) return fd.error();
  auto watched = Watch(*std::move(fd));
  if (!watched) return watched.error();
  TcpSocket socket(*std::move(watched), peer);
  Status status = socket.WaitConnected(limit);
  if (!status.ok()) return status;
  return socket;
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

// connect(2) is asked again until the connection is there: it then says so.
Status TcpSocket::WaitConnected(const WaitLimit& limit) {
  sockaddr_storage address;
  const socklen_t length = remote_.ToSockaddr(&address);
  bool backlog_full = false;
  const auto connect = [&]() -> ssize_t {
    backlog_full = false;
    if (::connect(fd(), reinterpret_cast<const sockaddr*>(&address), length) ==
        0) {
      return 0;
    }
    const int error = fiber::GetLastError();
    if (error == EISCONN) return 0;
    backlog_full = error == EAGAIN && remote_.family() == AF_UNIX;
    if (backlog_full) return 0;
    if (error == EINPROGRESS || error == EALREADY || error == EINTR) {
      fiber::SetLastError(EAGAIN);
    }
    return -1;
  };
  for (;;) {
    auto connected =
        Repeat(Direction::kOutput, {"connect to", remote_}, limit, connect);
    if (!connected) return connected.error();
    if (!backlog_full) return Status();
    const int error = PauseForBacklog(limit);
    if (error != 0) return Failure(error, {"connect to", remote_});
  }
}

Expected<TcpSocket, Status> TcpSocket::Adopt(UniqueFd fd) try {
  int type = 0;
  socklen_t length = sizeof(type);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_TYPE, &type, &length) != 0) {
    return StatusFromErrno(errno, "adopt a socket");
  }
  if (type != SOCK_STREAM) {
    return StatusFromErrno(EPROTOTYPE, "adopt a stream socket");
  }
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return StatusFromErrno(errno, "adopt a socket");
  }
  SetUrgentInline(fd.get());
  Endpoint remote = GetRemoteEndpoint(fd.get());
  auto socket = Watch(std::move(fd));
  if (!socket) return socket.error();
  return TcpSocket(*std::move(socket), std::move(remote));
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

Expected<std::size_t, Status> TcpSocket::Read(std::span<char> buffer,
                                              const WaitLimit& limit) {
  if (buffer.empty()) return std::size_t{0};  // Unix sockets would wait.
  return Repeat(Direction::kInput, {"read from", remote_}, limit,
                [&] { return ::recv(fd(), buffer.data(), buffer.size(), 0); });
}

Status TcpSocket::ReadExactly(std::span<char> buffer, const WaitLimit& limit) {
  std::size_t had = 0;
  while (had != buffer.size()) {
    const auto some = Read(buffer.subspan(had), limit);
    if (!some) return some.error();
    if (*some == 0) return Ended(had, buffer.size(), remote_);
    had += *some;
  }
  return Status();
}

Expected<std::size_t, Status> TcpSocket::WriteSome(std::string_view bytes,
                                                   const WaitLimit& limit) {
  return Repeat(Direction::kOutput, {"write to", remote_}, limit, [&] {
    return ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  });
}

Status TcpSocket::Write(std::string_view bytes, const WaitLimit& limit) {
  while (!bytes.empty()) {
    const auto some = WriteSome(bytes, limit);
    if (!some) return some.error();
    bytes.remove_prefix(*some);
  }
  return Status();
}

Status TcpSocket::Write(const Buffer& bytes, const WaitLimit& limit) {
  std::array<iovec, kMostPieces> pieces;
  for (std::size_t done = 0; done != bytes.size();) {
    const std::size_t count =
        bytes.FillIovecs(pieces.data(), kMostPieces, done);
    const auto some =
        Repeat(Direction::kOutput, {"write to", remote_}, limit,
               [&] { return SendPieces(fd(), pieces.data(), count); });
    if (!some) return some.error();
    done += *some;
  }
  return Status();
}

Status TcpSocket::ShutdownWrite() {
  if (::shutdown(fd(), SHUT_WR) != 0) {
    return Failure(errno, {"end the output to", remote_});
  }
  // A Unix socket whose buffer is full makes no event of it.
  WakeToRetry(Direction::kOutput);
  return Status();
}

}  // namespace flare::io

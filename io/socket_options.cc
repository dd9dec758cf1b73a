#include "flare/io/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace flare::io {
namespace {

bool SetInt(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

Endpoint NameOf(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address;
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (get(fd, generic, &length) != 0) return Endpoint();
  return Endpoint::FromSockaddr(generic, length);
}

}  // namespace

Expected<UniqueFd, Status> CreateStreamSocket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return StatusFromErrno(errno, "create a socket");
  return fd;
}

bool SetTcpNoDelay(int fd) { return SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1); }

bool SetTcpUserTimeout(int fd, int milliseconds) {
  return SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds);
}

bool SetKeepAlive(int fd, std::chrono::seconds idle,
                  std::chrono::seconds interval) {
  return SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE,
                static_cast<int>(idle.count())) &&
         SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL,
                static_cast<int>(interval.count())) &&
         SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, 3) &&
         SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

bool SetReuseAddress(int fd) { return SetInt(fd, SOL_SOCKET, SO_REUSEADDR, 1); }

bool SetReusePort(int fd) { return SetInt(fd, SOL_SOCKET, SO_REUSEPORT, 1); }

bool SetIpv6Only(int fd) { return SetInt(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1); }

bool SetUrgentInline(int fd) { return SetInt(fd, SOL_SOCKET, SO_OOBINLINE, 1); }

bool SetSendBuffer(int fd, int bytes) {
  return SetInt(fd, SOL_SOCKET, SO_SNDBUF, bytes);
}

bool SetReceiveBuffer(int fd, int bytes) {
  return SetInt(fd, SOL_SOCKET, SO_RCVBUF, bytes);
}

bool SetResetOnClose(int fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  return ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)) == 0;
}

int TakeSocketError(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
    return errno;
  }
  return error;
}

Endpoint GetLocalEndpoint(int fd) { return NameOf(fd, ::getsockname); }

Endpoint GetRemoteEndpoint(int fd) { return NameOf(fd, ::getpeername); }

}  // namespace flare::io

#include "flare/io/tcp_listener.h"

#include <sys/socket.h>

#include <cerrno>
#include <new>
#include <utility>

#include "flare/fiber/this_fiber.h"
#include "flare/io/acceptor.h"
#include "flare/io/socket_options.h"

namespace flare::io {
namespace {

// Errors that the network has left on the new connection: that one is lost, the
// next may be fine.
bool IsOfOneConnection(int error) {
  switch (error) {
    case ECONNABORTED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case EINTR:
    case ENETDOWN:
    case ENETUNREACH:
    case ENONET:
    case ENOPROTOOPT:
    case EPROTO:
      return true;
    default:
      return false;
  }
}

}  // namespace

Expected<TcpListener, Status> TcpListener::Listen(const Endpoint& address,
                                                  const Options& options) try {
  auto fd = OpenListeningSocket(address, options.backlog, options.reuse_port);
  if (!fd) return fd.error();
  Endpoint local = GetLocalEndpoint(fd->get());
  SocketFile file(local);
  auto socket = Watch(*std::move(fd));
  if (!socket) {
    file.Remove();
    return socket.error();
  }
  return TcpListener(*std::move(socket), std::move(local));
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

TcpListener::TcpListener(Socket socket, Endpoint local)
    : Socket(std::move(socket)), local_(std::move(local)), file_(local_) {}

TcpListener::~TcpListener() { file_.Remove(); }

Expected<TcpSocket, Status> TcpListener::Accept(const WaitLimit& limit) try {
  sockaddr_storage address;
  socklen_t length = 0;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const auto accept = [&]() -> ssize_t {
    for (;;) {
      length = sizeof(address);
      const int connection =
          ::accept4(fd(), generic, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (connection >= 0) return connection;
      if (!IsOfOneConnection(fiber::GetLastError())) return -1;
    }
  };
  const auto connection =
      Repeat(Direction::kInput, {"accept on", local_}, limit, accept);
  if (!connection) return connection.error();
  auto socket = Watch(UniqueFd(static_cast<int>(*connection)));
  if (!socket) return socket.error();
  return TcpSocket(*std::move(socket), Endpoint::FromSockaddr(generic, length));
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

void TcpListener::Close() {
  file_.Remove();
  Socket::Close();
}

}  // namespace flare::io

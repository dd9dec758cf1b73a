// Accepts connections by a call that blocks the fiber; on TCP or, for an
// endpoint with a path, a Unix socket.
//
//   auto listener = io::TcpListener::Listen(MustParseEndpoint("0.0.0.0:7000"));
//   if (!listener) return listener.error();
//   for (;;) {
//     auto connection = listener->Accept();
//     if (!connection) break;           // Close() of another fiber, say
//     fiber::Spawn([c = *std::move(connection)]() mutable { Serve(&c); });
//   }
//
// Accept() of several fibers is fine. An Acceptor (acceptor.h) serves where one
// fiber that accepts isn't enough: it has a socket in each scheduling group.
// See socket.h for threads, and for errors of all calls.

#ifndef FLARE_IO_TCP_LISTENER_H_
#define FLARE_IO_TCP_LISTENER_H_

#include <utility>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/socket.h"
#include "flare/io/socket_file.h"
#include "flare/io/tcp_socket.h"
#include "flare/io/wait_limit.h"

namespace flare::io {

class TcpListener : public Socket {
 public:
  struct Options {
    // Connections that the kernel completes before they are accepted; it cuts
    // this to net.core.somaxconn.
    int backlog = 1024;
    // Several listeners of this user, all with this option, have the address;
    // the kernel spreads connections over them. Unix sockets ignore it.
    bool reuse_port = false;
  };

  // Listens. Port 0 picks a free one. The file of a Unix socket that a dead
  // process has left is replaced. Errors: EADDRINUSE, EACCES, EADDRNOTAVAIL;
  // the text has advice. Blocks as Acceptor::Listen() does, for Unix sockets
  // only.
  static Expected<TcpListener, Status> Listen(const Endpoint& address,
                                              const Options& options);
  static auto Listen(const Endpoint& address) {
    return Listen(address, Options());
  }

  ~TcpListener();
  TcpListener(TcpListener&&) noexcept = default;

  // Waits for a connection and takes it. TCP_NODELAY is set. Further errors:
  // EMFILE, ENFILE, ENOBUFS, ENOMEM: no descriptors or memory; ENOSPC: the user
  // has no more watches (fs.epoll.max_user_watches). Sleep a while before the
  // next call. Without descriptors the connection still waits; one that could
  // be taken, but not watched (ENOSPC, ENOMEM), is closed.
  Expected<TcpSocket, Status> Accept(const WaitLimit& limit = {});

  // Close(), and the destructor, also remove a Unix socket's file. Connections
  // that were not accepted are reset.
  void Close();

  const Endpoint& local_endpoint() const noexcept { return local_; }

 private:
  TcpListener(Socket socket, Endpoint local);

  Endpoint local_;
  SocketFile file_;
};

}  // namespace flare::io

#endif  // FLARE_IO_TCP_LISTENER_H_

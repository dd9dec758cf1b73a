// A stream of bytes to a peer, by calls that block the fiber: a TCP connection,
// or a Unix socket's, as the endpoint says.
//
//   auto socket = io::TcpSocket::Connect(MustParseEndpoint("10.0.0.7:6379"),
//                                        seconds(1));
//   if (!socket) return socket.error();
//   if (Status s = socket->Write("PING\r\n", seconds(1)); !s.ok()) return s;
//   char reply[512];
//   auto size = socket->Read(reply, seconds(1));
//
// For a name call Resolve() (resolver.h) before. One fiber may read while
// another one writes. Calls of several fibers in one direction are safe, too,
// but the pieces of a long Write() may then have others' bytes between them: a
// fiber::Mutex prevents that.
//
// No TLS. Connections whose bytes come by callbacks, with TLS, or with one
// reader for very many of them, are StreamConnections. See socket.h for
// threads, and for errors of all calls.

#ifndef FLARE_IO_TCP_SOCKET_H_
#define FLARE_IO_TCP_SOCKET_H_

#include <chrono>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"
#include "flare/io/socket.h"
#include "flare/io/wait_limit.h"

namespace flare::io {

class TcpSocket : public Socket {
 public:
  struct Options {
    // Bytes of the kernel's buffers; it doubles them. 0: the system's, which
    // grow as needed.
    int receive_buffer = 0;
    int send_buffer = 0;
    // Asks a peer that was silent for so long whether it is still there; the
    // connection fails with ETIMEDOUT if not. 0: no.
    std::chrono::seconds keep_alive{0};
    // The own address. Empty, or port 0: the system chooses. Another port may
    // be that of a connection that has ended.
    Endpoint local = {};
  };

  // Connects, and waits until that has succeeded or failed. TCP_NODELAY is set.
  // Errors: ECONNREFUSED; ETIMEDOUT, after about two minutes without a limit;
  // ENETUNREACH; ENOENT for the path of a Unix socket.
  static Expected<TcpSocket, Status> Connect(const Endpoint& peer,
                                             const Options& options,
                                             const WaitLimit& limit = {});
  static auto Connect(const Endpoint& peer, const WaitLimit& limit = {}) {
    return Connect(peer, Options(), limit);
  }

  // Takes a connected stream socket, such as one of socketpair(2) or of another
  // process. Doesn't block. Errors: EBADF; ENOTSOCK; EPROTOTYPE: it is no
  // stream socket.
  static Expected<TcpSocket, Status> Adopt(UniqueFd fd);

  // Waits for input, then takes as much as there is and fits. Returns the
  // number of bytes, 0 at the end of the peer's output (or if `buffer` is
  // empty). Urgent bytes (MSG_OOB) are read like others. Further errors:
  // ECONNRESET, ETIMEDOUT.
  Expected<std::size_t, Status> Read(std::span<char> buffer,
                                     const WaitLimit& limit = {});

  // Fills `buffer`. Further errors: ENODATA if the peer's output ends before
  // the first byte, ECONNRESET if it ends before the last one. An error, of the
  // limit, too, loses the bytes that had come.
  Status ReadExactly(std::span<char> buffer, const WaitLimit& limit = {});

  // Gives all of `bytes` to the kernel, which sends them; waits while its
  // buffer is full. Further errors: EPIPE, ECONNRESET: the peer has closed the
  // connection. After an error, of the limit, too, an unknown part is sent.
  Status Write(std::string_view bytes, const WaitLimit& limit = {});
  // ... by one system call for many slices.
  Status Write(const Buffer& bytes, const WaitLimit& limit = {});
  // ... a part of them, at least one byte if there are any. Returns its size.
  Expected<std::size_t, Status> WriteSome(std::string_view bytes,
                                          const WaitLimit& limit = {});

  // Ends our output; the peer reads the end behind all that was written. Input
  // goes on. Doesn't block. Calls that wait to write fail with EPIPE. Errors:
  // EBADF; ENOTCONN, if the connection has broken.
  Status ShutdownWrite();

  // The peer. A Unix socket that isn't bound has no path.
  const Endpoint& remote_endpoint() const noexcept { return remote_; }

 private:
  friend class TcpListener;

  TcpSocket(Socket socket, Endpoint remote)
      : Socket(std::move(socket)), remote_(std::move(remote)) {}
  Status WaitConnected(const WaitLimit& limit);

  Endpoint remote_;
};

}  // namespace flare::io

#endif  // FLARE_IO_TCP_SOCKET_H_

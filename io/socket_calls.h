// Receiving into and sending from pieces of memory by the cheapest system call
// that does it: recv(2) and send(2) for one piece, which is the usual case,
// readv(2) and sendmsg(2) for more. The kernel copies no array of pieces then,
// which saves some 0.2 us for each
// (docs/decisions/0033-calls-for-one-piece.md).
//
// For non-blocking stream sockets; any thread. Errors as of the system calls:
// -1, and errno says which.
#ifndef FLARE_IO_SOCKET_CALLS_H_
#define FLARE_IO_SOCKET_CALLS_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>

namespace flare::io {

// `count` > 0. Returns how many bytes came; 0: the peer has sent its last.
inline ssize_t ReceivePieces(int fd, const iovec* pieces, int count) {
  if (count == 1) [[likely]] {
    return ::recv(fd, pieces->iov_base, pieces->iov_len, 0);
  }
  return ::readv(fd, pieces, count);
}

// `count` > 0; flags of send(2). Returns how many bytes the socket took. A peer
// that is gone is an error (EPIPE), never a signal, so writev(2) won't do.
inline ssize_t SendPieces(int fd, iovec* pieces, std::size_t count,
                          int flags = 0) {
  if (count == 1) [[likely]] {
    return ::send(fd, pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL | flags);
  }
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | flags);
}

}  // namespace flare::io

#endif  // FLARE_IO_SOCKET_CALLS_H_

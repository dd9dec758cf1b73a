// Socket system calls with readable errors. Everything here is callable from
// any thread and doesn't block.

#ifndef FLARE_IO_SOCKET_OPTIONS_H_
#define FLARE_IO_SOCKET_OPTIONS_H_

#include <chrono>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"

namespace flare::io {

// A non-blocking, close-on-exec stream socket of the address family.
Expected<UniqueFd, Status> CreateStreamSocket(int family);

// Each returns whether it took effect. Failures are harmless: the socket works,
// if slower; e.g. TCP_NODELAY on a Unix socket.
bool SetTcpNoDelay(int fd);
// How long sent data may stay unacknowledged, or data may wait because the peer
// takes none, before the connection fails with ETIMEDOUT. Without this, or with
// 0, a peer that has vanished is noticed after a quarter of an hour, and one
// that takes no data may do so for ever.
bool SetTcpUserTimeout(int fd, int milliseconds);
// Has the kernel ask a peer that was silent for `idle`, and owes no
// acknowledgement, whether it is still there, every `interval` until it
// answers. After three questions, or the time of SetTcpUserTimeout(), the
// connection fails with ETIMEDOUT.
bool SetKeepAlive(int fd, std::chrono::seconds idle,
                  std::chrono::seconds interval);
bool SetReuseAddress(int fd);
bool SetReusePort(int fd);
// A socket bound to [::] leaves IPv4 to others. Before it is bound.
bool SetIpv6Only(int fd);
// Urgent data is read like other data; but a read stops short in front of it.
bool SetUrgentInline(int fd);
bool SetSendBuffer(int fd, int bytes);     // The kernel doubles it.
bool SetReceiveBuffer(int fd, int bytes);  // The kernel doubles it.

// Makes closing the socket reset the connection instead of ending it in order:
// the peer doesn't take the received bytes for all there are.
bool SetResetOnClose(int fd);

// SO_ERROR: the pending asynchronous error, 0 if none; clears it.
int TakeSocketError(int fd);

// The socket's own address / its peer's; an empty Endpoint if unknown.
Endpoint GetLocalEndpoint(int fd);
Endpoint GetRemoteEndpoint(int fd);

}  // namespace flare::io

#endif  // FLARE_IO_SOCKET_OPTIONS_H_

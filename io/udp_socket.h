// Datagrams, by calls that block the fiber.
//
//   auto socket = io::UdpSocket::Bind(MustParseEndpoint("0.0.0.0:5353"));
//   if (!socket) return socket.error();
//   char bytes[2048];
//   while (auto got = socket->Receive(bytes)) {
//     socket->SendTo(got->from, {bytes, got->size});  // Echo.
//   }
//
// A DatagramBatch (datagram_batch.h) moves many of them by one system call. To
// serve one port by several fibers share a socket: each datagram goes to one of
// them. For many cores open several sockets with `reuse_port`, one for each
// fiber: the kernel spreads peers over them.
//
// IPv4 and IPv6; no TLS. See socket.h for threads, and for errors of all calls.

#ifndef FLARE_IO_UDP_SOCKET_H_
#define FLARE_IO_UDP_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/datagram_batch.h"
#include "flare/io/fd.h"
#include "flare/io/socket.h"
#include "flare/io/wait_limit.h"

namespace flare::io {

class UdpSocket : public Socket {
 public:
  struct Options {
    // Bytes that the kernel keeps for us, with some overhead for each datagram;
    // what doesn't fit is lost. It cuts them to net.core.rmem_max and wmem_max,
    // and doubles them. 0: the system's.
    int receive_buffer = 0;
    int send_buffer = 0;
    // Several sockets of this user, all with this option, have the address.
    bool reuse_port = false;
    // [::] doesn't receive IPv4, which leaves 0.0.0.0 to another socket.
    // Sockets of IPv4 ignore it.
    bool ipv6_only = false;
    // Datagrams may be sent to broadcast addresses.
    bool broadcast = false;
    // Connect(): the own address. Empty: the system chooses.
    Endpoint local = {};
  };

  // A socket that receives from anybody at `local`; port 0 picks a free one.
  // Doesn't block. Errors: EADDRINUSE, EACCES, EADDRNOTAVAIL; EAFNOSUPPORT for
  // other families.
  static Expected<UdpSocket, Status> Bind(const Endpoint& local,
                                          const Options& options);
  static auto Bind(const Endpoint& local) { return Bind(local, Options()); }

  // A socket that sends to, and receives from, `peer` only. Nothing is sent, so
  // nobody need be there. Doesn't block. Errors as of Bind(); ENETUNREACH.
  static Expected<UdpSocket, Status> Connect(const Endpoint& peer,
                                             const Options& options);
  static auto Connect(const Endpoint& peer) { return Connect(peer, Options()); }

  struct Received {
    std::size_t size;  // Bytes in the buffer; 0: an empty datagram.
    bool truncated;    // There were more, which are lost.
    Endpoint from;
  };

  // Waits for a datagram and takes it. Further errors: ECONNREFUSED, once for
  // each datagram of a connected socket that a host has sent back because
  // nobody has the port; the next call goes on.
  Expected<Received, Status> Receive(std::span<char> buffer,
                                     const WaitLimit& limit = {});

  // Sends a datagram of at most 65,507 bytes (65,527 by IPv6), as a whole;
  // waits while the kernel's buffer is full. Ok doesn't mean that it arrives.
  // Further errors: EMSGSIZE; ECONNREFUSED as of Receive(), and nothing was
  // sent; ENETUNREACH, EPERM (a firewall).
  Status Send(std::string_view datagram, const WaitLimit& limit = {});
  Status SendTo(const Endpoint& to, std::string_view datagram,
                const WaitLimit& limit = {});

  // Waits for a datagram, then takes as many as there are and fit into `batch`,
  // whose content they replace. Returns their number, above 0. Errors as of
  // Receive(); the batch is empty then.
  Expected<std::size_t, Status> Receive(DatagramBatch* batch,
                                        const WaitLimit& limit = {});

  // Sends those of `batch` from number `first` on, each to its endpoint (the
  // peer, where that is empty); after a Receive() that is an echo. Returns how
  // many were sent: all, or those in front of one that failed, which the next
  // call, with `first` raised by that number, has the error of. A refusal
  // (ECONNREFUSED) may be left out: it is told once, and the datagram is sent
  // by the next attempt. `first` must be less than the batch's size.
  Expected<std::size_t, Status> Send(const DatagramBatch& batch,
                                     std::size_t first = 0,
                                     const WaitLimit& limit = {});

  // Returns how many datagrams were lost so far because the receive buffer was
  // full. One system call.
  std::uint32_t lost() const;

 private:
  UdpSocket(Socket socket, Endpoint subject)
      : Socket(std::move(socket)), subject_(std::move(subject)) {}
  static Expected<UdpSocket, Status> Open(const Endpoint* local,
                                          const Endpoint* peer,
                                          const Options& options);

  Endpoint subject_;  // For errors: the peer, or the own address.
};

}  // namespace flare::io

#endif  // FLARE_IO_UDP_SOCKET_H_

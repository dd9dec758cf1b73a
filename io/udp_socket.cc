#include "flare/io/udp_socket.h"

#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <string>

#include "flare/io/socket_options.h"

namespace flare::io {
namespace {

Status ApplyOptions(int fd, int family, const UdpSocket::Options& options) {
  if (options.receive_buffer > 0) SetReceiveBuffer(fd, options.receive_buffer);
  if (options.send_buffer > 0) SetSendBuffer(fd, options.send_buffer);
  const int on = 1;
  if (options.reuse_port && !SetReusePort(fd)) {
    return StatusFromErrno(errno, "share the port");
  }
  if (options.ipv6_only && family == AF_INET6 && !SetIpv6Only(fd)) {
    return StatusFromErrno(errno, "leave out IPv4");
  }
  if (options.broadcast &&
      ::setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof(on)) != 0) {
    return StatusFromErrno(errno, "allow broadcasts");
  }
  return Status();
}

Status CallWithEndpoint(int (*call)(int, const sockaddr*, socklen_t), int fd,
                        const Endpoint& address, const char* what) {
  sockaddr_storage storage;
  const socklen_t length = address.ToSockaddr(&storage);
  if (call(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0) {
    return Status();
  }
  return StatusFromErrno(errno, what + address.ToString());
}

}  // namespace

Expected<UdpSocket, Status> UdpSocket::Bind(const Endpoint& local,
                                            const Options& options) {
  return Open(&local, nullptr, options);
}

Expected<UdpSocket, Status> UdpSocket::Connect(const Endpoint& peer,
                                               const Options& options) {
  return Open(options.local.empty() ? nullptr : &options.local, &peer, options);
}

Expected<UdpSocket, Status> UdpSocket::Open(const Endpoint* local,
                                            const Endpoint* peer,
                                            const Options& options) try {
  const Endpoint& address = peer != nullptr ? *peer : *local;
  if (address.family() != AF_INET && address.family() != AF_INET6) {
    return StatusFromErrno(EAFNOSUPPORT, "UDP for " + address.ToString());
  }
  UniqueFd fd(
      ::socket(address.family(), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return StatusFromErrno(errno, "create a socket");
  const int number = fd.get();
  Status status = ApplyOptions(number, address.family(), options);
  if (status.ok() && local != nullptr) {
    status = CallWithEndpoint(::bind, number, *local, "bind ");
  }
  if (status.ok() && peer != nullptr) {
    status = CallWithEndpoint(::connect, number, *peer, "connect to ");
  }
  if (!status.ok()) return status;
  auto socket = Watch(std::move(fd));
  if (!socket) return socket.error();
  return UdpSocket(*std::move(socket),
                   peer != nullptr ? *peer : GetLocalEndpoint(number));
} catch (const std::bad_alloc&) {
  return OutOfMemory();
}

Expected<UdpSocket::Received, Status> UdpSocket::Receive(
    std::span<char> buffer, const WaitLimit& limit) {
  sockaddr_storage from;
  socklen_t length = 0;
  auto* const generic = reinterpret_cast<sockaddr*>(&from);
  const auto size = Repeat(
      Direction::kInput, {"receive a datagram at", subject_}, limit, [&] {
        length = sizeof(from);
        // MSG_TRUNC: the result is the datagram's size, whatever was taken.
        return ::recvfrom(fd(), buffer.data(), buffer.size(), MSG_TRUNC,
                          generic, &length);
      });
  if (!size) return size.error();
  return Received{.size = std::min(*size, buffer.size()),
                  .truncated = *size > buffer.size(),
                  .from = Endpoint::FromSockaddr(generic, length)};
}

Status UdpSocket::Send(std::string_view datagram, const WaitLimit& limit) {
  const auto sent =
      Repeat(Direction::kOutput, {"send a datagram to", subject_}, limit, [&] {
        return ::send(fd(), datagram.data(), datagram.size(), MSG_NOSIGNAL);
      });
  return sent ? Status() : sent.error();
}

Status UdpSocket::SendTo(const Endpoint& to, std::string_view datagram,
                         const WaitLimit& limit) {
  sockaddr_storage storage;
  const socklen_t length = to.ToSockaddr(&storage);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&storage);
  const auto sent =
      Repeat(Direction::kOutput, {"send a datagram to", to}, limit, [&] {
        return ::sendto(fd(), datagram.data(), datagram.size(), MSG_NOSIGNAL,
                        generic, length);
      });
  return sent ? Status() : sent.error();
}

Expected<std::size_t, Status> UdpSocket::Receive(DatagramBatch* batch,
                                                 const WaitLimit& limit) {
  const std::span<mmsghdr> room = batch->BeginReceive();
  auto count =
      Repeat(Direction::kInput, {"receive datagrams at", subject_}, limit, [&] {
        return ssize_t{::recvmmsg(
            fd(), room.data(), static_cast<unsigned>(room.size()), 0, nullptr)};
      });
  batch->EndReceive(count ? *count : 0);
  return count;
}

Expected<std::size_t, Status> UdpSocket::Send(const DatagramBatch& batch,
                                              std::size_t first,
                                              const WaitLimit& limit) {
  std::span<mmsghdr> left = batch.ToSend(first);
  std::size_t sent = 0;
  do {
    auto some = Repeat(
        Direction::kOutput, {"send datagrams from", subject_}, limit, [&] {
          return ssize_t{::sendmmsg(fd(), left.data(),
                                    static_cast<unsigned>(left.size()),
                                    MSG_NOSIGNAL)};
        });
    if (!some) return sent != 0 ? Expected<std::size_t, Status>(sent) : some;
    sent += *some;
    left = left.subspan(*some);
  } while (!left.empty());
  return sent;
}

std::uint32_t UdpSocket::lost() const {
  std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
  socklen_t length = sizeof(memory);
  if (::getsockopt(fd(), SOL_SOCKET, SO_MEMINFO, memory.data(), &length) != 0) {
    return 0;
  }
  return memory[SK_MEMINFO_DROPS];
}

}  // namespace flare::io

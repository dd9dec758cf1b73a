// Listens on an address and hands out accepted connections.
//
//   auto acceptor = Acceptor::Listen(
//       EndpointFromIpv4("0.0.0.0", 5567), Acceptor::Options(),
//       [&](UniqueFd fd, Endpoint peer, std::size_t group) {
//         auto c = StreamConnection::Accepted(std::move(fd), group, handler);
//         c->Start();
//       });
//   if (!acceptor) return acceptor.error();
//   ...
//   (*acceptor)->Stop();
//   (*acceptor)->Join();
//
// With several scheduling groups each has a listening socket of its own
// (SO_REUSEPORT), so a connection is accepted in the group it will live in.
// Unless that group watches clearly more descriptors than another one: then the
// new connection is given to the least loaded group.

#ifndef FLARE_IO_ACCEPTOR_H_
#define FLARE_IO_ACCEPTOR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"
#include "flare/io/socket_file.h"

namespace flare::io {

class Listener;

class Acceptor {
 public:
  // Takes a new connection: non-blocking, close-on-exec, TCP_NODELAY set. Runs
  // on a worker; may run on several at once (one per group); must not block.
  // `group` is where the connection should live.
  using OnAccept =
      std::function<void(UniqueFd fd, Endpoint peer, std::size_t group)>;

  struct Options {
    // Connections that the kernel completes before we accept them; it cuts
    // this to net.core.somaxconn.
    int backlog = 1024;
    // Makes [::], which otherwise takes IPv4, too, take IPv6 only, so that
    // 0.0.0.0 with the same port is free for another one.
    bool ipv6_only = false;
    // TCP: has the kernel ask a peer that was silent for so long (1 to 32,767
    // s) whether it is still there, and again after each sixth of it. After
    // three questions the connection fails with ETIMEDOUT. 0: as the system, or
    // who made the sockets, has it.
    std::chrono::seconds keep_alive{0};
    // The scheduling groups to accept in, and that connections live in. Empty:
    // all.
    std::vector<std::size_t> groups = {};
  };

  // Binds, listens, and starts accepting in the scheduling groups; the runtime
  // must be running with EpollPollers. Port 0 picks a free one. A Unix socket
  // file left over by a dead process is replaced, a live one is an error: of
  // servers that listen at once one gets it, as they lock its folder (flock; in
  // folders that can't be opened or locked each may take the other's file for
  // one left over). Errors: the address is in use or not ours, no permission,
  // bad path; the text names the address and the cause. Any thread; blocks the
  // thread for 200 ms at most, while somebody else has locked that folder.
  static Expected<std::unique_ptr<Acceptor>, Status> Listen(
      const Endpoint& address, const Options& options, OnAccept on_accept);

  // Starts accepting on sockets that listen already, at least one, all on one
  // address: those of a service manager, or of the process that served before.
  // They are spread over the groups. Errors: one of them doesn't listen, is no
  // stream socket, or has another address. Any thread; doesn't block.
  static Expected<std::unique_ptr<Acceptor>, Status> Adopt(
      std::vector<UniqueFd> sockets, const Options& options,
      OnAccept on_accept);

  // Stops and joins if that was not done.
  ~Acceptor();

  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Sets Options::backlog from now on; connections that wait already go on
  // waiting. Any thread, but not once Stop() may have been called; doesn't
  // block.
  void SetBacklog(int backlog);

  // Returns the address that is listened on, with the real port number.
  const Endpoint& local_endpoint() const noexcept { return local_; }

  // The sockets that listen, which stay the acceptor's. Valid until Stop().
  std::vector<int> sockets() const;

  // Another process has the sockets, too: Stop() leaves the file of a Unix
  // socket, and connections that wait, to that process. Any thread, before
  // Stop(); doesn't block.
  void LeaveSockets();

  // Begins to stop: the file of a Unix socket goes, connections that the kernel
  // has already completed are still accepted and handed out rather than reset,
  // then the sockets are closed. Any thread, any number of times; doesn't
  // block.
  void Stop();

  // Stops if nobody has, and waits for the end of the stop: afterwards no
  // callback runs or will run, and the address is free. Blocks the fiber or
  // thread; not from the callback.
  void Join();

  // Connections handed out so far.
  std::uint64_t accepted() const noexcept;

 private:
  Acceptor(Endpoint local, std::vector<std::size_t> groups, OnAccept on_accept);

  static Expected<std::unique_ptr<Acceptor>, Status> Run(
      std::vector<UniqueFd> sockets, const Options& options, OnAccept on_accept,
      bool adopted);

  const Endpoint local_;
  const std::vector<std::size_t> groups_;
  const OnAccept on_accept_;
  std::vector<RefPtr<Listener>> listeners_;
  SocketFile file_;
};

// A socket that listens on `address`, for accepting by code of one's own, which
// also removes the file of a Unix socket. Non-blocking. With `reuse_port`
// several sockets of this user, opened in this way, have the address. Errors
// and blocking as of Acceptor::Listen().
Expected<UniqueFd, Status> OpenListeningSocket(const Endpoint& address,
                                               int backlog,
                                               bool reuse_port = false);

}  // namespace flare::io

#endif  // FLARE_IO_ACCEPTOR_H_

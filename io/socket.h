// The common part of sockets whose calls block the fiber: TcpSocket,
// TcpListener (tcp_socket.h, tcp_listener.h) and UdpSocket (udp_socket.h).
//
// A call makes its system call at once, and waits only if that can't be done
// yet, while its worker runs other fibers: no further system call, except that
// a call which has waited repeats its own. On plain threads calls block the
// thread.
//
// All functions may be called from fibers and plain threads, several at a time,
// except the destructor and moves: no call may be in progress then. The runtime
// must run as long as the object lives. Calls that fail return a Status with an
// errno value and a text that names the address and the cause:
//
//   ETIMEDOUT  the deadline has passed (or, on TCP, the peer has vanished)
//   ECANCELED  a stop was requested
//   EBADF      Close() was called
//   ENOMEM     memory has run out; errors of other causes then have no text
//   others     as of the system call
//
// The first two leave the socket as it is; calls may go on. A child made by
// fork() may only use exec or _exit(): in it, Close() and the destructor end
// the process with a message, as they would take the socket from the parent.

#ifndef FLARE_IO_SOCKET_H_
#define FLARE_IO_SOCKET_H_

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/edge_wait.h"
#include "flare/io/fd.h"
#include "flare/io/wait_limit.h"

namespace flare::io {

class Socket {
 public:
  // Closes the socket, at once.
  ~Socket();

  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  // Ends the socket: the port is free, a peer sees the end, and calls that wait
  // or come later fail with EBADF. Needs no free descriptor. Doesn't block. Any
  // number of times.
  void Close();

  // For options that this class doesn't know. The socket's until its
  // destruction; after Close() another file has the number. Don't close it.
  int fd() const noexcept;

  // Returns the own address, with the real port. One system call.
  Endpoint local_endpoint() const;

 protected:
  enum class Direction { kInput, kOutput };

  // Names a call in the texts of its errors: its verb, and the address.
  struct Operation {
    const char* what;
    const Endpoint& whom;
  };

  // Takes `fd`, non-blocking, and has the poller of the caller's scheduling
  // group watch it. Errors: ENOMEM; ENOSPC: the user has no more watches;
  // EMFILE, ENFILE: no descriptor for the first socket's substitute.
  static Expected<Socket, Status> Watch(UniqueFd fd) noexcept;

  // The error of functions that were left by std::bad_alloc.
  static Status OutOfMemory() noexcept;

  // Makes the system call `call`, which returns -1 and sets errno if it fails,
  // until that is something else than EAGAIN. Returns its result. Waits before
  // each repetition.
  template <class Call>
  Expected<std::size_t, Status> Repeat(Direction direction,
                                       const Operation& operation,
                                       const WaitLimit& limit, Call call) const;
  Status Failure(int error, const Operation& operation) const noexcept;

  // Has callers that wait repeat their system calls. For changes by this end
  // which the kernel makes no event of.
  void WakeToRetry(Direction direction) const noexcept;

 private:
  class Watched;

  explicit Socket(RefPtr<Watched> watched);

  EdgeWait& WaitFor(Direction direction) const noexcept;
  // After EAGAIN. Ok: try again.
  Status Await(EdgeWait* wait, std::uint64_t seen, const Operation& operation,
               const WaitLimit& limit) const;

  RefPtr<Watched> watched_;  // Null: moved from.
};

template <class Call>
Expected<std::size_t, Status> Socket::Repeat(Direction direction,
                                             const Operation& operation,
                                             const WaitLimit& limit,
                                             Call call) const {
  EdgeWait& wait = WaitFor(direction);
  for (;;) {
    const std::uint64_t seen = wait.edges();  // [EW1]
    const ssize_t result = call();
    if (result >= 0) [[likely]] {
      wait.PassOn();  // [EW3]
      return static_cast<std::size_t>(result);
    }
    // In place of `errno`: the last round may have been on another thread.
    const int error = fiber::GetLastError();
    if (error != EAGAIN) {
      wait.PassOn();  // [EW3]
      return Failure(error, operation);
    }
    Status status = Await(&wait, seen, operation, limit);
    if (!status.ok()) return status;
  }
}

}  // namespace flare::io

#endif  // FLARE_IO_SOCKET_H_

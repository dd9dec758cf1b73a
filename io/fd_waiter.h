// Waits for a file descriptor of somebody else, such as the socket of a
// database client's library, without holding up the thread.
//
//   auto waiter = io::FdWaiter::Create(PQsocket(db));
//   if (!waiter) return waiter.error();
//   while (PQisBusy(db)) {
//     if ((*waiter)->WaitUntil(POLLIN, deadline) == 0) return TimedOut();
//     if (PQconsumeInput(db) == 0) return Failed();
//   }
//
// Use it with libraries that have a non-blocking interface; RunBlocking()
// (fiber/blocking_region.h) is for those that only block. Servers and channels
// of this library need neither.
//
// The runtime must run as long as the object lives. All functions may be called
// from fibers and from plain threads, several at a time.

#ifndef FLARE_IO_FD_WAITER_H_
#define FLARE_IO_FD_WAITER_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "flare/base/clock.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"

namespace flare::io {

class EpollPoller;

class FdWaiter {
 public:
  // Watches the file of `fd`, by a duplicate of it: destroy the waiter before
  // you close `fd`, or else a socket stays open until then. Make another one if
  // the library has connected anew. Three system calls; doesn't block. Errors:
  // EBADF; EPERM if it can't be polled (a regular file); out of descriptors or
  // memory.
  static Expected<std::unique_ptr<FdWaiter>, Status> Create(int fd);

  // Nobody may be waiting. Two system calls. Ends a forked child with a
  // message, as the parent would lose its watch.
  ~FdWaiter();

  FdWaiter(const FdWaiter&) = delete;
  FdWaiter& operator=(const FdWaiter&) = delete;

  // Blocks the fiber (or thread) until poll(2) reports one of `events`, such as
  // POLLIN | POLLOUT, or POLLERR or POLLHUP. Returns all that it reports, or 0
  // if the deadline passed first. As with poll(), unread input counts each
  // time. One system call if it is ready already, else one more per change of
  // the descriptor's state.
  short Wait(short events) { return WaitUntil(events, kNoDeadline); }
  short WaitUntil(short events, std::int64_t deadline_ns);  // In NowNs() time.
  template <class Clock, class Duration>
  short WaitUntil(short events, std::chrono::time_point<Clock, Duration> at) {
    return WaitUntil(events, ToSteadyNs(at));
  }
  template <class Rep, class Period>
  short WaitFor(short events, std::chrono::duration<Rep, Period> length) {
    return WaitUntil(events, ToSteadyNs(length));
  }

 private:
  class Watched;
  FdWaiter(EpollPoller* poller, RefPtr<Watched> watched);

  EpollPoller* const poller_;
  const RefPtr<Watched> watched_;
};

}  // namespace flare::io

#endif  // FLARE_IO_FD_WAITER_H_

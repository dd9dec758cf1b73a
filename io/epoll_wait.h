// Waiting for events of an epoll instance until a point in time, to the
// nanosecond where the kernel can (Linux 5.11 and later).
#ifndef FLARE_IO_EPOLL_WAIT_H_
#define FLARE_IO_EPOLL_WAIT_H_

#include <sys/epoll.h>

#include <cstdint>

namespace flare::io {

// Waits as epoll_wait(2), until NowNs() reaches `deadline_ns`; 0: without
// waiting, kNoDeadline: without limit. Returns how many of `events`, at most
// `max`, have been filled in; -1: see errno. On kernels that only know
// milliseconds, up to one later. Any thread; blocks the thread.
int EpollWait(int epoll, epoll_event* events, int max,
              std::int64_t deadline_ns);

}  // namespace flare::io

#endif  // FLARE_IO_EPOLL_WAIT_H_

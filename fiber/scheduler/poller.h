// The seam through which an idle worker waits for the outside world. fiber/
// knows nothing of sockets; io/ implements this with epoll.

#ifndef FLARE_FIBER_POLLER_H_
#define FLARE_FIBER_POLLER_H_

#include <cstddef>
#include <cstdint>

#include "flare/fiber/scheduler/task_list.h"

namespace flare::fiber {

class Poller {
 public:
  virtual ~Poller() = default;

  // Appends tasks that became ready to `*ready`, perhaps not all of them: see
  // pending(). `deadline_ns` is 0 for "look, don't wait"; otherwise the call
  // blocks the thread until there is an event, Wake() is called, or NowNs()
  // reaches it (kNoDeadline: no limit). It may return early with nothing.
  //
  // The runtime never has two threads in Poll() at once, and orders consecutive
  // calls by acquire/release, so that an implementation may keep plain state.
  virtual void Poll(std::int64_t deadline_ns, TaskList* ready) = 0;

  // A poller may offer a place for a second thread, the standby, that takes
  // over when the one that has left Poll() with an event is held up by it.
  virtual bool can_stand_by() const noexcept { return false; }
  // For that one thread, beside any in Poll(): blocks until an event comes
  // while nobody waits for one in Poll(), until WakeStandby(), or until NowNs()
  // reaches the deadline (kNoDeadline: no limit). Fetches nothing: call Poll()
  // after it. May return early, and may miss an event that comes while
  // somebody begins or ends to wait in Poll(), or while it begins itself.
  virtual void StandBy(std::int64_t deadline_ns) {
    static_cast<void>(deadline_ns);
  }
  // A thread stands by, and the next event will wake it. Any thread; a hint.
  virtual bool standby_is_alert() const noexcept { return false; }
  // Wakes StandBy(), like Wake() for Poll().
  virtual void WakeStandby() {}

  // Events that are known and haven't been handed out as tasks: as long as
  // there are any, Poll() hands out some of them and doesn't block. Any thread;
  // a hint.
  virtual std::size_t pending() const noexcept { return 0; }

  // Makes a Poll() that blocks now, or the next one that would, return soon.
  // Any thread; safe against everything but destruction.
  virtual void Wake() = 0;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_POLLER_H_

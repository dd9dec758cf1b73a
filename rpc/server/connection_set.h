// The connections of one server: how many there may be, and waiting for their
// end. Thread-safe; functions may suspend the calling fiber for a moment.
#ifndef FLARE_RPC_SERVER_CONNECTION_SET_H_
#define FLARE_RPC_SERVER_CONNECTION_SET_H_

#include <cstddef>
#include <cstdint>

#include "flare/base/intrusive_list.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/mutex.h"

namespace flare::rpc {

class ServerConnection;

// A connection is first open (its socket is), then maybe lingers on until its
// last call has finished, then is gone.
class ConnectionSet {
 public:
  explicit ConnectionSet(std::size_t max_open);
  ~ConnectionSet();

  // False: `max_open` are open already.
  [[nodiscard]] bool Add(ServerConnection* connection);
  // Its socket is closed: out of the list.
  void Closed(ServerConnection* connection);
  // It is being destroyed; after Closed(), or after Add() returned false.
  void Gone();

  // Calls `f` with each open connection. It can't close meanwhile, so `f` must
  // not block or touch this set.
  template <class F>
  void ForEachOpen(F&& f) FLARE_EXCLUDES(mutex_) {
    ScopedLock guard(mutex_);
    for (ServerConnection& connection : open_) f(&connection);
  }

  std::size_t open() const;

  // Blocks until none is left at all; false: the deadline (NowNs() time)
  // passed first.
  bool WaitUntilGone(std::int64_t deadline_ns);
  // Blocks until none is open.
  void WaitUntilClosed();

 private:
  const std::size_t max_open_;
  mutable fiber::Mutex mutex_;
  fiber::ConditionVariable changed_;  // One of the numbers has reached zero.
  IntrusiveList<ServerConnection> open_ FLARE_GUARDED_BY(mutex_);
  std::size_t open_count_ FLARE_GUARDED_BY(mutex_) = 0;
  std::size_t live_count_ FLARE_GUARDED_BY(mutex_) = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CONNECTION_SET_H_

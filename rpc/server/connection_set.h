// The connections of one server: how many there may be, and waiting for their
// end. Thread-safe; functions may suspend the calling fiber for a moment.
#ifndef FLARE_RPC_SERVER_CONNECTION_SET_H_
#define FLARE_RPC_SERVER_CONNECTION_SET_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/base/intrusive_list.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/mutex.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// A connection as its server sees it, which must be open. Any thread.
class ServedConnection : public io::StreamHandler, public IntrusiveListNode<> {
 public:
  // Its part of Server::Options::max_buffered_bytes: unfinished input, large
  // requests of its calls, replies that wait.
  virtual std::size_t held() const = 0;
  // For an unfinished message or for output that waits, nothing has happened
  // since `since_ns`.
  virtual bool StandsStill(std::int64_t since_ns) const = 0;
  // Closes it at once, by a reset, since it holds `bytes` of the server's
  // budget.
  virtual void CloseGreedy(std::size_t bytes) = 0;
  // Closes at once: by a reset, if the peer could take that for the end of a
  // body.
  virtual void Close(flare::Status why) = 0;

  // Drains the connection, that is, answers the requests received by now,
  // then closes: if it has been without traffic and without calls since
  // `since_ns`.
  virtual void DrainIfIdle(std::int64_t since_ns) = 0;
  // ... if the message that comes by it began before `since_ns`, and has made
  // no progress worth the name since then.
  virtual void DrainIfSlow(std::int64_t since_ns) = 0;

  // Calls that wait to reply, and reading that waits for them, go on if the
  // server's budget is no longer tight.
  virtual void LookForRoom() = 0;

  // Has the peer told that the server stops, and drains the connection when it
  // knows; at once where the peer's protocol has no word for that. True: it
  // lingers for a request, by whose reply the peer may be told. Only if a
  // request is likely to come soon, as one has since `active_since_ns`.
  virtual bool AnnounceEnd(std::int64_t active_since_ns) = 0;
  // Drains it if it still lingers for that.
  virtual void EndLingering() = 0;
  // Drains it if the peer hasn't answered to that.
  virtual void EndAnnounced() = 0;
  // Tells the calls whose contexts somebody watches to stop, as the server
  // doesn't wait for them any longer; returns how many.
  virtual std::size_t StopCalls() = 0;
  // The name of one of this connection's protocols; empty if it isn't.
  virtual std::string_view NameOf(const ServerProtocol* protocol) const = 0;

 protected:
  ~ServedConnection() override = default;
};

// A connection is first open (its socket is), then maybe lingers on until its
// last call has finished, then is gone.
class ConnectionSet {
 public:
  explicit ConnectionSet(std::size_t max_open);
  ~ConnectionSet();

  // False: `max_open` are open already.
  [[nodiscard]] bool Add(ServedConnection* connection);
  // Its socket is closed: out of the list.
  void Closed(ServedConnection* connection);
  // It is being destroyed; after Closed(), or after Add() returned false.
  void Gone();

  // Calls `f` with each open connection. It can't close meanwhile, so `f` must
  // not block or touch this set.
  template <class F>
  void ForEachOpen(F&& f) FLARE_EXCLUDES(mutex_) {
    ScopedLock guard(mutex_);
    for (ServedConnection& connection : open_) f(&connection);
  }

  std::size_t open() const;
  // Add() would return false now.
  bool full() const { return open() >= max_open_; }

  // Blocks until none is left at all; false: the deadline (NowNs() time)
  // passed first.
  bool WaitUntilGone(std::int64_t deadline_ns);
  // Blocks until none is open.
  void WaitUntilClosed();

 private:
  const std::size_t max_open_;
  mutable fiber::Mutex mutex_;
  fiber::ConditionVariable changed_;  // One of the numbers has reached zero.
  IntrusiveList<ServedConnection> open_ FLARE_GUARDED_BY(mutex_);
  std::size_t open_count_ FLARE_GUARDED_BY(mutex_) = 0;
  std::size_t live_count_ FLARE_GUARDED_BY(mutex_) = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CONNECTION_SET_H_

// One connection to a server, carrying many calls at once; a dedicated one
// (connection_kind.h) carries one at a time.
//
// Made, shared and dropped by its owner (peer_connections.h); calls use it like
// this (client_call.cc):
//
//   call's id = connection->calls().Insert(call)
//   connection->protocol().Write(...id..., &builder)
//   connection->Send(builder.DestructiveGet())
//   ... the reader, the timer, OnClosed or a canceller takes the call out of
//   calls() and completes it ...
//
// Life: counted by its users: the set that offers it to calls, the stream that
// calls back into it, and each call from when it gets the connection until it
// has ended. The last one to leave deletes it.

#ifndef FLARE_RPC_CLIENT_CLIENT_CONNECTION_H_
#define FLARE_RPC_CLIENT_CLIENT_CONNECTION_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/client/call_table.h"
#include "flare/rpc/client/connection_settings.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/connection_kind.h"
#include "flare/rpc/stream/input_hold.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/flood_guard.h"

namespace flare::rpc {

class ClientConnection;

// The maker of a connection, which offers it to calls (PeerConnections). It
// hears of the connection from any thread; none of this blocks.
class ConnectionOwner {
 public:
  // The owner's own notes on a connection, under its own lock.
  struct Notes {
    static constexpr std::size_t kNoPlace = static_cast<std::size_t>(-1);

    bool left = false;     // It was dropped.
    bool retired = false;  // It gets no further calls.
    // The rest is for dedicated connections.
    std::size_t place = kNoPlace;
    std::int64_t waits_until_ns = 0;  // To be started; 0: at once, or it was.
  };

  // It is established; the owner calls SetEstablished().
  virtual void OnConnected(ClientConnection* connection) = 0;
  // The server has answered, be it too late: it is well.
  virtual void OnProven() = 0;
  // Streams may share connections with calls, as the server has shown.
  virtual void OnStreamsCanShare() = 0;
  // The connection is closed; `why` if it never brought a whole reply.
  virtual void OnClosed(ClientConnection* connection,
                        const flare::Status* why) = 0;
  // The call on this dedicated connection has ended, and stops to use it.
  // `keep`: it may carry another one; else it is closed.
  virtual void Return(ClientConnection* connection, bool keep) = 0;

  // No further calls on this connection; those under way go on.
  virtual void Retire(ClientConnection* connection) = 0;
  // Whether OnProven() was ever called, for any of its connections.
  virtual bool proven() const = 0;
  // Why the last attempt failed, if there was none since that didn't.
  virtual flare::Status LastFailure() const = 0;

 protected:
  ~ConnectionOwner() = default;
};

class ClientConnection final : public io::StreamHandler,
                               public StreamOutput,
                               private fiber::Timer {
 public:
  struct Options {
    ConnectionKind kind = ConnectionKind::kMultiplexed;
    Endpoint peer;
    std::size_t group = 0;  // Its poller watches the connection.
    std::unique_ptr<io::Transport> transport = nullptr;  // Null: a plain one.
  };
  // A connection of `owner`, which has its settings. It has two users: the
  // caller and the stream. Nothing happens until SetStart() and Start().
  ClientConnection(std::shared_ptr<ConnectionOwner> owner,
                   const ConnectionSettings& settings,
                   std::unique_ptr<ClientProtocol> protocol, Options options);
  ~ClientConnection() override;

  // When Start() will be called; the connection gives up the settings'
  // connect_timeout later. Once, before anything else uses
  // it; from then on requests may be sent.
  void SetStart(std::int64_t at_ns);
  // Begins to connect, unless it is closed already. Doesn't block.
  void Start() { stream_->Start(); }

  // Each call under way is a user (see Life above).
  void AddUser() {
    // relaxed: the caller knows the connection through a user.
    users_.fetch_add(1, std::memory_order_relaxed);
  }
  void RemoveUser() {
    // acq_rel: every use happens before the destruction [UC1].
    if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // For the call that the owner gave it to, at its end, in
  // place of RemoveUser(). `clean`: nothing is to come for that call any more,
  // so that a connection of kPooled may carry another one.
  void Release(bool clean) {
    if (kind_ == ConnectionKind::kMultiplexed) [[likely]] {
      RemoveUser();
    } else {
      ReturnToOwner(clean && kind_ == ConnectionKind::kPooled);
    }
  }
  // No further call gets it. Those under way go on.
  void Retire();
  std::uint32_t users() const {
    return users_.load(std::memory_order_relaxed);  // A hint.
  }
  // Why the server could not be connected to before; OK: it wasn't tried, or
  // could.
  flare::Status LastFailure() const;

  // No call under way? For the set, while it and the stream are users.
  bool idle() const { return users() <= 2; }

  ConnectionKind kind() const { return kind_; }

  CallTable& calls() { return calls_; }
  const ClientProtocol& protocol() const { return *protocol_; }
  // For streams, which are users of the connection until they are detached.
  ClientProtocol& protocol() { return *protocol_; }
  const RefPtr<io::StreamConnection>& output() const { return stream_; }
  const Endpoint& peer() const { return stream_->remote_endpoint(); }
  const ConnectionSettings& settings() const { return settings_; }

  // Queues the bytes of one request: kOk or kClosed. Any thread; doesn't block.
  // After kClosed OnClosed() is running or yet to come, and ends all calls in
  // calls().
  [[nodiscard]] io::WriteResult Send(Buffer&& bytes) {
    return stream_->Write(std::move(bytes));
  }
  // Too much is waiting to be sent for a further request. A hint.
  bool OutputIsFull() const { return stream_->BufferedOutput() >= kMaxOutput; }
  // While OutputIsFull(); blocks the fiber (or thread) until the deadline at
  // most.
  [[nodiscard]] io::RoomResult WaitWritable(std::int64_t deadline_ns) {
    return stream_->WaitWritable(deadline_ns);
  }

  // Ends the connection; all calls on it fail with `why`. Any thread; doesn't
  // block.
  void Close(const flare::Status& why);

  // The status of calls once the connection is closed: STATUS_FAIL_TO_CONNECT,
  // STATUS_IO_ERROR or STATUS_CHANNEL_SHUTDOWN, and the cause. OK: it isn't.
  flare::Status close_reason() const;

  // A call, a user, will wait for so long. The server may leave bytes untaken
  // or unacknowledged for longer than any of the connection's calls was to
  // wait, and at least 10 s, before the connection breaks. Any thread; doesn't
  // block; a system call now and then, at most.
  void ExpectWait(std::int64_t wait_ns) {
    // relaxed: it only grows, under lock_.
    if (wait_ns >= peer_timeout_ns_.load(std::memory_order_relaxed))
        [[unlikely]] {
      RaisePeerTimeout(wait_ns);
    }
  }

  // A call that was sent at `sent_ns`, and is a user yet, had no reply in time.
  // If all the while one message was coming in, whose size may be wrong, no
  // further calls come here; calls that wait for no less than that message may
  // get it. Any thread; doesn't block.
  void OnTimeout(std::int64_t sent_ns);

  // Asks a server that was silent for the settings' keep_alive at `now_ns`, and
  // closes the connection if it hasn't said anything for as long again. For a
  // user that calls it now and then, from one thread at a time; doesn't block.
  void KeepAlive(std::int64_t now_ns);

  // A call or stream has ended otherwise than by a response: closes the
  // connection if the server takes no more calls on it and none is left. For a
  // user. Any thread; doesn't block.
  void CloseIfThrough();

  // False, for a moment more or for ever: it isn't established. If it never is
  // calls fail with STATUS_FAIL_TO_CONNECT, and nothing was sent. Any thread.
  bool established() const {
    // relaxed: once it is true it stays so.
    return established_.load(std::memory_order_relaxed);
  }
  // For the owner, in OnConnected().
  void SetEstablished() {
    // relaxed: for others than the owner a hint.
    established_.store(true, std::memory_order_relaxed);
  }
  // For the call of this id, which is one-way and has handed its request over:
  // ends it once the connection is established, now or later. If that is closed
  // before, the call ends as others do.
  void EndOneWay(std::uint32_t id);
  ConnectionOwner::Notes& notes() { return notes_; }
  const ConnectionOwner::Notes& notes() const { return notes_; }

  std::int64_t last_activity_ns() const { return stream_->last_activity_ns(); }

  // StreamOutput.
  bool WriteSoon(Buffer&& bytes) override;
  void Abort(const flare::Status& why) override { Close(why); }
  void SendLater() override;
  void HoldInput() override { hold_.Hold(); }
  void ReleaseInput() override { hold_.Release(stream_.Get()); }

  // io::StreamHandler.
  void OnConnected() override;
  bool OnData(Buffer& in, std::size_t* need, std::string* error) override;
  void OnClosed(const flare::Status& why) override;

 private:
  static constexpr std::size_t kMaxOutput = std::size_t{64} << 20;

  bool TakeReplies(Buffer& in, std::size_t* need, std::string* error,
                   fiber::TaskList* ready);
  // Keeps message_began_ns_: since when the message that isn't complete yet has
  // been coming in. `within`: there is one. `begins`: messages were cut off
  // before it, so its time begins now.
  void NoteIncomplete(bool within, bool begins, std::int64_t now_ns);
  // No call or stream is left. For ever, once calls_ is closed.
  bool HasNoCalls() const {
    return calls_.Empty() && !protocol_->HasOpenStreams();
  }
  void OnHandled();
  bool Dispatch(std::int64_t now_ns, std::string* error,
                fiber::TaskList* ready);
  [[gnu::cold, gnu::noinline]] void ReturnToOwner(bool keep);
  flare::Status DecideCloseReason(const flare::Status& why);
  [[gnu::cold, gnu::noinline]] void RaisePeerTimeout(std::int64_t wait_ns);
  void ApplyPeerTimeout() FLARE_REQUIRES(lock_);
  static void OnConnectTimeout(fiber::Timer* timer);

  std::atomic<std::uint32_t> users_{2};
  const ConnectionKind kind_;
  const std::shared_ptr<ConnectionOwner> owner_;
  const ConnectionSettings& settings_;
  ConnectionOwner::Notes notes_;
  std::atomic<bool> established_{false};
  const std::unique_ptr<ClientProtocol> protocol_;
  std::atomic<std::int64_t> peer_timeout_ns_;  // Written under lock_.
  CallTable calls_;
  RefPtr<io::StreamConnection> stream_;

  std::chrono::milliseconds connect_timeout_{0};
  InputHold hold_;
  std::atomic<bool> sends_later_{false};  // SendLater() has set a timer.
  // Frames written in a row while OutputIsFull().
  std::atomic<std::uint32_t> frames_while_full_{0};
  std::int64_t asked_at_ns_ = 0;  // By KeepAlive(); 0: nothing is owed.

  // For the stream's callbacks, which exclude each other.
  InboundResponse* incoming_ = nullptr;  // The response that Cut fills in next.
  bool connected_ = false;
  std::uint32_t replies_ = 0;  // That have come; comes around.
  // Counts replies beyond the calls that were made.
  FloodGuard unasked_{FloodGuard::kMaxReplies};
  bool proven_ = false;             // A whole reply has come.
  bool streams_can_share_ = false;  // The owner knows it.
  bool last_reply_ = false;  // The server said that it ends the connection.
  // last_reply_ for those that leave, until OnClosed() [UC5].
  std::atomic<bool> through_{false};
  // Since when a message has been coming in; 0: none is. Written by OnData.
  std::atomic<std::int64_t> message_began_ns_{0};

  mutable Spinlock lock_;
  flare::Status close_reason_ FLARE_GUARDED_BY(lock_);
  bool has_socket_ FLARE_GUARDED_BY(lock_) = false;
  std::vector<std::uint32_t> one_way_ FLARE_GUARDED_BY(lock_);  // [UC6]
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_CLIENT_CONNECTION_H_

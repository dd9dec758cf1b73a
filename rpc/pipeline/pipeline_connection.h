// One connection of a client that sends requests in order, without waiting for
// replies, and matches these with the requests in order. Derived classes read
// the replies.
//
//   connection->Start();
//   if (!connection->AwaitConnected(limit)) ...
//   if (connection->Submit(exchange.Get()) == ...kTaken)
//     Status status = connection->Await(exchange.Get(), limit);
//
// Rules:
//  [PX1] An exchange is in queue_ from Submit() to its last reply, or to the
//        connection's end. The queue holds a reference to it. Those from
//        first_unsent_ on still have their bytes.
//  [PX2] One caller of Submit() at a time, the one that has set writing_, sends
//        the bytes of all unsent exchanges. So they are sent in the order of
//        the queue, although lock_ isn't held meanwhile.
//  [PX3] The replies of an exchange are the reader's until `done` is set, and
//        then the waiter's. A waiter that gives up sets `abandoned` under
//        lock_; the exchange stays in the queue, and its replies are dropped.
//  [PX4] The connection refers to itself from HoldItself() to the end of
//        OnClosed().
#ifndef FLARE_RPC_PIPELINE_PIPELINE_CONNECTION_H_
#define FLARE_RPC_PIPELINE_PIPELINE_CONNECTION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/io/stream_connection.h"
#include "flare/io/transport.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/pipeline/pipeline_exchange.h"

namespace flare::rpc {

class PipelineConnection : public RefCounted<PipelineConnection>,
                           protected io::StreamHandler {
 public:
  // Is told of the end of a connection, by its last callback. Must not block.
  class Owner {
   public:
    virtual void OnGone(PipelineConnection* connection,
                        const flare::Status& why) = 0;

   protected:
    ~Owner() = default;
  };
  enum class Role { kShared, kSession };
  enum class Submitted {
    kTaken,
    kClosed,      // The exchange is as before.
    kOverloaded,  // The exchange is as before.
    kRefused,     // So is it: refuses_.
  };
  // Options of the client.
  struct Limits {
    std::size_t max_outstanding;
    std::size_t max_outstanding_bytes;
    std::chrono::nanoseconds max_silence;
  };

  // A long string is read in pieces of up to this size.
  static constexpr std::size_t kMaxRead = 1 << 20;

  // Only RefPtr's.
  ~PipelineConnection() override = default;

  // Begins to connect, unless it has been closed. Once. Doesn't block.
  void Start() { stream_->Start(); }

  // Blocks. False: the limit was exceeded. It may be closed, too.
  bool AwaitConnected(const WaitLimit& limit) {
    return opened_.WaitUntil(limit.stop, limit.at);
  }
  // Or closing.
  bool closed() const;
  // Why it is closed.
  flare::Status failure() const;

  // Sends the bytes of an exchange, once connected. Closes a connection that is
  // full and silent. Any thread; doesn't block.
  Submitted Submit(PipelineExchange* exchange);

  // Waits for all replies to a submitted exchange. Fails with a
  // PipelineErrorCode; with PIPELINE_FAIL_TO_CONNECT it was not sent. Blocks.
  flare::Status Await(PipelineExchange* exchange, const WaitLimit& limit);

  // `why` is that of requests under way. Any thread; doesn't block.
  void Close(const flare::Status& why);

 protected:
  using Queue = IntrusiveQueue<PipelineExchange, &PipelineExchange::next>;

  // Null `transport`: without TLS. To be started or closed.
  PipelineConnection(const Endpoint& peer,
                     std::unique_ptr<io::Transport> transport,
                     const Limits& limits, Role role,
                     std::weak_ptr<Owner> owner);
  void HoldItself();  // Once, when it is made.

  // The exchange that the next reply is for. Null: nobody has asked for one.
  PipelineExchange* AwaitsReply() const FLARE_REQUIRES(lock_);
  // Counts a reply for that. If it was the last one the caller sets `done` of
  // the result, without the lock.
  [[nodiscard]] RefPtr<PipelineExchange> CountReply() FLARE_REQUIRES(lock_);
  // For OnData(), which then fails: the reply isn't one.
  void NoteMalformed(const std::string& error);
  // A part of OnClosed(), with all exchanges off the queue.
  virtual void OnEnd() FLARE_REQUIRES(lock_) {}

  // io::StreamHandler, beside OnData().
  void OnConnected() override;
  void OnClosed(const flare::Status& why) override;

  const Role role_;
  const Limits limits_;
  const RefPtr<io::StreamConnection> stream_;

  mutable Spinlock lock_;
  Queue queue_ FLARE_GUARDED_BY(lock_);           // [PX1]
  bool refuses_ FLARE_GUARDED_BY(lock_) = false;  // Exchanges, from now on.
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  flare::Status failure_ FLARE_GUARDED_BY(lock_);

 private:
  // Takes the exchange into the queue. `*write`: the caller sends it [PX2].
  [[nodiscard]] Submitted Enqueue(PipelineExchange* exchange, bool* write)
      FLARE_REQUIRES(lock_);
  [[nodiscard]] bool TakeUnsent(Buffer* out);
  bool IsSilent() const FLARE_REQUIRES(lock_);
  void CloseAsSilent();
  // Notes why the connection has ended, unless that is known, and returns it.
  flare::Status NoteEnd(const flare::Status& why);
  void WatchForDeadHost();

  const std::weak_ptr<Owner> owner_;
  fiber::Event opened_;  // Connected, or closed.

  PipelineExchange* first_unsent_ FLARE_GUARDED_BY(lock_) = nullptr;
  std::size_t outstanding_ FLARE_GUARDED_BY(lock_) = 0;  // Replies.
  std::size_t outstanding_bytes_ FLARE_GUARDED_BY(lock_) = 0;
  bool writing_ FLARE_GUARDED_BY(lock_) = false;  // [PX2]
  bool connected_ FLARE_GUARDED_BY(lock_) = false;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_PIPELINE_PIPELINE_CONNECTION_H_

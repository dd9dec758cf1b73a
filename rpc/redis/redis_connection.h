// One connection of a RedisClient: commands go out in order, and replies are
// matched with them in order.
//
//   auto connection = RedisConnection::Make(peer, transport, options, role,
//                                           owner);
//   connection->Start();
//   Status connected = connection->AwaitConnected(limit, text);
//   auto exchange = RedisExchange::Make(command.Encode(), /*replies=*/1);
//   if (connection->Submit(exchange.Get()) == ...kTaken)
//     Status status = connection->Await(exchange.Get(), limit);
//
// Rules:
//  [RX1] An exchange is in queue_ from Submit() to its last reply, or to the
//        connection's end. The queue holds a reference to it. Those from
//        first_unsent_ on still have their bytes.
//  [RX2] One caller of Submit() at a time, the one that has set writing_, sends
//        the bytes of all unsent exchanges. So they are sent in the order of
//        the queue, although lock_ isn't held meanwhile.
//  [RX3] The replies of an exchange are the reader's until `done` is set, and
//        then the waiter's. A waiter that gives up sets `abandoned` under
//        lock_; the exchange stays in the queue, and its replies are dropped.
//  [RX4] The receiver waits for one Event, on its stack, that receiver_ points
//        to. A callback takes it from there and sets it, all under lock_; so
//        when the receiver finds it gone, with the lock held, nobody uses it
//        any more.
//  [RX5] Reading is paused in OnData() only, and resumed by the receiver that
//        has found paused_ set, with lock_ held each time: so no pause comes
//        after its end.
//  [RX6] The connection refers to itself from Make() to the end of OnClosed().
#ifndef FLARE_RPC_REDIS_REDIS_CONNECTION_H_
#define FLARE_RPC_REDIS_REDIS_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/io/stream_connection.h"
#include "flare/io/transport.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/redis/redis_exchange.h"
#include "flare/rpc/redis/resp_reader.h"
#include "flare/rpc/redis_client_options.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

class RedisConnection final : public RefCounted<RedisConnection>,
                              private io::StreamHandler {
 public:
  // Is told of the end of a connection, by its last callback. Must not block.
  class Owner {
   public:
    virtual void OnGone(RedisConnection* connection,
                        const flare::Status& why) = 0;

   protected:
    ~Owner() = default;
  };
  enum class Role { kShared, kSession };
  enum class Submitted {
    kTaken,
    kClosed,      // The exchange is as before.
    kOverloaded,  // The exchange is as before.
    kSubscribed,  // So is it: there are only messages.
  };

  // Null `transport`: without TLS. To be started or closed.
  static RefPtr<RedisConnection> Make(const Endpoint& peer,
                                      std::unique_ptr<io::Transport> transport,
                                      const RedisClientOptions& options,
                                      Role role, std::weak_ptr<Owner> owner);
  // Only RefPtr's.
  ~RedisConnection() override = default;

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
  Submitted Submit(RedisExchange* exchange);

  // Waits for all replies to a submitted exchange. Fails with a RedisErrorCode;
  // with REDIS_FAIL_TO_CONNECT it was not sent. Blocks.
  flare::Status Await(RedisExchange* exchange, const WaitLimit& limit);

  // Sends a command that is answered by messages: from now on all that comes is
  // one. Doesn't block. Fails while other commands wait for replies, or too
  // many bytes wait to be sent.
  flare::Status Subscribe(Buffer bytes);
  // Returns the next message. Blocks. For one fiber at a time.
  Expected<RedisReply, flare::Status> Receive(const WaitLimit& limit);

  // `why` is that of commands under way. Any thread; doesn't block.
  void Close(const flare::Status& why);

 private:
  using Queue = IntrusiveQueue<RedisExchange, &RedisExchange::next>;

  struct Message {
    RedisReply reply;
    std::size_t size;  // RespReader::reply_size().
  };

  RedisConnection(const Endpoint& peer,
                  std::unique_ptr<io::Transport> transport,
                  const RedisClientOptions& options, Role role,
                  std::weak_ptr<Owner> owner);

  // io::StreamHandler.
  void OnConnected() override;
  bool OnData(Buffer& in, std::size_t* need, std::string* error) override;
  void OnClosed(const flare::Status& why) override;

  // Takes the exchange into the queue. `*write`: the caller sends it [RX2].
  [[nodiscard]] Submitted Enqueue(RedisExchange* exchange, bool* write)
      FLARE_REQUIRES(lock_);
  [[nodiscard]] bool TakeUnsent(Buffer* out);
  // False: nobody has asked for it.
  [[nodiscard]] bool TakeReply(RedisReply reply, std::string* error);
  void TakeMessage(RedisReply message) FLARE_REQUIRES(lock_);
  bool IsSilent() const FLARE_REQUIRES(lock_);
  void CloseAsSilent();
  // Notes why the connection has ended, unless that is known, and returns it.
  flare::Status NoteEnd(const flare::Status& why);
  // As many messages wait to be received as may.
  bool HasManyUnread() const FLARE_REQUIRES(lock_) {
    return messages_.size() >= max_unread_ ||
           unread_bytes_ >= max_unread_bytes_;
  }
  void NotifyReceiver() FLARE_REQUIRES(lock_);
  bool paused() const;
  void WatchForDeadHost();

  const std::weak_ptr<Owner> owner_;
  const Role role_;
  const std::size_t max_outstanding_;
  const std::size_t max_outstanding_bytes_;
  const std::size_t max_unread_;
  const std::size_t max_unread_bytes_;
  const std::int64_t max_silence_ns_;
  const RefPtr<io::StreamConnection> stream_;
  fiber::Event opened_;  // Connected, or closed.
  RespReader reader_;    // The callbacks'.

  mutable Spinlock lock_;
  Queue queue_ FLARE_GUARDED_BY(lock_);  // [RX1]
  RedisExchange* first_unsent_ FLARE_GUARDED_BY(lock_) = nullptr;
  std::size_t outstanding_ FLARE_GUARDED_BY(lock_) = 0;  // Replies.
  std::size_t outstanding_bytes_ FLARE_GUARDED_BY(lock_) = 0;
  bool writing_ FLARE_GUARDED_BY(lock_) = false;  // [RX2]
  bool connected_ FLARE_GUARDED_BY(lock_) = false;
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  bool subscribed_ FLARE_GUARDED_BY(lock_) = false;
  bool paused_ FLARE_GUARDED_BY(lock_) = false;  // [RX5]
  std::deque<Message> messages_ FLARE_GUARDED_BY(lock_);
  std::size_t unread_bytes_ FLARE_GUARDED_BY(lock_) = 0;      // All messages_'.
  fiber::Event* receiver_ FLARE_GUARDED_BY(lock_) = nullptr;  // [RX4]
  flare::Status failure_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_CONNECTION_H_

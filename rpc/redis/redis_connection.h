// One connection of a RedisClient: commands go out in order, and replies are
// matched with them in order; or messages come.
//
//   auto connection = RedisConnection::Make(peer, transport, options, role,
//                                           owner);
//   connection->Start();
//   Status connected = connection->AwaitConnected(limit, text);
//   auto exchange = RedisExchange::Make(command.Encode(), /*replies=*/1);
//   if (connection->Submit(exchange.Get()) == ...kTaken)
//     Status status = connection->Await(exchange.Get(), limit);
//
// Rules, beside those of pipeline_connection.h:
//  [RX1] The receiver waits for one Event, on its stack, that receiver_ points
//        to. A callback takes it from there and sets it, all under lock_; so
//        when the receiver finds it gone, with the lock held, nobody uses it
//        any more.
//  [RX2] Reading is paused in OnData() only, and resumed by the receiver that
//        has found paused_ set, with lock_ held each time: so no pause comes
//        after its end.
#ifndef FLARE_RPC_REDIS_REDIS_CONNECTION_H_
#define FLARE_RPC_REDIS_REDIS_CONNECTION_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/io/transport.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/pipeline/pipeline_connection.h"
#include "flare/rpc/redis/redis_exchange.h"
#include "flare/rpc/redis/resp_reader.h"
#include "flare/rpc/redis_client_options.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

class RedisConnection final : public PipelineConnection {
 public:
  // Null `transport`: without TLS. To be started or closed.
  static RefPtr<RedisConnection> Make(const Endpoint& peer,
                                      std::unique_ptr<io::Transport> transport,
                                      const RedisClientOptions& options,
                                      Role role, std::weak_ptr<Owner> owner);
  // Only RefPtr's.
  ~RedisConnection() override = default;

  // Sends a command that is answered by messages: from now on all that comes is
  // one. Doesn't block. Fails while other commands wait for replies, or too
  // many bytes wait to be sent.
  flare::Status Subscribe(Buffer bytes);
  // Returns the next message. Blocks. For one fiber at a time.
  Expected<RedisReply, flare::Status> Receive(const WaitLimit& limit);

 private:
  struct Message {
    RedisReply reply;
    std::size_t size;  // RespReader::reply_size().
  };

  RedisConnection(const Endpoint& peer,
                  std::unique_ptr<io::Transport> transport,
                  const RedisClientOptions& options, Role role,
                  std::weak_ptr<Owner> owner);

  // io::StreamHandler.
  bool OnData(Buffer& in, std::size_t* need, std::string* error) override;
  // PipelineConnection.
  void OnEnd() override FLARE_REQUIRES(lock_) { NotifyReceiver(); }

  // False: nobody has asked for it.
  [[nodiscard]] bool TakeReply(RedisReply reply, std::string* error);
  void TakeMessage(RedisReply message) FLARE_REQUIRES(lock_);
  // As many messages wait to be received as may.
  bool HasManyUnread() const FLARE_REQUIRES(lock_) {
    return messages_.size() >= max_unread_ ||
           unread_bytes_ >= max_unread_bytes_;
  }
  void NotifyReceiver() FLARE_REQUIRES(lock_);
  bool paused() const;

  const std::size_t max_unread_;
  const std::size_t max_unread_bytes_;
  RespReader reader_;  // The callbacks'.

  bool paused_ FLARE_GUARDED_BY(lock_) = false;  // [RX2]
  std::deque<Message> messages_ FLARE_GUARDED_BY(lock_);
  std::size_t unread_bytes_ FLARE_GUARDED_BY(lock_) = 0;      // All messages_'.
  fiber::Event* receiver_ FLARE_GUARDED_BY(lock_) = nullptr;  // [RX1]
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_CONNECTION_H_

// Commands of a connection that came together, as one request of their server:
// runs them in their order, and sends their replies. Pooled.
//
//  [RS1] A connection has one batch with the server at a time: the reader hands
//        it over with `busy` set and the input held, and cuts nothing until the
//        batch has taken that back, behind its last reply. So the peer's state
//        is the batch's meanwhile, and replies leave in order.
#ifndef FLARE_RPC_REDIS_SERVER_REDIS_BATCH_H_
#define FLARE_RPC_REDIS_SERVER_REDIS_BATCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/own_request.h"
#include "flare/rpc/redis_reply.h"
#include "flare/rpc/redis_server/redis_commands.h"
#include "flare/rpc/redis_server/redis_dispatcher.h"
#include "flare/rpc/redis_service.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// A connection's part that its batches use.
struct RedisLink {
  RedisLink(const RedisService* service, std::size_t max_queued,
            ReplySink* reply_sink, std::uint64_t id)
      : dispatcher(service, max_queued, reply_sink),
        sink(reply_sink),
        peer(id) {}

  const RedisDispatcher dispatcher;
  ReplySink* const sink;
  RedisPeer peer;
  std::atomic<bool> busy{false};  // [RS1]
  bool ended = false;             // A reply was the last.
  std::size_t counted = 0;        // Memory of `peer` that counts as held.
};

class RedisBatch final : public OwnRequest {
 public:
  // From the pool, empty. `link` must outlive it.
  static RedisBatch* New(RedisLink* link);

  RedisCommands& commands() { return commands_; }
  // Behind the commands the input is malformed, as `text` says: the last reply
  // is that error.
  void SetFailure(const std::string& text) { failure_ = text; }

  // --- OwnRequest ---

  void Serve(OwnRequestHost* host) override;
  void Refuse(std::string_view text, OwnRequestHost* host) override;
  bool IsExempt() const override { return false; }
  void Recycle() override;

 private:
  Buffer RunAll(OwnRequestHost* host);
  RedisReply RunOne(std::size_t n, OwnRequestHost* host);
  bool ChangesConnection();
  void CountPeer();
  void Finish(Buffer&& last);

  RedisLink* link_ = nullptr;
  RedisCommands commands_;
  std::string failure_;
  std::vector<std::string_view> words_;  // The running command's.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_SERVER_REDIS_BATCH_H_

// Runs the commands of a connection: finds the handler, or answers by itself,
// and keeps the state of the connection: its user, its database, the commands
// that MULTI queues.
//
// One thread at a time. Blocks as handlers do.
#ifndef FLARE_RPC_REDIS_SERVER_REDIS_DISPATCHER_H_
#define FLARE_RPC_REDIS_SERVER_REDIS_DISPATCHER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flare/rpc/redis_reply.h"
#include "flare/rpc/redis_service.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

class RedisDispatcher {
 public:
  // Both must outlive it. `max_queued`: bytes of the commands between MULTI and
  // EXEC. `output`: the connection's.
  RedisDispatcher(const RedisService* service, std::size_t max_queued,
                  StreamOutput* output)
      : service_(*service), max_queued_(max_queued), output_(output) {}

  // Lets exceptions of handlers pass.
  RedisReply Run(const flare::RedisRequest& request) const;

  // Whether the command of that name makes later ones of its connection mean
  // something else.
  static bool ChangesConnection(std::string_view name);

 private:
  using Answer =
      RedisReply (RedisDispatcher::*)(const flare::RedisRequest&) const;
  // A command that has an answer without a handler.
  struct Builtin {
    std::string_view name;
    int arity;
    Answer answer;
    bool fixed;      // No handler takes its place.
    bool open;       // Also before AUTH.
    bool immediate;  // Between MULTI and EXEC, too.
  };
  // A command that there is: one of both.
  struct Found {
    const Builtin* builtin = nullptr;
    const RedisService::Command* command = nullptr;
    int arity = 0;
  };

  static const Builtin* FindBuiltin(std::string_view name);
  Found Find(std::string_view name) const;
  RedisReply Call(const Found& found, const flare::RedisRequest& request) const;
  RedisReply Queue(const flare::RedisRequest& request) const;
  RedisReply RunQueued(const RedisPeer::Words& command, RedisPeer* peer) const;
  RedisReply Authenticate(std::string_view user, std::string_view password,
                          RedisPeer* peer) const;
  RedisReply DescribeCommand(std::string_view name, int arity) const;

  RedisReply Auth(const flare::RedisRequest& request) const;
  RedisReply Client(const flare::RedisRequest& request) const;
  RedisReply Command(const flare::RedisRequest& request) const;
  RedisReply Discard(const flare::RedisRequest& request) const;
  RedisReply Echo(const flare::RedisRequest& request) const;
  RedisReply Exec(const flare::RedisRequest& request) const;
  RedisReply Hello(const flare::RedisRequest& request) const;
  RedisReply Info(const flare::RedisRequest& request) const;
  RedisReply Multi(const flare::RedisRequest& request) const;
  RedisReply Ping(const flare::RedisRequest& request) const;
  RedisReply Quit(const flare::RedisRequest& request) const;
  RedisReply Reset(const flare::RedisRequest& request) const;
  RedisReply Select(const flare::RedisRequest& request) const;

  static const Builtin kBuiltins[];

  const RedisService& service_;
  const std::size_t max_queued_;
  StreamOutput* const output_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_SERVER_REDIS_DISPATCHER_H_

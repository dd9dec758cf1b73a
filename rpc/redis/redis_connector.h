// The connections of a RedisClient to a server: the one that its commands
// share, which is made again when it has broken, and those of sessions.
//
//   auto exchanged = RunRedisRequest(*connector, nullptr, {&command}, limit);
//   auto session = connector->NewSession(limit);
#ifndef FLARE_RPC_REDIS_REDIS_CONNECTOR_H_
#define FLARE_RPC_REDIS_REDIS_CONNECTOR_H_

#include <functional>
#include <memory>
#include <string>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/io/transport.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/pipeline/pipeline_connector.h"
#include "flare/rpc/redis/redis_connection.h"
#include "flare/rpc/redis/redis_uri.h"
#include "flare/rpc/redis_client_options.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

// A server's place among others; none if it is alone.
struct RedisPlace {
  // Sends READONLY first, so that a replica of a cluster runs reads.
  bool reads_replicas = false;
  // Finds the address to connect to, in place of those of the URI, and is told
  // that it wasn't a master's: see RedisSentinels. Empty: the URI has it.
  std::function<Expected<std::string, flare::Status>()> find_master = {};
  std::function<void()> doubt_master = {};
  // The server may not be the right one any more: the shared connection has
  // broken or couldn't be made, or a slot has moved away. Any thread; doesn't
  // block.
  std::function<void()> on_trouble = {};
};

// All functions are thread-safe.
class RedisConnector final : public PipelineConnector {
 public:
  // `uri`: of one server, or of sentinels that `place` has, too.
  static std::shared_ptr<RedisConnector> Create(RedisUri uri,
                                                RedisClientOptions options,
                                                RedisPlace place = {});

  const RedisClientOptions& options() const { return options_; }

  // Makes a connection for a session, which closes it. Blocks and fails as
  // Shared() does.
  Expected<RefPtr<RedisConnection>, flare::Status> NewSession(
      const WaitLimit& limit);

  // The server has answered with this error, over this connection.
  void NoteError(const RedisReply& error, PipelineConnection* connection);

 private:
  RedisConnector(RedisUri uri, RedisClientOptions options, RedisPlace place);

  // PipelineConnector.
  Connection MakeConnection(const Endpoint& peer,
                            std::unique_ptr<io::Transport> transport,
                            Role role) override;
  flare::Status ShakeHands(const Connection& connection,
                           const WaitLimit& limit) override;
  Made Connect(Role role) override;
  void OnTrouble() const override;

  const RedisUri uri_;
  const RedisClientOptions options_;
  const RedisPlace place_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_CONNECTOR_H_

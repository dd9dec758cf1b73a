// Commands to a Redis cluster: each goes to the server that has its keys, and
// goes on to another one if the server says so.
//
//   auto cluster = RedisCluster::Create(uri, options);
//   auto reply = cluster->Execute({"GET", key}, {});
//
// All functions are thread-safe. They block as those of RedisClient, of which
// this is the part for clusters. The commands have been checked
// (CheckRedisCommand), and live until the function returns.
#ifndef FLARE_RPC_REDIS_REDIS_CLUSTER_H_
#define FLARE_RPC_REDIS_REDIS_CLUSTER_H_

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/redis/redis_request.h"
#include "flare/rpc/redis/redis_topology.h"
#include "flare/rpc/redis/redis_uri.h"
#include "flare/rpc/redis_client_options.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

class RedisCluster final {
 public:
  static std::shared_ptr<RedisCluster> Create(RedisUri uri,
                                              RedisClientOptions options);

  Expected<RedisReply, flare::Status> Execute(const RedisCommand& command,
                                              const WaitLimit& limit) const;
  Expected<std::vector<RedisReply>, flare::Status> ExecuteAll(
      const RedisCommandList& commands, const WaitLimit& limit) const;
  // `commands`: MULTI, those of the transaction, and EXEC. The replies to all,
  // by *server.
  Expected<std::vector<RedisReply>, flare::Status> Transact(
      const RedisCommandList& commands, const WaitLimit& limit,
      RedisTopology::Server* server) const;

  // The servers to make a session with, the first one that can be reached: the
  // master that has the key; nullopt: any master.
  Expected<std::vector<RedisTopology::Server>, flare::Status> ServersFor(
      std::optional<std::string_view> key, const WaitLimit& limit) const;
  Expected<std::vector<RedisTopology::Server>, flare::Status> Masters(
      const WaitLimit& limit) const {
    return topology_->Masters(limit);
  }

  const RedisClientOptions& options() const { return topology_->options(); }

 private:
  explicit RedisCluster(std::shared_ptr<RedisTopology> topology)
      : topology_(std::move(topology)) {}

  const std::shared_ptr<RedisTopology> topology_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_CLUSTER_H_

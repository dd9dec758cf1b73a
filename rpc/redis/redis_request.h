// One request of a RedisClient: commands that are sent together, as the
// counters see it.
//
//   auto exchanged = RunRedisRequest(*connector, nullptr, {&command}, limit);
//   if (!exchanged) return exchanged.error();
//   Use((*exchanged)->last);
#ifndef FLARE_RPC_REDIS_REDIS_REQUEST_H_
#define FLARE_RPC_REDIS_REDIS_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/redis/redis_connection.h"
#include "flare/rpc/redis/redis_connector.h"
#include "flare/rpc/redis/redis_exchange.h"
#include "flare/rpc/redis_command.h"

namespace flare::rpc {

// Commands, in order. They outlive the request.
using RedisCommandList = std::vector<const RedisCommand*>;
RedisCommandList AddressesOf(const std::vector<RedisCommand>& commands);

// How a command is sent.
enum class RedisWay : std::uint8_t { kShared, kSession, kSubscription };

// Fails with REDIS_INVALID_COMMAND. Doesn't block.
flare::Status CheckRedisCommand(const RedisCommand& command, RedisWay way);
flare::Status CheckRedisCommands(const RedisCommandList& commands,
                                 RedisWay way);
flare::Status InvalidRedisCommand(std::string why);

using RedisExchanged = Expected<RefPtr<RedisExchange>, flare::Status>;

// Sends commands, of which there is one at least, and waits for the replies.
// Null `session`: over the shared connection, for which it waits no longer than
// `to_connect`. The commands have been checked. Blocks; fails with a
// RedisErrorCode, and names the server.
RedisExchanged RunRedisRequest(RedisConnector& connector,
                               RedisConnection* session,
                               const RedisCommandList& commands,
                               const WaitLimit& limit,
                               const WaitLimit& to_connect);
inline RedisExchanged RunRedisRequest(RedisConnector& connector,
                                      RedisConnection* session,
                                      const RedisCommandList& commands,
                                      const WaitLimit& limit) {
  return RunRedisRequest(connector, session, commands, limit, limit);
}

// Sends a question whose answer the program's command needs before it can be
// sent. Blocks, and fails as a command that wasn't sent.
RedisExchanged AskRedis(RedisConnector& connector, const RedisCommand& question,
                        const WaitLimit& limit);

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_REQUEST_H_

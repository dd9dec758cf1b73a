// The protocol of Redis, as a server speaks it: RESP2, and RESP3 to clients
// that ask for it. A connection is known by an array of strings, or by a line
// of text that is no HTTP.
#ifndef FLARE_RPC_REDIS_SERVER_REDIS_SERVER_PROTOCOL_H_
#define FLARE_RPC_REDIS_SERVER_REDIS_SERVER_PROTOCOL_H_

#include <memory>

#include "flare/rpc/protocol.h"
#include "flare/rpc/redis_service.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// `service` must outlive it.
std::unique_ptr<ServerProtocol> NewRedisServerProtocol(
    const RedisService* service, const Limits& limits, ReplySink* sink);

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_SERVER_REDIS_SERVER_PROTOCOL_H_

// Replies as bytes.
#ifndef FLARE_RPC_REDIS_SERVER_REDIS_REPLY_WRITER_H_
#define FLARE_RPC_REDIS_SERVER_REDIS_REPLY_WRITER_H_

#include <cstddef>

#include "flare/base/buffer.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

// Arrays within arrays. Deeper ones are written as errors.
inline constexpr std::size_t kMaxRedisReplyDepth = 32;

// In RESP3, or in RESP2, in which maps and pushes are arrays, doubles texts and
// booleans 0 or 1. Line ends in statuses and errors become blanks. A map's
// last key without a value gets nil.
void WriteRedisReply(RedisReply&& reply, bool resp3, BufferBuilder* out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_SERVER_REDIS_REPLY_WRITER_H_

// Commands that are sent together, and their replies: what goes through a
// RedisConnection (redis_connection.h).
#ifndef FLARE_RPC_REDIS_REDIS_EXCHANGE_H_
#define FLARE_RPC_REDIS_REDIS_EXCHANGE_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/object_pool.h"
#include "flare/base/ref_ptr.h"
#include "flare/rpc/pipeline/pipeline_exchange.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

struct RedisExchange final : PipelineExchange {
  using PipelineExchange::PipelineExchange;

  // `replies`: at least one.
  static RefPtr<RedisExchange> Make(Buffer bytes, std::size_t replies) {
    RefPtr<RedisExchange> made(adopt_ref,
                               new RedisExchange(std::move(bytes), replies));
    made->earlier.reserve(replies - 1);
    return made;
  }

  // From the pool.
  static void* operator new(std::size_t size) {
    static_cast<void>(size);
    return PoolAllocate<sizeof(RedisExchange)>();
  }
  static void operator delete(void* memory) {
    PoolFree<sizeof(RedisExchange)>(memory);
  }

  std::vector<RedisReply> earlier;  // All replies but the last one.
  RedisReply last;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_EXCHANGE_H_

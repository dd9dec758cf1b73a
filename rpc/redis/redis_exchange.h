// Commands that are sent together, and their replies: what goes through a
// RedisConnection (redis_connection.h), which has the rules of access.
#ifndef FLARE_RPC_REDIS_REDIS_EXCHANGE_H_
#define FLARE_RPC_REDIS_REDIS_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/object_pool.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/event.h"
#include "flare/rpc/redis_reply.h"

namespace flare::rpc {

struct RedisExchange final : RefCounted<RedisExchange> {
  // `replies`: at least one.
  static RefPtr<RedisExchange> Make(Buffer bytes, std::size_t replies) {
    RefPtr<RedisExchange> made(adopt_ref, new RedisExchange);
    made->size = bytes.size();
    made->bytes = std::move(bytes);
    made->expected = replies;
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

  RedisExchange* next = nullptr;
  Buffer bytes;  // Until they are sent.
  std::size_t size = 0;
  std::size_t expected = 1;
  std::size_t received = 0;
  std::int64_t sent_ns = 0;
  bool sent = false;
  bool abandoned = false;

  std::vector<RedisReply> earlier;  // All replies but the last one.
  RedisReply last;
  flare::Status failure;
  fiber::Event done;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_EXCHANGE_H_

// The servers of a Redis cluster, and which of them has which slots.
//
//   auto topology = RedisTopology::Create(uri, options);
//   auto server = topology->Find(slot, /*reads=*/false, limit);
//   if (!server) return server.error();    // No server of the cluster answers.
//   RunRedisRequest(**server, ...);        // "MOVED 3999 10.0.0.2:6379"
//   server = topology->Move(3999, "10.0.0.2:6379");
//
// One server is asked for the map of slots, when the first command comes, and
// again after signs that the map is old: RequestRefresh(). Servers that aren't
// in a new map are forgotten: their connections are closed once no command or
// session uses them.
#ifndef FLARE_RPC_REDIS_REDIS_TOPOLOGY_H_
#define FLARE_RPC_REDIS_REDIS_TOPOLOGY_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/redis/redis_connector.h"
#include "flare/rpc/redis/redis_slot_map.h"
#include "flare/rpc/redis/redis_uri.h"
#include "flare/rpc/redis_client_options.h"

namespace flare::rpc {

// All functions are thread-safe.
class RedisTopology final : public std::enable_shared_from_this<RedisTopology> {
 public:
  using Server = std::shared_ptr<RedisConnector>;
  using Found = Expected<Server, flare::Status>;

  // Doesn't block.
  static std::shared_ptr<RedisTopology> Create(RedisUri uri,
                                               RedisClientOptions options);

  // The master of a slot, or, if a replica will do as the command only `reads`,
  // one of those, in turn. Any master with slots for kNoRedisSlot, and for
  // slots that nobody has. Where there is a choice, servers in_doubt() are
  // passed over, and connected to in the background, so that they come back;
  // for a read the master takes the place of the last replica. `*only`: there
  // is no choice. Blocks while there is no map yet. Fails with a RedisErrorCode
  // of commands that weren't sent.
  Found Find(int slot, bool reads, const WaitLimit& limit,
             bool* only = nullptr);
  // One for each set of slots. Blocks and fails as Find() does.
  Expected<std::vector<Server>, flare::Status> Masters(const WaitLimit& limit);
  // Masters() in the order in which to try them: beginning with another one
  // each time, those in_doubt() last.
  Expected<std::vector<Server>, flare::Status> MastersInTurn(
      const WaitLimit& limit);

  // The server at an address. Doesn't block.
  Server At(const std::string& address);
  // Notes that the slot is there, and returns the server. Doesn't block.
  Server Move(int slot, const std::string& address);

  // There are signs that the map is old: asks for it, unless that happens
  // already or has just happened. Any thread; doesn't block.
  void RequestRefresh();

  const RedisClientOptions& options() const { return options_; }

 private:
  struct Shard {
    Server master;
    std::vector<Server> replicas = {};
    std::size_t slots = 0;  // Until the next map a former master is left.
  };
  using Servers = std::map<std::string, Server>;

  // One question for the map.
  struct Refresh {
    flare::Status result;  // Once it is done.
    fiber::Event done;
  };

  RedisTopology(RedisUri uri, RedisClientOptions options);

  Server NewServer(const std::string& address);
  // Null: there is no map.
  Server Look(int slot, bool reads, bool* only);
  // A server that may run the command, the `n`th from its `turn` on, and how
  // many there are.
  Server Choose(int slot, bool reads, std::size_t turn, std::size_t n,
                std::size_t* of);
  std::uint32_t NextTurn() {
    // relaxed: any number does.
    return turn_.fetch_add(1, std::memory_order_relaxed);
  }
  flare::Status AwaitMap(const WaitLimit& limit);
  void RefreshIfOld();
  // Returns the question under way, a new one perhaps. Null: it would come too
  // soon after the last one.
  std::shared_ptr<Refresh> StartRefresh(bool soon);
  void Ask(Refresh* refresh);
  flare::Status AskSomebody();
  flare::Status AskOneOf(std::span<const Server> servers,
                         std::chrono::nanoseconds patience);
  std::vector<Server> KnownServers();
  // Adds seeds that aren't there.
  void AddSeeds(std::vector<Server>* servers);
  // Nobody that was `asked` has answered with a map. Forgets those that have a
  // connection, but are in no map, so that their names are looked up again:
  // another address may be that of a better server.
  void ForgetOutsiders(const std::vector<Server>& asked);
  bool IsInMap(const Server& server);
  void TakeMap(const RedisSlotMap& map);

  const RedisUri uri_;
  const RedisClientOptions options_;
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<std::int64_t> old_at_ns_{0};  // The map is then.

  Spinlock lock_;                                      // Innermost.
  std::vector<Shard> shards_ FLARE_GUARDED_BY(lock_);  // Empty: no map.
  std::vector<std::uint16_t> shard_of_ FLARE_GUARDED_BY(lock_);  // By slot.

  ThreadMutex mutex_;
  // Those of the last map, and others that are needed until the next one: the
  // seeds at first, or when nobody else answers, and targets of redirects.
  Servers servers_ FLARE_GUARDED_BY(mutex_);
  std::shared_ptr<Refresh> refresh_ FLARE_GUARDED_BY(mutex_);
  std::int64_t next_refresh_ns_ FLARE_GUARDED_BY(mutex_) = 0;

  // Only the question under way uses it.
  std::int64_t next_forgetting_ns_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_REDIS_TOPOLOGY_H_

#include "flare/rpc/redis/redis_topology.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/fiber/task.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/redis/redis_keys.h"
#include "flare/rpc/redis/redis_request.h"

namespace flare::rpc {
namespace {

// Replicas that join make themselves felt by no error.
constexpr std::int64_t kMaxMapAgeNs = 60'000'000'000;

// A server that hasn't answered within this part of connect_timeout is asked
// again behind the others.
constexpr int kImpatience = 4;

// Those with a connection first, since the others may be dead; else in any
// order, so that a server with an old map isn't always the one to be asked.
void OrderServersToAsk(std::vector<RedisTopology::Server>* servers) {
  std::uint64_t random = static_cast<std::uint64_t>(NowNs());
  for (std::size_t i = servers->size(); i > 1; --i) {
    random = MixBits(random);
    std::swap((*servers)[i - 1], (*servers)[random % i]);
  }
  std::stable_partition(servers->begin(), servers->end(),
                        [](const auto& server) { return server->connected(); });
}

Expected<RedisSlotMap, flare::Status> AskForMap(RedisConnector& server,
                                                const WaitLimit& limit) {
  static const RedisCommand slots{"CLUSTER", "SLOTS"};
  const auto exchanged = AskRedis(server, slots, limit);
  if (!exchanged) return exchanged.error();
  auto map = ReadSlotMap((*exchanged)->last, server.address());
  if (!map) return server.Named(map.error());
  return map;
}

}  // namespace

std::shared_ptr<RedisTopology> RedisTopology::Create(
    RedisUri uri, RedisClientOptions options) {
  std::shared_ptr<RedisTopology> made(
      new RedisTopology(std::move(uri), std::move(options)));
  for (const std::string& seed : made->uri_.addresses) made->At(seed);
  return made;
}

RedisTopology::RedisTopology(RedisUri uri, RedisClientOptions options)
    : uri_(std::move(uri)), options_(std::move(options)) {}

// --- servers -----------------------------------------------------------------

RedisTopology::Server RedisTopology::NewServer(const std::string& address) {
  RedisUri uri = uri_;
  uri.kind = RedisUri::Kind::kServer;
  uri.addresses = {address};
  RedisPlace place;
  place.reads_replicas = options_.read_from_replicas;
  place.on_trouble = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->RequestRefresh();
  };
  return RedisConnector::Create(std::move(uri), options_, std::move(place));
}

RedisTopology::Server RedisTopology::At(const std::string& address) {
  {
    ScopedLock guard(mutex_);
    const auto known = servers_.find(address);
    if (known != servers_.end()) return known->second;
  }
  const Server made = NewServer(address);
  ScopedLock guard(mutex_);
  return servers_.try_emplace(address, made).first->second;
}

RedisTopology::Server RedisTopology::Move(int slot,
                                          const std::string& address) {
  const Server server = At(address);
  {
    ScopedLock guard(lock_);
    std::size_t at = 0;
    while (at != shards_.size() && shards_[at].master != server) ++at;
    if (at == shards_.size() && at != 0 && at != RedisSlotMap::kNoShard) {
      shards_.push_back({.master = server});
    }
    if (at < shards_.size()) {
      std::uint16_t& mine = shard_of_[static_cast<std::size_t>(slot)];
      if (mine < shards_.size()) --shards_[mine].slots;
      ++shards_[at].slots;
      mine = static_cast<std::uint16_t>(at);
    }
  }
  RequestRefresh();
  return server;
}

RedisTopology::Found RedisTopology::Find(int slot, bool reads,
                                         const WaitLimit& limit, bool* only) {
  RefreshIfOld();
  bool ignored = false;
  if (only == nullptr) only = &ignored;
  for (;;) {
    Server server = Look(slot, reads, only);
    if (server != nullptr) return server;
    if (auto status = AwaitMap(limit); !status.ok()) return status;
  }
}

RedisTopology::Server RedisTopology::Look(int slot, bool reads, bool* only) {
  const std::size_t turn = NextTurn();
  std::size_t choices = 0;
  Server first = Choose(slot, reads, turn, 0, &choices);
  *only = choices < 2;
  if (*only || !first->in_doubt()) return first;
  first->ConnectSoon();
  for (std::size_t n = 1; n < choices; ++n) {
    Server other = Choose(slot, reads, turn, n, &choices);
    if (!other->in_doubt()) return other;
    other->ConnectSoon();
  }
  return first;
}

RedisTopology::Server RedisTopology::Choose(int slot, bool reads,
                                            std::size_t turn, std::size_t n,
                                            std::size_t* of) {
  ScopedLock guard(lock_);
  *of = shards_.size();
  if (shards_.empty()) return nullptr;
  std::size_t at = RedisSlotMap::kNoShard;
  if (slot != kNoRedisSlot) at = shard_of_[static_cast<std::size_t>(slot)];
  if (at == RedisSlotMap::kNoShard) {
    at = (turn + n) % shards_.size();
    // There is one with slots.
    while (shards_[at].slots == 0) at = (at + 1) % shards_.size();
    return shards_[at].master;
  }
  const Shard& shard = shards_[at];
  const std::size_t replicas = reads ? shard.replicas.size() : 0;
  *of = replicas + 1;
  if (n >= replicas) return shard.master;
  return shard.replicas[(turn + n) % replicas];
}

Expected<std::vector<RedisTopology::Server>, flare::Status>
RedisTopology::Masters(const WaitLimit& limit) {
  RefreshIfOld();
  for (;;) {
    {
      ScopedLock guard(lock_);
      std::vector<Server> masters;
      for (const Shard& shard : shards_) {
        if (shard.slots != 0) masters.push_back(shard.master);
      }
      if (!masters.empty()) return masters;
    }
    if (auto status = AwaitMap(limit); !status.ok()) return status;
  }
}

Expected<std::vector<RedisTopology::Server>, flare::Status>
RedisTopology::MastersInTurn(const WaitLimit& limit) {
  auto masters = Masters(limit);
  if (!masters) return masters;
  const std::size_t turn = NextTurn() % masters->size();
  std::rotate(masters->begin(),
              masters->begin() + static_cast<std::ptrdiff_t>(turn),
              masters->end());
  const auto others = std::stable_partition(
      masters->begin(), masters->end(),
      [](const Server& server) { return !server->in_doubt(); });
  std::for_each(others, masters->end(),
                [](const Server& server) { server->ConnectSoon(); });
  return masters;
}

// --- the map -----------------------------------------------------------------

flare::Status RedisTopology::AwaitMap(const WaitLimit& limit) {
  const std::shared_ptr<Refresh> refresh = StartRefresh(/*soon=*/true);
  if (!refresh->done.WaitUntil(limit.stop, limit.at)) {
    return limit.Exceeded("waiting for the map of the cluster's slots",
                          {REDIS_TIMEOUT_UNSENT, REDIS_CANCELLED_UNSENT});
  }
  return refresh->result;
}

void RedisTopology::RefreshIfOld() {
  // relaxed: it is only a time.
  if (NowNs() >= old_at_ns_.load(std::memory_order_relaxed)) RequestRefresh();
}

void RedisTopology::RequestRefresh() {
  try {
    if (IsClientSideOpen()) static_cast<void>(StartRefresh(/*soon=*/false));
  } catch (const std::bad_alloc&) {  // The next trouble asks again.
  }
}

std::shared_ptr<RedisTopology::Refresh> RedisTopology::StartRefresh(bool soon) {
  std::shared_ptr<Refresh> mine;
  {
    ScopedLock guard(mutex_);
    if (refresh_ != nullptr) return refresh_;
    if (!soon && NowNs() < next_refresh_ns_) return nullptr;
    mine = refresh_ = std::make_shared<Refresh>();
  }
  try {
    fiber::Spawn([self = shared_from_this(), mine] { self->Ask(mine.get()); });
  } catch (const std::bad_alloc&) {
    ScopedLock guard(mutex_);
    refresh_ = nullptr;
    mine->result = flare::Status(REDIS_FAIL_TO_CONNECT);
    mine->done.Set();
  }
  return mine;
}

void RedisTopology::Ask(Refresh* refresh) {
  try {
    refresh->result = AskSomebody();
  } catch (const std::bad_alloc&) {
    refresh->result = flare::Status(REDIS_FAIL_TO_CONNECT);
  }
  {
    ScopedLock guard(mutex_);
    refresh_ = nullptr;
    next_refresh_ns_ =
        SaturatingAdd(NowNs(), ToNs(options_.min_refresh_interval));
  }
  refresh->done.Set();
}

flare::Status RedisTopology::AskSomebody() {
  const std::chrono::nanoseconds patience = options_.connect_timeout;
  std::vector<Server> servers = KnownServers();
  const std::size_t known = servers.size();
  if (AskOneOf(servers, patience / kImpatience).ok()) return {};
  AddSeeds(&servers);
  const auto seeds = std::span<const Server>(servers).subspan(known);
  if (AskOneOf(seeds, patience / kImpatience).ok()) return {};
  flare::Status status = AskOneOf(servers, patience);
  if (!status.ok()) ForgetOutsiders(servers);
  return status;
}

flare::Status RedisTopology::AskOneOf(std::span<const Server> servers,
                                      std::chrono::nanoseconds patience) {
  flare::Status failure(REDIS_FAIL_TO_CONNECT, "the cluster has no servers");
  for (const Server& server : servers) {
    const auto map = AskForMap(*server, WaitLimit::In(patience));
    if (map) {
      TakeMap(*map);
      return {};
    }
    failure = map.error();
  }
  return failure;
}

std::vector<RedisTopology::Server> RedisTopology::KnownServers() {
  std::vector<Server> servers;
  {
    ScopedLock guard(mutex_);
    for (const auto& [address, server] : servers_) servers.push_back(server);
  }
  OrderServersToAsk(&servers);
  return servers;
}

void RedisTopology::AddSeeds(std::vector<Server>* servers) {
  for (const std::string& seed : uri_.addresses) {
    Server server = At(seed);
    if (std::find(servers->begin(), servers->end(), server) == servers->end()) {
      servers->push_back(std::move(server));
    }
  }
}

void RedisTopology::ForgetOutsiders(const std::vector<Server>& asked) {
  // While there is no map, each command asks, and shouldn't have to connect.
  const std::int64_t now = NowNs();
  if (now < next_forgetting_ns_) return;
  next_forgetting_ns_ = SaturatingAdd(now, ToNs(options_.min_refresh_interval));
  for (const Server& server : asked) {
    if (!server->connected() || IsInMap(server)) continue;
    ScopedLock guard(mutex_);
    servers_.erase(server->address());
  }
}

bool RedisTopology::IsInMap(const Server& server) {
  ScopedLock guard(lock_);
  return std::any_of(shards_.begin(), shards_.end(), [&](const Shard& shard) {
    return shard.master == server ||
           std::find(shard.replicas.begin(), shard.replicas.end(), server) !=
               shard.replicas.end();
  });
}

void RedisTopology::TakeMap(const RedisSlotMap& map) {
  Servers known;
  {
    ScopedLock guard(mutex_);
    known = servers_;
  }
  Servers servers;
  const auto server_at = [&](const std::string& address) {
    Server& server = servers[address];
    if (server == nullptr) {
      const auto old = known.find(address);
      server = old != known.end() ? old->second : NewServer(address);
    }
    return server;
  };
  std::vector<Shard> shards;
  for (const RedisShardAddresses& addresses : map.shards) {
    Shard shard{.master = server_at(addresses.master)};
    if (options_.read_from_replicas) {
      for (const std::string& replica : addresses.replicas) {
        shard.replicas.push_back(server_at(replica));
      }
    }
    shards.push_back(std::move(shard));
  }
  std::vector<std::uint16_t> shard_of = map.shard_of;
  for (const std::size_t at : shard_of) {
    if (at < shards.size()) ++shards[at].slots;
  }
  // The old servers end behind the locks.
  {
    ScopedLock guard(mutex_);
    servers_.swap(servers);
  }
  {
    ScopedLock guard(lock_);
    shards_.swap(shards);
    shard_of_.swap(shard_of);
  }
  // relaxed: it is only a time.
  old_at_ns_.store(NowNs() + kMaxMapAgeNs, std::memory_order_relaxed);
}

}  // namespace flare::rpc

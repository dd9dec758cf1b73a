// The sets of connections of a pool; for a set, see client/peer_connections.cc.
#include "flare/rpc/connection_pool.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/start/flags.h"

namespace flare {
namespace {

constexpr std::int64_t kAnyTime = std::numeric_limits<std::int64_t>::max();

// One group's part of a server's connections. Dealt out in turn: the first
// groups have one more if it doesn't divide.
std::size_t ShareOf(std::size_t group, std::size_t connections) {
  const std::size_t groups = fiber::GetSchedulingGroupCount();
  return std::max<std::size_t>(1, (connections + groups - 1 - group) / groups);
}

std::shared_ptr<rpc::PeerConnections> MakeSet(std::size_t group,
                                              const rpc::ConnectionKey& key) {
  const rpc::ConnectionSettings& settings = key.settings;
  return std::make_shared<rpc::PeerConnections>(
      key, group, ShareOf(group, settings.max_connections),
      ShareOf(group, settings.max_dedicated_connections));
}

}  // namespace

std::size_t ConnectionPool::GroupedKeyHash::operator()(
    const GroupedKey& k) const {
  const std::hash<std::string_view> text;
  std::size_t hash = k.key.peer.endpoint.Hash();
  hash = hash * 31 + text(k.key.protocol);
  hash = hash * 31 + text(k.key.peer.host);
  hash = hash * 31 + k.key.settings.max_packet_size;
  return hash * 31 + k.group;
}

std::shared_ptr<ConnectionPool> ConnectionPool::Create() {
  return Create(Options());
}

std::shared_ptr<ConnectionPool> ConnectionPool::Create(const Options& options) {
  std::shared_ptr<ConnectionPool> pool(new ConnectionPool(options));
  rpc::JoinClientSide(std::shared_ptr<rpc::ClientSideMember>(pool, pool.get()));
  return pool;
}

const std::shared_ptr<ConnectionPool>& ConnectionPool::Default() {
  static auto* const pool = new std::shared_ptr<ConnectionPool>(Create());
  return *pool;
}

ConnectionPool::~ConnectionPool() {
  std::vector<Set> sets;
  {
    ScopedLock guard(mutex_);
    for (auto& [key, set] : sets_) sets.push_back(std::move(set));
    if (sweeper_ != 0) fiber::KillTimer(std::exchange(sweeper_, 0));
  }
  for (Set& set : sets) {
    if (!set->CloseIdle(kAnyTime)) Default()->Adopt(std::move(set));
  }
}

std::shared_ptr<rpc::PeerConnections> ConnectionPool::Find(
    std::size_t group, const rpc::ConnectionKey& key) {
  Set found;
  rpc::IfClientSideIsOpen([&] {
    ScopedLock guard(mutex_);
    auto& set = sets_[{group, key}];
    if (set == nullptr) set = MakeSet(group, key);
    StartSweeping();
    found = set;
  });
  if (found != nullptr) return found;
  // One of sets_ would be missed by the Shutdown() that goes on, and be the set
  // of channels that are opened later.
  found = MakeSet(group, key);
  found->Shutdown();
  return found;
}

void ConnectionPool::Adopt(Set set) {
  bool adopted = false;
  rpc::IfClientSideIsOpen([&] {
    ScopedLock guard(mutex_);
    adopted_.push_back(set);
    StartSweeping();
    adopted = true;
  });
  if (!adopted) set->Shutdown();
}

void ConnectionPool::Shutdown() {
  std::vector<Set> sets;
  {
    ScopedLock guard(mutex_);
    sets.swap(adopted_);
    for (auto& [key, set] : sets_) sets.push_back(std::move(set));
    sets_.clear();
    if (sweeper_ != 0) fiber::KillTimer(std::exchange(sweeper_, 0));
  }
  for (const Set& set : sets) set->Shutdown();
}

void ConnectionPool::StartSweeping() {
  const std::chrono::nanoseconds interval =
      options_.idle_check_interval.value_or(
          rpc::ClientDefaultsFromFlags().remove_idle_connection_interval);
  if (sweeper_ != 0 || interval.count() <= 0) return;
  sweeper_ = fiber::SetTimer(interval, [weak = weak_from_this()] {
    if (const auto pool = weak.lock()) pool->Sweep();
  });
}

void ConnectionPool::Sweep() {
  const std::int64_t now = NowNs();
  ScopedLock guard(mutex_);
  for (auto it = sets_.begin(); it != sets_.end();) {
    const std::int64_t max_idle = ToNs(it->first.key.settings.max_idle);
    const bool empty = it->second->CloseIdle(
        max_idle == 0 ? -kAnyTime : now - std::min(max_idle, now));
    // Only this map has it, and new owners come through this map.
    it = empty && it->second.use_count() == 1 ? sets_.erase(it) : std::next(it);
  }
  std::erase_if(adopted_,
                [](const Set& set) { return set->CloseIdle(kAnyTime); });
}

ConnectionPool::Statistics ConnectionPool::statistics() const {
  Statistics sum;
  ScopedLock guard(mutex_);
  for (const auto& [key, set] : sets_) {
    sum.shared += set->size();
    sum.dedicated += set->dedicated_size();
    sum.kept += set->kept_size();
  }
  return sum;
}

}  // namespace flare

// The sets of connections of the process; for what a set does, see
// peer_connections.cc.
//
// Rules:
//  [CP1] Shutdown(), one at a time, takes the client side through kShuttingDown
//        to kShut. It becomes kOpen again from kShut only, and not while there
//        is a ClientSideEnd; so after the Shutdown() within one it stays kShut.
//  [CP2] Names are refreshed while it is kOpen, and until Shutdown() stops that
//        during kShuttingDown. That resumes under mutex_, together with the
//        change to kOpen: so never while it is being stopped, nor while the
//        client side stays kShut.
#include "flare/rpc/connection_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/timer.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/start/flags.h"

namespace flare::rpc {
namespace {

// Dedicated connections to a server, dealt out to the scheduling groups.
constexpr std::size_t kMaxDedicatedPerServer = 4096;

std::array<std::atomic<std::uint64_t>, 5> event_counts;

std::uint64_t EventCount(ClientEvent event) {
  // relaxed: a statistic.
  return event_counts[static_cast<std::size_t>(event)].load(
      std::memory_order_relaxed);
}

struct GroupedKey {
  std::size_t group;
  ConnectionKey key;
  bool operator==(const GroupedKey&) const = default;
};

struct GroupedKeyHash {
  std::size_t operator()(const GroupedKey& k) const {
    const std::hash<std::string_view> text;
    std::size_t hash = k.key.peer.endpoint.Hash();
    hash = hash * 31 + text(k.key.protocol);
    hash = hash * 31 + text(k.key.peer.host);
    hash = hash * 31 + k.key.max_packet_size;
    return hash * 31 + k.group;
  }
};

class Pool {
 public:
  static Pool* Instance() {
    static Pool* const pool = new Pool();  // Never destroyed.
    return pool;
  }

  std::shared_ptr<PeerConnections> Find(std::size_t group,
                                        const ConnectionKey& key) {
    {
      ScopedLock guard(mutex_);
      if (state_ == State::kOpen) {
        auto& set = sets_[{group, key}];
        if (set == nullptr) set = MakeSet(group, key);
        StartSweeping();
        return set;
      }
    }
    // One of sets_ would be missed by the Shutdown() that goes on, and be the
    // set of channels that are opened later.
    auto refusing = MakeSet(group, key);
    refusing->Shutdown();
    return refusing;
  }

  void Open() {
    ScopedLock guard(mutex_);
    if (state_ != State::kShut || ending_) return;  // [CP1]
    state_ = State::kOpen;
    ResumeNameResolution();  // [CP2]
  }

  void SetEnding(bool ending) {
    ScopedLock guard(mutex_);
    ending_ = ending;
  }

  bool IsOpen() {
    ScopedLock guard(mutex_);
    return state_ == State::kOpen;
  }

  void Shutdown() {
    ScopedLock alone(shutdown_mutex_);
    decltype(sets_) sets;
    {
      ScopedLock guard(mutex_);
      state_ = State::kShuttingDown;
      sets.swap(sets_);
      if (sweeper_ != 0) fiber::KillTimer(std::exchange(sweeper_, 0));
    }
    for (auto& [key, set] : sets) set->Shutdown();
    AwaitNoConnections();
    StopNameResolution();  // [CP2]
    ScopedLock guard(mutex_);
    state_ = State::kShut;
  }

  void ConnectionBorn() {
    ScopedLock guard(live_lock_);
    ++live_;
  }
  void ConnectionGone() {
    ScopedLock guard(live_lock_);
    if (--live_ == 0 && all_gone_ != nullptr) all_gone_->Set();
  }

 private:
  enum class State { kOpen, kShuttingDown, kShut };

  static std::shared_ptr<PeerConnections> MakeSet(std::size_t group,
                                                  const ConnectionKey& key) {
    const std::size_t connections =
        ClientDefaultsFromFlags().max_connections_per_server;
    // Dealt out in turn: the first groups have one more if it doesn't divide.
    const std::size_t groups = fiber::GetSchedulingGroupCount();
    const std::size_t share = (connections + groups - 1 - group) / groups;
    return std::make_shared<PeerConnections>(
        key, group, std::max<std::size_t>(1, share),
        (kMaxDedicatedPerServer + groups - 1 - group) / groups);
  }

  void StartSweeping() FLARE_REQUIRES(mutex_) {
    const ClientDefaults defaults = ClientDefaultsFromFlags();
    const auto interval = defaults.remove_idle_connection_interval;
    if (sweeper_ != 0 || interval.count() == 0 ||
        defaults.connection_max_idle.count() == 0) {
      return;
    }
    sweeper_ = fiber::SetTimer(interval, [] { Instance()->Sweep(); });
  }

  void Sweep() {
    const std::int64_t since =
        NowNs() - ToNs(ClientDefaultsFromFlags().connection_max_idle);
    ScopedLock guard(mutex_);
    for (auto it = sets_.begin(); it != sets_.end();) {
      const bool empty = it->second->CloseIdle(since);
      // Only this map has it, and new owners come through this map.
      it = empty && it->second.use_count() == 1 ? sets_.erase(it)
                                                : std::next(it);
    }
  }

  void AwaitNoConnections() {
    fiber::Event gone;
    {
      ScopedLock guard(live_lock_);
      if (live_ == 0) return;
      all_gone_ = &gone;
    }
    gone.Wait();
    ScopedLock guard(live_lock_);
    all_gone_ = nullptr;
  }

  fiber::Mutex shutdown_mutex_;  // One at a time.
  ThreadMutex mutex_;
  State state_ FLARE_GUARDED_BY(mutex_) = State::kOpen;
  bool ending_ FLARE_GUARDED_BY(mutex_) = false;
  std::unordered_map<GroupedKey, std::shared_ptr<PeerConnections>,
                     GroupedKeyHash>
      sets_ FLARE_GUARDED_BY(mutex_);
  fiber::TimerId sweeper_ FLARE_GUARDED_BY(mutex_) = 0;

  Spinlock live_lock_;
  std::size_t live_ FLARE_GUARDED_BY(live_lock_) = 0;
  fiber::Event* all_gone_ FLARE_GUARDED_BY(live_lock_) = nullptr;
};

}  // namespace

std::shared_ptr<PeerConnections> FindPeerConnections(std::size_t group,
                                                     const ConnectionKey& key) {
  return Pool::Instance()->Find(group, key);
}

void ShutdownClientSide() { Pool::Instance()->Shutdown(); }

ClientSideEnd::ClientSideEnd() { Pool::Instance()->SetEnding(true); }

ClientSideEnd::~ClientSideEnd() { Pool::Instance()->SetEnding(false); }

void OpenClientSide() { Pool::Instance()->Open(); }

bool IsClientSideOpen() { return Pool::Instance()->IsOpen(); }

flare::Status ShutDownStatus() {
  return flare::Status(STATUS_CHANNEL_SHUTDOWN,
                       "the client side of this process is being shut down");
}

ClientStatistics GetClientStatistics() {
  return {.connections_opened = EventCount(ClientEvent::kOpened),
          .connections_failed = EventCount(ClientEvent::kFailed),
          .connections_broken = EventCount(ClientEvent::kBroken),
          .connections_idle_closed = EventCount(ClientEvent::kIdleClosed),
          .late_replies = EventCount(ClientEvent::kLateReply)};
}

void CountClientEvent(ClientEvent event) {
  // relaxed: a statistic.
  event_counts[static_cast<std::size_t>(event)].fetch_add(
      1, std::memory_order_relaxed);
}

void ConnectionBorn() { Pool::Instance()->ConnectionBorn(); }
void ConnectionGone() { Pool::Instance()->ConnectionGone(); }

}  // namespace flare::rpc

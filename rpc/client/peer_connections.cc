// One set of connections; for the sets of a pool, see ../connection_pool.cc.
//
// Rules:
//  [CS1] A connection is in connections_ or, after Retire, in retired_, from
//        OpenLocked until Remove, and may be waiting_ before; the set is its
//        user exactly as long. The code that takes it out says so in its notes,
//        also if it was not in yet; OpenLocked then doesn't put it in.
//  [CS2] Calls become users of a connection under lock_ and while it is in
//        connections_ or is waiting_; so one that is idle, looked at under
//        lock_, stays idle once it is taken out.
//  [CS3] Sockets are made and connections started under open_mutex_ only, never
//        under lock_. So a waiting one is started once; it may be closed
//        before.
//  [CS4] A dedicated connection is in dedicated_ in place of connections_ and
//        retired_ [CS1]. It has one user besides the set and the stream: the
//        call that Acquire() gave it to, until Return(). A call that gets a
//        kept one takes it out of kept_ under lock_.
#include "flare/rpc/client/peer_connections.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/timer.h"
#include "flare/io/epoll_poller.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kFirstDelayNs = 20 * kNsPerMs;
constexpr std::int64_t kMaxDelayNs = 1000 * kNsPerMs;
constexpr std::chrono::nanoseconds kShortestLook{kNsPerMs};

// After how many calls that stay on their connections one looks for a better
// one. The number varies: callers may come in the same order for ever.
std::uint32_t NextLook(std::size_t turn) {
  return 12 + static_cast<std::uint32_t>(turn % 8);
}

// The most calls of one moment on one connection. More would gain little, and
// wait for each other longer where a server's thread serves a connection's
// calls in turn.
constexpr std::uint32_t kCallsInTurn = 16;

// How long to wait after that many failures: doubling, less up to a quarter by
// chance, so that many clients of one server don't come back all at once.
std::int64_t RetryDelayNs(unsigned failures, std::int64_t now_ns) {
  const unsigned doublings = std::min(failures - 1, 10U);
  const std::int64_t delay = std::min(kFirstDelayNs << doublings, kMaxDelayNs);
  return delay - delay / 4 * (now_ns / 1000 % 1024) / 1024;
}

}  // namespace

PeerConnections::PeerConnections(ConnectionKey key, std::size_t group,
                                 std::size_t limit, std::size_t dedicated_limit)
    : key_(std::move(key)),
      group_(group),
      limit_(limit),
      dedicated_limit_(dedicated_limit) {}

Expected<ClientConnection*, flare::Status> PeerConnections::Acquire(
    const void* preferred, std::int64_t patience_ns, ConnectionKind kind) {
  if (kind != ConnectionKind::kMultiplexed) [[unlikely]] {
    return OpenDedicated(kind, patience_ns);
  }
  {
    ScopedLock guard(lock_);
    if (ClientConnection* c = Pick(preferred, /*may_open=*/true)) return c;
  }
  return Open(preferred, patience_ns);
}

// Null if it isn't, or no longer, one of those that are offered.
ClientConnection* PeerConnections::Find(const void* connection) const {
  if (connection == nullptr) return nullptr;
  const auto it =
      std::find(connections_.begin(), connections_.end(), connection);
  return it == connections_.end() ? nullptr : *it;
}

// The index whose turn it is. A moment lasts until events are fetched again;
// output of threads leaves at once, and gains nothing by company.
std::size_t PeerConnections::Turn() {
  const std::uint64_t now = io::EpollPoller::OfGroup(group_)->fetches();
  if (left_in_turn_ == 0 || turn_began_ != now || !fiber::IsFiberWorker()) {
    ++turn_;
    turn_began_ = now;
    left_in_turn_ = kCallsInTurn;
  }
  --left_in_turn_;
  return turn_;
}

// A connection that gets the caller's call; null: one should be opened.
ClientConnection* PeerConnections::Pick(const void* preferred, bool may_open) {
  const std::size_t size = connections_.size();
  if (size == 0) return nullptr;
  // relaxed: written under lock_.
  const bool choosy = established_.load(std::memory_order_relaxed) != 0;
  const auto good = [&](const ClientConnection* c) {
    return c->established() || !choosy;
  };
  ClientConnection* chosen = Find(preferred);
  if (chosen != nullptr && !good(chosen)) chosen = nullptr;
  if (chosen != nullptr && size < limit_) {
    // There may be more: callers who came to share one part again.
    if (!chosen->idle()) chosen = nullptr;
  } else if (chosen != nullptr && --until_look_ == 0) {
    // A caller that came to share one stays there, which keeps batches
    // together; but as many here as there. Rarely: it reads a line that others
    // write.
    ClientConnection* const other = connections_[turn_++ % size];
    until_look_ = NextLook(turn_);
    if (good(other) && other->users() < chosen->users()) chosen = other;
  }
  if (chosen == nullptr && size < limit_) {
    // Looks at no more than needed: others write the line of each one.
    const auto idle = std::find_if(
        connections_.rbegin(), connections_.rend(),
        [&](const ClientConnection* c) { return c->idle() && good(c); });
    if (idle != connections_.rend()) chosen = *idle;
    if (chosen == nullptr && may_open) return nullptr;
  }
  if (chosen == nullptr) chosen = connections_[Turn() % size];
  while (!good(chosen)) chosen = connections_[++turn_ % size];
  chosen->AddUser();  // [CS2]
  return chosen;
}

Expected<ClientConnection*, flare::Status> PeerConnections::Open(
    const void* preferred, std::int64_t patience_ns) {
  if (!open_mutex_.try_lock()) {
    {
      // Somebody is opening one: be content with the present ones.
      ScopedLock guard(lock_);
      if (ClientConnection* c = Pick(preferred, /*may_open=*/false)) return c;
    }
    open_mutex_.lock();
  }
  const ScopedLock opening(open_mutex_, std::adopt_lock);
  return OpenLocked(patience_ns);
}

Expected<ClientConnection*, flare::Status> PeerConnections::OpenLocked(
    std::int64_t patience_ns) {
  std::int64_t wait_until = 0;  // Doesn't wait.
  ClientConnection* waiting = nullptr;
  {
    const std::int64_t now = NowNs();
    ScopedLock guard(lock_);
    if (shut_down_) return ShutDownStatus();
    // relaxed: written under lock_.
    const std::int64_t retry_at = retry_at_ns_.load(std::memory_order_relaxed);
    const bool may_open = now >= retry_at;
    if (ClientConnection* c = Pick(nullptr, may_open)) return c;
    if (!may_open && retry_at > patience_ns) return WhyNot();
    if (!may_open) wait_until = retry_at;
    waiting = waiting_;
    if (waiting != nullptr) {
      waiting->AddUser();  // [CS2]
    } else {
      // One is opened at a time: so neither the next lines nor Retire()
      // allocate.
      const std::size_t all = connections_.size() + retired_.size() + 1;
      connections_.reserve(all);
      retired_.reserve(all);
    }
  }
  if (waiting != nullptr) {
    if (wait_until == 0) StartWaiting(waiting);
    return waiting;
  }
  // First, as there may be no memory for it.
  if (wait_until != 0) SetRetryTimer(wait_until);
  return Launch(ConnectionKind::kMultiplexed, wait_until);
}

// A kept connection, or a new one.
Expected<ClientConnection*, flare::Status> PeerConnections::OpenDedicated(
    ConnectionKind kind, std::int64_t patience_ns) {
  const auto take_kept = [&]() -> ClientConnection* {
    if (kind != ConnectionKind::kPooled) return nullptr;
    ScopedLock guard(lock_);
    return TakeKept();
  };
  if (ClientConnection* c = take_kept()) return c;
  const ScopedLock opening(open_mutex_);
  if (ClientConnection* c = take_kept()) return c;
  std::int64_t wait_until = 0;  // Doesn't wait.
  bool needs_timer = false;
  {
    const std::int64_t now = NowNs();
    ScopedLock guard(lock_);
    if (shut_down_) return ShutDownStatus();
    // relaxed: written under lock_.
    const std::int64_t retry_at = retry_at_ns_.load(std::memory_order_relaxed);
    if (now < retry_at) {
      if (retry_at > patience_ns) return WhyNot();
      wait_until = retry_at;
      needs_timer = std::none_of(
          dedicated_.begin(), dedicated_.end(), [&](const ClientConnection* c) {
            return c->notes().waits_until_ns == wait_until;
          });
    }
    if (dedicated_.size() >= dedicated_limit_) {
      return flare::Status(STATUS_OVERLOADED,
                           "calls use all " + std::to_string(dedicated_limit_) +
                               " connections that there may be to " +
                               key_.peer.endpoint.ToString());
    }
    // One is opened at a time: so neither the next lines nor Return() allocate.
    if (dedicated_.size() == dedicated_.capacity()) {
      dedicated_.reserve(std::max<std::size_t>(8, 2 * dedicated_.size()));
      kept_.reserve(dedicated_.capacity());
    }
  }
  if (needs_timer) SetRetryTimer(wait_until);
  return Launch(kind, wait_until);
}

// The timer isn't one of the connection's, which may be closed, and gone, by
// then.
void PeerConnections::SetRetryTimer(std::int64_t due_ns) {
  const auto on_time = [weak = weak_from_this(), due_ns] {
    if (const auto set = weak.lock()) set->OnRetryDue(due_ns);
  };
  fiber::SetDetachedTimer(ToTimePoint(due_ns), on_time);
}

void PeerConnections::StartKeepAlive() {
  const std::chrono::nanoseconds patience = key_.settings.keep_alive;
  if (patience.count() == 0 || keep_alive_timer_ != 0) return;
  // Looks often enough for answers to be missed soon after they are due.
  keep_alive_timer_ = fiber::SetTimer(std::max(patience / 4, kShortestLook),
                                      [weak = weak_from_this()] {
                                        if (const auto set = weak.lock())
                                          set->KeepAlive();
                                      });
}

void PeerConnections::StopKeepAlive() {
  const ScopedLock opening(open_mutex_);
  if (keep_alive_timer_ == 0) return;
  fiber::KillTimer(std::exchange(keep_alive_timer_, 0));
}

// Connections without calls are closed when they are idle.
void PeerConnections::KeepAlive() {
  std::vector<ClientConnection*> busy;
  {
    ScopedLock guard(lock_);
    for (const auto* connections : {&connections_, &retired_, &dedicated_}) {
      for (ClientConnection* c : *connections) {
        if (!c->established() || c->idle()) continue;
        c->AddUser();
        busy.push_back(c);
      }
    }
  }
  const std::int64_t now = NowNs();
  for (ClientConnection* c : busy) {
    c->KeepAlive(now);
    c->RemoveUser();
  }
}

// A new connection for the caller's call, started unless it is to wait.
Expected<ClientConnection*, flare::Status> PeerConnections::Launch(
    ConnectionKind kind, std::int64_t wait_until_ns) {
  auto made = MakeConnection(kind);
  if (!made) return made;
  StartKeepAlive();
  ClientConnection* const connection = *made;
  connection->AddUser();  // The caller's call.
  CountClientEvent(ClientEvent::kOpened);
  connection->SetStart(wait_until_ns != 0 ? wait_until_ns : NowNs());
  if (wait_until_ns == 0) connection->Start();  // [CS3]
  bool refused = false;
  {
    ScopedLock guard(lock_);
    refused = shut_down_;
    if (!refused && !connection->notes().left) {  // [CS1]
      if (kind != ConnectionKind::kMultiplexed) {
        connection->notes().waits_until_ns = wait_until_ns;
        OfferDedicated(connection);
      } else if (wait_until_ns == 0) {
        Offer(connection);
      } else {
        waiting_ = connection;
        waiting_until_ns_ = wait_until_ns;
      }
      return connection;
    }
  }
  // The call finds out that it is closed, and why.
  if (refused) connection->Close(ShutDownStatus());
  connection->RemoveUser();  // The set's.
  return connection;
}

Expected<ClientConnection*, flare::Status> PeerConnections::MakeConnection(
    ConnectionKind kind) {
  Limits limits = ClientLimits(key_.settings.max_packet_size);
  limits.max_decompressed_size = key_.settings.max_decompressed_size;
  auto protocol = NewClientProtocol(key_.protocol, limits, key_.peer.host);
  if (!protocol) return protocol.error();
  std::unique_ptr<io::Transport> transport;
  if (const auto& tls = key_.settings.tls) {
    transport = tls->NewTransport(
        key_.peer.host, key_.peer.host + ' ' + key_.peer.endpoint.ToString());
    if (transport == nullptr) {
      // The next attempt wouldn't differ.
      return flare::Status(
          STATUS_INVALID_CHANNEL,
          "connect to " + key_.peer.endpoint.ToString() +
              ": TLS: there is no host name to verify (Options::tls "
              "server_name), or no memory");
    }
  }
  return new ClientConnection(shared_from_this(), key_.settings,
                              *std::move(protocol),
                              {.kind = kind,
                               .peer = key_.peer.endpoint,
                               .group = group_,
                               .transport = std::move(transport)});
}

// For the connection that is, or was, waiting_; the caller is a user of it.
void PeerConnections::StartWaiting(ClientConnection* connection) {
  connection->Start();  // [CS3]
  ScopedLock guard(lock_);
  if (waiting_ != connection) return;  // It is closed, and has left [CS1].
  waiting_ = nullptr;
  Offer(connection);
}

void PeerConnections::Offer(ClientConnection* connection) {
  (connection->notes().retired ? retired_ : connections_).push_back(connection);
  CountConnections();
}

void PeerConnections::OfferDedicated(ClientConnection* connection) {
  connection->notes().place = dedicated_.size();
  dedicated_.push_back(connection);
  if (connection->notes().waits_until_ns != 0) ++dedicated_waiting_;
  if (connection->established()) {
    // relaxed: written under lock_; for others a hint.
    dedicated_established_.fetch_add(1, std::memory_order_relaxed);
  }
  CountConnections();
}

// A connection without a call for the caller's; null: there is none.
ClientConnection* PeerConnections::TakeKept() {
  if (kept_.empty()) return nullptr;
  ClientConnection* const connection = kept_.back();
  kept_.pop_back();
  connection->AddUser();  // [CS4]
  return connection;
}

// False: it wasn't in.
bool PeerConnections::RemoveDedicated(ClientConnection* connection) {
  const std::size_t place = connection->notes().place;
  if (place == Notes::kNoPlace) return false;
  connection->notes().place = Notes::kNoPlace;
  dedicated_[place] = dedicated_.back();
  dedicated_[place]->notes().place =
      dedicated_[place] == connection ? Notes::kNoPlace : place;
  dedicated_.pop_back();
  std::erase(kept_, connection);
  if (connection->notes().waits_until_ns != 0) --dedicated_waiting_;
  if (connection->established()) {
    // relaxed: written under lock_; for others a hint.
    dedicated_established_.fetch_sub(1, std::memory_order_relaxed);
  }
  return true;
}

void PeerConnections::Return(ClientConnection* connection, bool keep) {
  bool close = false;
  {
    ScopedLock guard(lock_);
    const bool is_in = connection->notes().place != Notes::kNoPlace;
    if (is_in && keep && !connection->notes().retired) {
      kept_.push_back(connection);
    } else {
      close = Remove(connection);
    }
  }
  if (close) {
    connection->Close(
        flare::Status(STATUS_IO_ERROR, "closed, as its call has ended"));
    connection->RemoveUser();  // The set's.
  }
  connection->RemoveUser();  // The call's.
}

void PeerConnections::OnRetryDue(std::int64_t due_ns) {
  const ScopedLock opening(open_mutex_);
  StartDedicated(due_ns);
  ClientConnection* connection = nullptr;
  {
    ScopedLock guard(lock_);
    // Another call was first, or this is the timer of one that was closed. Not
    // by the clock, which may differ by a microsecond between workers.
    if (waiting_ == nullptr || waiting_until_ns_ != due_ns) return;
    connection = waiting_;
    connection->AddUser();
  }
  StartWaiting(connection);
  connection->RemoveUser();
}

// Those that wait for this moment, or an earlier one.
void PeerConnections::StartDedicated(std::int64_t due_ns) {
  const auto next = [&](std::size_t* place) {
    ScopedLock guard(lock_);
    return TakeDue(due_ns, place);
  };
  // Meanwhile some may leave, and others come to their places, which the loop
  // has passed: so it begins again until it finds none.
  for (bool found = true; found;) {
    found = false;
    std::size_t place = 0;
    while (ClientConnection* const connection = next(&place)) {
      found = true;
      connection->Start();  // [CS3]
      connection->RemoveUser();
    }
  }
}

// The next one, from `*place` on, that should start by then; null: none. It
// counts as started, and has the caller as a user.
ClientConnection* PeerConnections::TakeDue(std::int64_t due_ns,
                                           std::size_t* place) {
  if (dedicated_waiting_ == 0) return nullptr;
  for (; *place < dedicated_.size(); ++*place) {
    ClientConnection* const c = dedicated_[*place];
    if (c->notes().waits_until_ns == 0 || c->notes().waits_until_ns > due_ns)
      continue;
    c->notes().waits_until_ns = 0;
    --dedicated_waiting_;
    CountConnections();
    c->AddUser();
    return c;
  }
  return nullptr;
}

flare::Status PeerConnections::LastFailure() const {
  ScopedLock guard(lock_);
  return failures_ != 0 ? last_failure_ : flare::Status();
}

// Without times and numbers, so that failures have few different texts to
// count.
flare::Status PeerConnections::WhyNot() const {
  return flare::Status(
      STATUS_FAIL_TO_CONNECT,
      last_failure_.message() +
          " (a moment ago: it is tried again within a second of that)");
}

bool PeerConnections::Promising(bool dedicated) const {
  // relaxed, all: a hint.
  if (established_.load(std::memory_order_relaxed) != 0) return true;
  if (dedicated_established_.load(std::memory_order_relaxed) != 0) return true;
  const std::int64_t retry_at = retry_at_ns_.load(std::memory_order_relaxed);
  if (dedicated && retry_at == 0) return true;
  return (retry_at == 0 || NowNs() >= retry_at) &&
         offered_.load(std::memory_order_relaxed) == 0;
}

bool PeerConnections::Hopeful() const {
  // relaxed, both: a hint.
  return offered_.load(std::memory_order_relaxed) != 0 ||
         NowNs() >= retry_at_ns_.load(std::memory_order_relaxed);
}

void PeerConnections::OnConnected(ClientConnection* connection) {
  ScopedLock guard(lock_);
  connection->SetEstablished();
  if (connection->notes().place != Notes::kNoPlace) {
    dedicated_established_.fetch_add(1, std::memory_order_relaxed);
  }
  CountConnections();
}

void PeerConnections::CountConnections() {
  const auto count =
      std::count_if(connections_.begin(), connections_.end(),
                    [](const ClientConnection* c) { return c->established(); });
  // relaxed, both: read under lock_, or as a hint.
  established_.store(static_cast<std::size_t>(count),
                     std::memory_order_relaxed);
  offered_.store(connections_.size() + dedicated_.size() - dedicated_waiting_,
                 std::memory_order_relaxed);
}

void PeerConnections::OnProven() {
  ScopedLock guard(lock_);
  proven_ = true;
  failures_ = 0;
  // relaxed: a hint, apart from lock_.
  retry_at_ns_.store(0, std::memory_order_relaxed);
}

bool PeerConnections::proven() const {
  ScopedLock guard(lock_);
  return proven_;
}

// False: it wasn't in.
bool PeerConnections::Remove(ClientConnection* connection) {
  connection->notes().left = true;  // [CS1]
  const bool waited = waiting_ == connection;
  if (waited) waiting_ = nullptr;
  const bool removed = waited || RemoveDedicated(connection) ||
                       std::erase(connections_, connection) != 0 ||
                       std::erase(retired_, connection) != 0;
  CountConnections();
  return removed;
}

void PeerConnections::Retire(ClientConnection* connection) {
  ScopedLock guard(lock_);
  connection->notes().retired = true;  // [CS1]
  std::erase(kept_, connection);
  if (std::erase(connections_, connection) == 0) return;
  retired_.push_back(connection);
  CountConnections();
}

void PeerConnections::OnClosed(ClientConnection* connection,
                               const flare::Status* why) {
  const std::int64_t now = NowNs();
  bool removed = false;
  {
    ScopedLock guard(lock_);
    const bool by_us = connection->notes().left;
    removed = Remove(connection);
    // relaxed: written under lock_. If several attempts fail together, one
    // counts.
    if (why != nullptr && !by_us &&
        now >= retry_at_ns_.load(std::memory_order_relaxed)) {
      last_failure_ = *why;
      ++failures_;
      retry_at_ns_.store(now + RetryDelayNs(failures_, now),
                         std::memory_order_relaxed);
    }
  }
  if (removed) connection->RemoveUser();
}

bool PeerConnections::CloseIdle(std::int64_t since_ns) {
  std::vector<ClientConnection*> idle;
  bool empty = false;
  {
    ScopedLock guard(lock_);
    for (const auto* connections : {&connections_, &retired_}) {
      for (ClientConnection* c : *connections) {
        if (c->idle() && c->last_activity_ns() < since_ns) idle.push_back(c);
      }
    }
    for (ClientConnection* c : kept_) {  // [CS4]
      if (c->last_activity_ns() < since_ns) idle.push_back(c);
    }
    for (ClientConnection* c : idle) Remove(c);  // [CS2]
    empty = connections_.empty() && retired_.empty() && waiting_ == nullptr &&
            dedicated_.empty();
  }
  for (ClientConnection* c : idle) {
    CountClientEvent(ClientEvent::kIdleClosed);
    c->Close(flare::Status(STATUS_IO_ERROR, "closed because it was idle"));
    c->RemoveUser();
  }
  return empty;
}

void PeerConnections::Shutdown() {
  std::vector<ClientConnection*> all;
  {
    ScopedLock guard(lock_);
    shut_down_ = true;
    all.swap(connections_);
    all.insert(all.end(), retired_.begin(), retired_.end());
    retired_.clear();
    if (waiting_ != nullptr) all.push_back(std::exchange(waiting_, nullptr));
    all.insert(all.end(), dedicated_.begin(), dedicated_.end());
    for (ClientConnection* c : dedicated_) {
      c->notes().place = Notes::kNoPlace;
    }
    dedicated_.clear();
    kept_.clear();
    dedicated_waiting_ = 0;
    // relaxed: written under lock_; for others a hint.
    dedicated_established_.store(0, std::memory_order_relaxed);
    for (ClientConnection* c : all) c->notes().left = true;  // [CS1]
    CountConnections();
  }
  for (ClientConnection* c : all) {
    c->Close(ShutDownStatus());
    c->RemoveUser();
  }
  // A thread that opens one has looked at shut_down_ before; the connection
  // exists when this has its mutex.
  StopKeepAlive();
}

std::size_t PeerConnections::size() const {
  ScopedLock guard(lock_);
  return connections_.size();
}

std::size_t PeerConnections::dedicated_size() const {
  ScopedLock guard(lock_);
  return dedicated_.size() - kept_.size();
}

std::size_t PeerConnections::kept_size() const {
  ScopedLock guard(lock_);
  return kept_.size();
}

}  // namespace flare::rpc

#include "flare/rpc/naming/background_resolution.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/task.h"
#include "flare/rpc/naming/refresh_gate.h"
#include "flare/rpc/start/flags.h"

namespace flare::rpc {
namespace {

using PeerKey = std::tuple<std::string, std::string, std::uint32_t, std::string,
                           std::map<std::string, std::string>>;

std::vector<PeerKey> SortedKeys(const std::vector<Peer>& peers) {
  std::vector<PeerKey> keys;
  keys.reserve(peers.size());
  for (const Peer& peer : peers) {
    keys.emplace_back(peer.endpoint.ToString(), peer.host, peer.weight,
                      peer.zone, peer.tags);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

// In any order. A list may have thousands of servers.
bool AreTheSame(const std::vector<Peer>& a, const std::vector<Peer>& b) {
  return a.size() == b.size() && SortedKeys(a) == SortedKeys(b);
}

}  // namespace

std::uint64_t BackgroundResolution::Version() {
  RefreshIfDue();
  // acquire: pairs with the release in Set [NR1].
  return version_.load(std::memory_order_acquire);
}

std::vector<Peer> BackgroundResolution::Peers() {
  ScopedLock guard(lock_);
  return peers_;
}

flare::Status BackgroundResolution::Failure() {
  ScopedLock guard(lock_);
  return failure_;
}

std::int64_t BackgroundResolution::IntervalNs() const {
  return ToNs(interval_.value_or(
      ClientDefaultsFromFlags().name_resolver_update_interval));
}

void BackgroundResolution::RefreshAfter(std::int64_t ns) {
  // relaxed: this only decides who refreshes, and when.
  next_refresh_ns_.store(SaturatingAdd(NowNs(), ns), std::memory_order_relaxed);
}

void BackgroundResolution::Set(std::vector<Peer> peers) {
  // Before lock_ is taken, for which calls wait. There is one Set() at a time.
  if (AreTheSame(peers, Peers())) return;
  ScopedLock guard(lock_);
  peers_ = std::move(peers);
  // release: pairs with the acquire in Version [NR1].
  version_.fetch_add(1, std::memory_order_release);
}

bool BackgroundResolution::SetFailure(flare::Status failure) {
  ScopedLock guard(lock_);
  const bool is_new = failure.message() != failure_.message();
  failure_ = std::move(failure);
  return is_new;
}

void BackgroundResolution::RefreshIfDue() {
  const std::int64_t now = NowNs();
  // relaxed, both: this only decides who refreshes, and when.
  std::int64_t due = next_refresh_ns_.load(std::memory_order_relaxed);
  if (now < due ||
      !next_refresh_ns_.compare_exchange_strong(
          due, SaturatingAdd(now, IntervalNs()), std::memory_order_relaxed)) {
    return;
  }
  if (!RefreshGate::Instance()->Enter()) return;
  const auto refresh = [self = shared_from_this()] {
    {
      std::unique_lock refreshing(self->refresh_mutex_, std::try_to_lock);
      if (refreshing.owns_lock()) self->Refresh();
    }
    RefreshGate::Instance()->Leave();
  };
  try {
    fiber::Spawn(refresh);
  } catch (...) {  // Without memory.
    RefreshGate::Instance()->Leave();
    throw;
  }
}

}  // namespace flare::rpc

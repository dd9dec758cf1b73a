#include "flare/rpc/naming/background_resolution.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/task.h"
#include "flare/rpc/naming/refresh_gate.h"
#include "flare/rpc/start/flags.h"

namespace flare::rpc {
namespace {

// Of lists that don't change.
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// In any order.
bool AreTheSame(const std::vector<Peer>& a, const std::vector<Peer>& b) {
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end(),
                             [](const Peer& x, const Peer& y) {
                               return x == y && x.weight == y.weight;
                             });
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
  const std::int64_t now = NowNs();
  // relaxed: this only decides who refreshes, and when.
  next_refresh_ns_.store(ns < kNever - now ? now + ns : kNever,
                         std::memory_order_relaxed);
}

void BackgroundResolution::Set(std::vector<Peer> peers) {
  ScopedLock guard(lock_);
  if (AreTheSame(peers, peers_)) return;
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
  if (now < due || !next_refresh_ns_.compare_exchange_strong(
                       due, now + IntervalNs(), std::memory_order_relaxed)) {
    return;
  }
  if (!RefreshGate::Instance()->Enter()) return;
  fiber::Spawn([self = shared_from_this()] {
    {
      std::unique_lock refreshing(self->refresh_mutex_, std::try_to_lock);
      if (refreshing.owns_lock()) self->Refresh();
    }
    RefreshGate::Instance()->Leave();
  });
}

}  // namespace flare::rpc

#include "example/proxy/upstream.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "flare/base/random.h"

namespace example::proxy {
namespace {

// Points of each upstream on the ring: more make shares more equal (with 160
// they differ by about 8%) and cost 16 bytes each.
constexpr std::uint64_t kPointsPerUpstream = 160;

// FNV-1a, then mixed. Proxies with the same upstreams must agree, so this is
// none of the standard library's hashes, which may be different everywhere.
std::uint64_t HashOf(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return flare::MixBits(hash);
}

// An upstream's rank; less is better.
int Rank(const Upstream& upstream, std::int64_t now_ns) {
  if (!upstream.healthy()) return 2;
  return upstream.paused(now_ns) ? 1 : 0;
}

}  // namespace

Upstream::Upstream(std::string name, flare::Endpoint address)
    : name_(std::move(name)), address_(std::move(address)) {}

// All accesses below are relaxed: verdicts and counters, each on its own; a
// choice that is made by a value of a moment ago is as good as any.

void Upstream::SetHealthy(bool healthy) noexcept {
  healthy_.store(healthy, std::memory_order_relaxed);
}

bool Upstream::healthy() const noexcept {
  return healthy_.load(std::memory_order_relaxed);
}

void Upstream::SetSilentSince(std::int64_t time_ns) noexcept {
  silent_since_ns_.store(time_ns, std::memory_order_relaxed);
}

std::int64_t Upstream::silent_since_ns() const noexcept {
  return silent_since_ns_.load(std::memory_order_relaxed);
}

bool Upstream::paused(std::int64_t now_ns) const noexcept {
  return now_ns < paused_until_ns_.load(std::memory_order_relaxed);
}

void Upstream::ReportConnected() noexcept {
  connections_.fetch_add(1, std::memory_order_relaxed);
  EndFailures();
}

void Upstream::EndFailures() noexcept {
  // Both: a failure counts first and then pauses, so an end that came in
  // between has left a pause without a row. Mostly there is nothing to write.
  if (failures_in_row_.load(std::memory_order_relaxed) == 0 &&
      paused_until_ns_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  failures_in_row_.store(0, std::memory_order_relaxed);
  paused_until_ns_.store(0, std::memory_order_relaxed);
}

void Upstream::ReportFailure(int max_failures, std::int64_t pause_ns,
                             std::int64_t now_ns) noexcept {
  failures_.fetch_add(1, std::memory_order_relaxed);
  const int row = failures_in_row_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (max_failures > 0 && row >= max_failures) {
    paused_until_ns_.store(now_ns + pause_ns, std::memory_order_relaxed);
  }
}

void Upstream::Release() noexcept {
  active_.fetch_sub(1, std::memory_order_relaxed);
}

void Upstream::AddBytes(std::uint64_t to_upstream,
                        std::uint64_t to_client) noexcept {
  bytes_to_upstream_.fetch_add(to_upstream, std::memory_order_relaxed);
  bytes_to_client_.fetch_add(to_client, std::memory_order_relaxed);
}

Upstream::Statistics Upstream::statistics(std::int64_t now_ns) const noexcept {
  return {
      .active = active_.load(std::memory_order_relaxed),
      .connections = connections_.load(std::memory_order_relaxed),
      .failures = failures_.load(std::memory_order_relaxed),
      .bytes_to_upstream = bytes_to_upstream_.load(std::memory_order_relaxed),
      .bytes_to_client = bytes_to_client_.load(std::memory_order_relaxed),
      .healthy = healthy(),
      .paused = paused(now_ns)};
}

bool Upstream::TryAcquire(std::size_t max_connections) noexcept {
  const auto before = active_.fetch_add(1, std::memory_order_relaxed);
  if (max_connections == 0 || before < max_connections) return true;
  active_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

UpstreamSet::UpstreamSet(std::vector<flare::RefPtr<Upstream>> upstreams,
                         LoadBalancing policy, std::size_t max_connections)
    : upstreams_(std::move(upstreams)),
      policy_(policy),
      max_connections_(max_connections) {
  if (policy_ == LoadBalancing::kSourceHash) BuildRing();
}

void UpstreamSet::BuildRing() {
  ring_.reserve(upstreams_.size() * kPointsPerUpstream);
  for (std::size_t i = 0; i < upstreams_.size(); ++i) {
    // By name, so that an upstream's points don't depend on the others.
    const std::uint64_t seed = HashOf(upstreams_[i]->name());
    for (std::uint64_t point = 0; point < kPointsPerUpstream; ++point) {
      ring_.push_back(
          {flare::MixBits(seed + point), static_cast<std::uint32_t>(i)});
    }
  }
  std::sort(
      ring_.begin(), ring_.end(),
      [](const RingPoint& a, const RingPoint& b) { return a.hash < b.hash; });
}

flare::RefPtr<Upstream> UpstreamSet::Acquire(
    const flare::Endpoint& source, std::span<const Upstream* const> tried,
    std::int64_t now_ns) const {
  std::vector<Upstream*> candidates;
  candidates.reserve(upstreams_.size());
  for (;;) {
    CollectBest(tried, now_ns, &candidates);
    if (candidates.empty()) return nullptr;
    Upstream* const chosen =
        Choose(candidates, source, tried.empty() ? turn_ : retry_turn_);
    if (chosen->TryAcquire(max_connections_)) {
      return flare::RefPtr<Upstream>(flare::ref_ptr, chosen);
    }
    // Somebody else has taken its last place meanwhile.
  }
}

void UpstreamSet::CollectBest(std::span<const Upstream* const> tried,
                              std::int64_t now_ns,
                              std::vector<Upstream*>* best) const {
  int best_rank = std::numeric_limits<int>::max();
  best->clear();
  for (const auto& upstream : upstreams_) {
    if (upstream->IsFull(max_connections_) ||
        std::find(tried.begin(), tried.end(), upstream.Get()) != tried.end()) {
      continue;
    }
    const int rank = Rank(*upstream, now_ns);
    if (rank > best_rank) continue;
    if (rank < best_rank) best->clear();
    best_rank = rank;
    best->push_back(upstream.Get());
  }
}

Upstream* UpstreamSet::Choose(std::span<Upstream* const> candidates,
                              const flare::Endpoint& source,
                              std::atomic<std::uint64_t>& turn) const {
  if (policy_ == LoadBalancing::kSourceHash) {
    return ChooseByHash(candidates, source);
  }
  // relaxed: only that each gets a different number.
  const std::size_t first =
      turn.fetch_add(1, std::memory_order_relaxed) % candidates.size();
  if (policy_ == LoadBalancing::kRoundRobin) return candidates[first];
  Upstream* least = candidates[first];
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    Upstream* const other = candidates[(first + i) % candidates.size()];
    if (other->active() < least->active()) least = other;
  }
  return least;
}

// The first candidate at or behind the client's place on the ring.
Upstream* UpstreamSet::ChooseByHash(std::span<Upstream* const> candidates,
                                    const flare::Endpoint& source) const {
  const std::uint64_t place = HashOf(source.host());
  const auto first =
      std::lower_bound(ring_.begin(), ring_.end(), place,
                       [](const RingPoint& point, std::uint64_t hash) {
                         return point.hash < hash;
                       });
  const auto start = static_cast<std::size_t>(first - ring_.begin());
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    const RingPoint& point = ring_[(start + i) % ring_.size()];
    Upstream* const upstream = upstreams_[point.upstream].Get();
    if (std::find(candidates.begin(), candidates.end(), upstream) !=
        candidates.end()) {
      return upstream;
    }
  }
  return candidates.front();  // Never comes here: each upstream has points.
}

}  // namespace example::proxy

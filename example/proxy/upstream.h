// The servers behind the proxy: how each is doing, and which gets a client.
//
//   UpstreamSet set(std::move(upstreams), LoadBalancing::kLeastConnections, 0);
//   std::vector<const Upstream*> tried;
//   if (RefPtr<Upstream> upstream = set.Acquire(source, tried, NowNs())) {
//     ... connect, relay ...
//     upstream->Release();
//   }
//
// Upstreams are shared by the sets that one reload after the other makes, so
// that the state of a server survives, and by the connections to it, so that
// one that was removed goes on until the last of these has ended.

#ifndef EXAMPLE_PROXY_UPSTREAM_H_
#define EXAMPLE_PROXY_UPSTREAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "example/proxy/config.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"

namespace example::proxy {

// One server. Everything is thread-safe and doesn't block.
class Upstream : public flare::RefCounted<Upstream> {
 public:
  Upstream(std::string name, flare::Endpoint address);

  const std::string& name() const noexcept { return name_; }
  const flare::Endpoint& address() const noexcept { return address_; }

  // The verdict of active checks; true at first.
  void SetHealthy(bool healthy) noexcept;
  bool healthy() const noexcept;

  // Health checks get no answer from it, and by now a session through which no
  // byte has passed since then may be taken for dead. A time of NowNs(); 0:
  // there are answers.
  void SetSilentSince(std::int64_t time_ns) noexcept;
  std::int64_t silent_since_ns() const noexcept;

  // Kept back since connecting failed `max_failures` times in a row.
  bool paused(std::int64_t now_ns) const noexcept;

  // How connecting to it went. After `max_failures` failures in a row (0:
  // never) it is paused until `now_ns` + `pause_ns`; the next failure after
  // that pauses it again, a success ends the row.
  void ReportConnected() noexcept;
  // Ends the row, and the pause: a health check, which isn't counted, was good.
  void EndFailures() noexcept;
  void ReportFailure(int max_failures, std::int64_t pause_ns,
                     std::int64_t now_ns) noexcept;

  // A connection to it ends, which UpstreamSet::Acquire() counted.
  void Release() noexcept;

  // Bytes that have passed, in client connections that live or have ended.
  // Lags behind by up to 256 KiB per connection that lives.
  void AddBytes(std::uint64_t to_upstream, std::uint64_t to_client) noexcept;

  struct Statistics {
    std::uint64_t active = 0;       // Connections now, connecting ones too.
    std::uint64_t connections = 0;  // Established since the start.
    std::uint64_t failures = 0;     // Connects that failed or timed out.
    std::uint64_t bytes_to_upstream = 0;
    std::uint64_t bytes_to_client = 0;
    bool healthy = true;
    bool paused = false;
  };
  Statistics statistics(std::int64_t now_ns) const noexcept;

 private:
  friend class UpstreamSet;

  // relaxed: see upstream.cc.
  std::uint64_t active() const noexcept {
    return active_.load(std::memory_order_relaxed);
  }
  bool IsFull(std::size_t max_connections) const noexcept {
    return max_connections != 0 && active() >= max_connections;
  }
  bool TryAcquire(std::size_t max_connections) noexcept;

  const std::string name_;
  const flare::Endpoint address_;
  std::atomic<bool> healthy_{true};
  std::atomic<std::int64_t> silent_since_ns_{0};
  std::atomic<int> failures_in_row_{0};
  std::atomic<std::int64_t> paused_until_ns_{0};
  std::atomic<std::uint64_t> active_{0};
  std::atomic<std::uint64_t> connections_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<std::uint64_t> bytes_to_upstream_{0};
  std::atomic<std::uint64_t> bytes_to_client_{0};
};

// The upstreams of one configuration and the rule by which they are chosen.
class UpstreamSet {
 public:
  // At least one upstream. `max_connections`: to each at a time; 0: no limit.
  UpstreamSet(std::vector<flare::RefPtr<Upstream>> upstreams,
              LoadBalancing policy, std::size_t max_connections);

  // Chooses one that isn't in `tried` and isn't full, and counts a connection
  // to it, which Release() ends. Those that are healthy and not paused come
  // first; if there are none, paused ones; then unhealthy ones: a connection
  // that fails is no worse than none. Among equals:
  //  kRoundRobin        each in turn;
  //  kLeastConnections  the one with the fewest, in turn if there are several;
  //  kSourceHash        by the address of `source`, without its port, so that a
  //                     client gets the same one again, also from other proxies
  //                     with the same upstreams; when one comes or goes, only
  //                     about its share of the clients moves.
  // Null: all are tried or full. Thread-safe; doesn't block.
  flare::RefPtr<Upstream> Acquire(const flare::Endpoint& source,
                                  std::span<const Upstream* const> tried,
                                  std::int64_t now_ns) const;

  const std::vector<flare::RefPtr<Upstream>>& upstreams() const noexcept {
    return upstreams_;
  }

 private:
  struct RingPoint {
    std::uint64_t hash;
    std::uint32_t upstream;  // Index.
  };

  void BuildRing();
  void CollectBest(std::span<const Upstream* const> tried, std::int64_t now_ns,
                   std::vector<Upstream*>* best) const;
  Upstream* Choose(std::span<Upstream* const> candidates,
                   const flare::Endpoint& source,
                   std::atomic<std::uint64_t>& turn) const;
  Upstream* ChooseByHash(std::span<Upstream* const> candidates,
                         const flare::Endpoint& source) const;

  const std::vector<flare::RefPtr<Upstream>> upstreams_;
  const LoadBalancing policy_;
  const std::size_t max_connections_;
  std::vector<RingPoint> ring_;  // Ascending; kSourceHash only.
  mutable std::atomic<std::uint64_t> turn_{0};
  // The turn of further attempts. One that always fails would otherwise take a
  // turn from the next one each time.
  mutable std::atomic<std::uint64_t> retry_turn_{0};
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_UPSTREAM_H_

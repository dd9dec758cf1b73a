#include "flare/rpc/load_balancer.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

class RoundRobin final : public LoadBalancer {
 public:
  std::size_t Next(std::size_t peers) override {
    if (peers == 1) return 0;
    // relaxed: only to take turns.
    return turn_.fetch_add(1, std::memory_order_relaxed) % peers;
  }

 private:
  // Channels opened by many processes at once should not all begin with the
  // first server; the counter's low bits are as good as random.
  std::atomic<std::size_t> turn_{ReadTsc() / 8 % 65536};
};

class BalancerRegistry {
 public:
  static BalancerRegistry* Instance() {
    static BalancerRegistry* const registry =
        new BalancerRegistry();  // Never destroyed.
    return registry;
  }

  bool Add(std::string name, LoadBalancerFactory factory) {
    std::scoped_lock guard(mutex_);
    return factories_.emplace(std::move(name), std::move(factory)).second;
  }

  Expected<std::unique_ptr<LoadBalancer>, flare::Status> New(
      std::string_view name) {
    std::scoped_lock guard(mutex_);
    if (auto it = factories_.find(name); it != factories_.end()) {
      return it->second();
    }
    std::string text =
        "unknown load balancer \"" + std::string(name) + "\"; known are:";
    for (const auto& [known, factory] : factories_) text += ' ' + known;
    return flare::Status(STATUS_INVALID_CHANNEL, std::move(text));
  }

 private:
  BalancerRegistry() {
    factories_["rr"] = [] { return std::make_unique<RoundRobin>(); };
  }

  ThreadMutex mutex_;
  std::map<std::string, LoadBalancerFactory, std::less<>> factories_;
};

}  // namespace

bool RegisterLoadBalancer(std::string name, LoadBalancerFactory factory) {
  return BalancerRegistry::Instance()->Add(std::move(name), std::move(factory));
}

Expected<std::unique_ptr<LoadBalancer>, flare::Status> NewLoadBalancer(
    std::string_view name) {
  return BalancerRegistry::Instance()->New(name);
}

}  // namespace flare::rpc

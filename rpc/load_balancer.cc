#include "flare/rpc/load_balancer.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/named_registry.h"
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

NamedRegistry<LoadBalancerFactory>& Balancers() {
  static auto* registry = new NamedRegistry<LoadBalancerFactory>({
      {"rr", [] { return std::make_unique<RoundRobin>(); }},
  });
  return *registry;
}

}  // namespace

bool RegisterLoadBalancer(std::string name, LoadBalancerFactory factory) {
  return Balancers().Add(std::move(name), std::move(factory));
}

Expected<std::unique_ptr<LoadBalancer>, flare::Status> NewLoadBalancer(
    std::string_view name) {
  const std::optional<LoadBalancerFactory> factory = Balancers().Find(name);
  if (!factory) {
    return flare::Status(STATUS_INVALID_CHANNEL,
                         Balancers().Unknown("load balancer", name));
  }
  return (*factory)();
}

}  // namespace flare::rpc

// The cost to choose one of 100 servers, by each balancer:
//
//   bazel run -c opt //rpc:pick_benchmark
//
// Pick is the balancer's choice alone, Zone that in the caller's zone, Call
// also the channel's work for it: health of the server, calls under way, and
// the call's end.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/random.h"
#include "flare/rpc/balance/backend_group.h"
#include "flare/rpc/balance/backend_state.h"
#include "flare/rpc/balance/zone_picker.h"
#include "flare/rpc/health_options.h"
#include "flare/rpc/load_balancer.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

constexpr std::uint16_t kServers = 100;

// A channel's servers, some of which have calls under way.
class Servers {
 public:
  // `zones`: every third server is in the caller's.
  explicit Servers(const std::string& balancer, bool zones = false)
      : balancer_(std::move(*NewLoadBalancer(balancer))),
        far_balancer_(std::move(*NewLoadBalancer(balancer))) {
    std::vector<Peer> peers;
    for (std::uint16_t i = 0; i != kServers; ++i) {
      const Endpoint endpoint = EndpointFromIpv4("10.0.0.1", 1000 + i);
      peers.push_back({endpoint, endpoint.ToString(), 1U + i % 3,
                       zones && i % 3 == 0 ? "a" : ""});
    }
    backends_ = group_.Update(std::move(peers));
    if (zones) {
      picker_ = std::make_unique<ZonePicker>(backends_, "a", balancer_.get(),
                                             far_balancer_.get());
    } else {
      picker_ = balancer_->NewPicker(backends_);
    }
    CHECK(picker_ != nullptr);
    for (std::uint64_t i = 0; i != kServers; ++i) Begin(Pick(i));
  }

  std::size_t Pick(std::uint64_t key) {
    PickedCall call;
    call.key = MixBits(key);
    call.has_key = true;
    return picker_->Pick(call);
  }
  void Begin(std::size_t index) {
    CHECK(group_.Admit(backends_[index].state(), index) != Admission::kRefused);
    backends_[index].state()->Begin();
    if (picker_->Observes()) picker_->OnBegin(index);
  }
  void End(std::size_t index) {
    constexpr std::int64_t kLatencyNs = 100'000;
    group_.End(backends_[index].state(), Verdict::kAnswered, kLatencyNs,
               NowNs(), /*probe=*/false);
    if (picker_->Observes()) picker_->OnEnd(index, {});
  }

 private:
  BackendGroup group_{HealthOptions()};
  std::unique_ptr<LoadBalancer> balancer_;
  std::unique_ptr<LoadBalancer> far_balancer_;
  Backends backends_;
  std::unique_ptr<Picker> picker_;
};

void Pick(benchmark::State& state, const std::string& balancer) {
  Servers servers(balancer);
  std::uint64_t key = 0;
  for (auto _ : state) benchmark::DoNotOptimize(servers.Pick(++key));
}

void Zone(benchmark::State& state, const std::string& balancer) {
  Servers servers(balancer, /*zones=*/true);
  std::uint64_t key = 0;
  for (auto _ : state) benchmark::DoNotOptimize(servers.Pick(++key));
}

void Call(benchmark::State& state, const std::string& balancer) {
  Servers servers(balancer);
  std::uint64_t key = 0;
  for (auto _ : state) {
    const std::size_t index = servers.Pick(++key);
    servers.Begin(index);
    servers.End(index);
  }
}

#define FLARE_BENCHMARK_BALANCER(name)  \
  BENCHMARK_CAPTURE(Pick, name, #name); \
  BENCHMARK_CAPTURE(Zone, name, #name); \
  BENCHMARK_CAPTURE(Call, name, #name)

FLARE_BENCHMARK_BALANCER(rr);
FLARE_BENCHMARK_BALANCER(wrr);
FLARE_BENCHMARK_BALANCER(random);
FLARE_BENCHMARK_BALANCER(p2c);
FLARE_BENCHMARK_BALANCER(la);
FLARE_BENCHMARK_BALANCER(chash);

}  // namespace
}  // namespace flare::rpc

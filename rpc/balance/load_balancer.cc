// Each picker is made for one list and holds everything that can be computed
// before calls come. They share relaxed counters: picks that overtake each
// other do no harm.
#include "flare/rpc/load_balancer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/named_registry.h"
#include "flare/base/random.h"
#include "flare/rpc/balance/backend_state.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// Balancers need no state of their own, except for their turns.
template <class P>
class BalancerOf final : public LoadBalancer {
 public:
  std::unique_ptr<Picker> NewPicker(const Backends& backends) override {
    if (backends.size() == 1) return nullptr;
    return std::make_unique<P>(backends, &turn_);
  }

 private:
  // Channels opened by many processes at once should not all begin with the
  // first server; the counter's low bits are as good as random.
  std::atomic<std::uint64_t> turn_{ReadTsc() / 8 % 65536};
};

std::uint64_t NextTurn(std::atomic<std::uint64_t>* turn) {
  // relaxed: only to take turns.
  return turn->fetch_add(1, std::memory_order_relaxed);
}

// Turns of different threads may be equal: the time makes them different.
std::uint64_t NextRandom(std::atomic<std::uint64_t>* turn) {
  // relaxed, both: any number will do.
  const std::uint64_t last = turn->load(std::memory_order_relaxed);
  turn->store(last + 1, std::memory_order_relaxed);
  return MixBits(MixBits(last) ^ ReadTsc());
}

// `random` as a fraction of 2^64, times `n`.
std::uint64_t Scale(std::uint64_t random, std::uint64_t n) {
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<std::uint64_t>((static_cast<Wide>(random) * n) >> 64);
}

class RoundRobin final : public Picker {
 public:
  RoundRobin(const Backends& backends, std::atomic<std::uint64_t>* turn)
      : size_(backends.size()), turn_(turn) {}

  std::size_t Pick(const PickedCall&) override {
    return NextTurn(turn_) % size_;
  }

 private:
  const std::size_t size_;
  std::atomic<std::uint64_t>* const turn_;
};

// The servers on a line, each as long as its weight.
class WeightLine {
 public:
  explicit WeightLine(const Backends& backends) {
    std::uint64_t sum = 0;
    for (const Backend& backend : backends) {
      sum += backend.peer().weight;
      ends_.push_back(sum);
    }
    if (sum != 0) return;
    // All weights are 0: that is no wish.
    for (std::size_t i = 0; i != ends_.size(); ++i) ends_[i] = i + 1;
  }

  // `place` is a fraction of 2^64 of the whole line.
  std::size_t At(std::uint64_t place) const {
    const std::uint64_t at = Scale(place, ends_.back());
    return static_cast<std::size_t>(
        std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin());
  }

 private:
  std::vector<std::uint64_t> ends_;
};

// Turns go along the line by the golden ratio, over and over. So at any time
// each server has had its share of them, give or take a few, in an even mix.
class WeightedRoundRobin final : public Picker {
 public:
  WeightedRoundRobin(const Backends& backends, std::atomic<std::uint64_t>* turn)
      : line_(backends), turn_(turn) {}

  std::size_t Pick(const PickedCall&) override {
    return line_.At(NextTurn(turn_) * 0x9e3779b97f4a7c15);
  }

 private:
  const WeightLine line_;
  std::atomic<std::uint64_t>* const turn_;
};

// Walker's alias method: as many cells of one size as there are servers, each
// of which belongs to one server up to a limit and to another one from there
// on. So a choice is two looks, however many servers there are.
class RandomPicker final : public Picker {
 public:
  RandomPicker(const Backends& backends, std::atomic<std::uint64_t>* turn)
      : cells_(backends.size()), turn_(turn) {
    std::vector<std::uint64_t> weights;
    for (const Backend& backend : backends) {
      weights.push_back(backend.peer().weight);
      cell_size_ += weights.back();
    }
    if (cell_size_ == 0) {  // All weights are 0: that is no wish.
      weights.assign(weights.size(), 1);
      cell_size_ = weights.size();
    }
    Fill(std::move(weights));
  }

  std::size_t Pick(const PickedCall&) override {
    const std::uint64_t random = NextRandom(turn_);
    const std::size_t number = Scale(random, cells_.size());
    const Cell& cell = cells_[number];
    // The high half of the product chose the cell, the low one is a place in
    // it.
    const std::uint64_t place = Scale(random * cells_.size(), cell_size_);
    return place < cell.limit ? number : cell.other;
  }

 private:
  struct Cell {
    std::uint64_t limit = 0;
    std::uint32_t other = 0;
  };

  // In units by which a cell is the sum of all weights long, and a server has
  // its weight times the number of servers.
  void Fill(std::vector<std::uint64_t> weights) {
    std::vector<std::uint32_t> small, large;
    for (std::uint32_t i = 0; i != weights.size(); ++i) {
      weights[i] *= weights.size();
      (weights[i] < cell_size_ ? small : large).push_back(i);
    }
    while (!small.empty()) {
      const std::uint32_t one = small.back();
      const std::uint32_t other = large.back();
      small.pop_back();
      cells_[one] = {weights[one], other};
      weights[other] -= cell_size_ - weights[one];
      if (weights[other] >= cell_size_) continue;
      large.pop_back();
      small.push_back(other);
    }
    for (const std::uint32_t one : large) cells_[one] = {cell_size_, one};
  }

  std::vector<Cell> cells_;
  std::uint64_t cell_size_ = 0;
  std::atomic<std::uint64_t>* const turn_;
};

// Two different ones of `size`, at random.
std::pair<std::size_t, std::size_t> TwoOf(std::size_t size,
                                          std::uint64_t random) {
  const std::size_t one = Scale(random, size);
  const std::size_t other = Scale(random * 0x9e3779b97f4a7c15, size - 1);
  return {one, other < one ? other : other + 1};
}

std::uint64_t WeightOf(const Backend& backend) {
  return std::max<std::uint64_t>(1, backend.peer().weight);
}

class LeastOutstandingOfTwo final : public Picker {
 public:
  LeastOutstandingOfTwo(const Backends& backends,
                        std::atomic<std::uint64_t>* turn)
      : backends_(backends), turn_(turn) {}

  std::size_t Pick(const PickedCall&) override {
    const auto [one, other] = TwoOf(backends_.size(), NextRandom(turn_));
    const Backend& a = backends_[one];
    const Backend& b = backends_[other];
    return a.in_flight() * WeightOf(b) <= b.in_flight() * WeightOf(a) ? one
                                                                      : other;
  }

 private:
  const Backends& backends_;
  std::atomic<std::uint64_t>* const turn_;
};

class LatencyAware final : public Picker {
 public:
  LatencyAware(const Backends& backends, std::atomic<std::uint64_t>* turn)
      : backends_(backends), turn_(turn) {}

  std::size_t Pick(const PickedCall&) override {
    const auto [one, other] = TwoOf(backends_.size(), NextRandom(turn_));
    const std::int64_t now = NowNs();
    return Cost(backends_[one], now) <= Cost(backends_[other], now) ? one
                                                                    : other;
  }

 private:
  // How long the call would take, if each call under way makes it longer by its
  // own time. A server of which nothing is known costs as good as nothing.
  static double Cost(const Backend& backend, std::int64_t now_ns) {
    const auto latency = static_cast<double>(backend.DecayedLatencyNs(now_ns));
    return (latency + 1) * (backend.in_flight() + 1.0) /
           static_cast<double>(WeightOf(backend));
  }

  const Backends& backends_;
  std::atomic<std::uint64_t>* const turn_;
};

// Keys fall into slots. A slot belongs to the server with the highest score for
// it (rendezvous hashing): so a server that goes takes only its own slots
// along.
class ConsistentHash final : public Picker {
 public:
  ConsistentHash(const Backends& backends, std::atomic<std::uint64_t>* turn)
      : backends_(backends), turn_(turn) {
    std::vector<std::uint64_t> names;
    bool weighted = false;
    for (const Backend& backend : backends) {
      names.push_back(MixBits(
          std::hash<std::string_view>()(backend.peer().endpoint.ToString())));
      sum_of_weights_ += WeightOf(backend);
      weighted = weighted || WeightOf(backend) != WeightOf(backends[0]);
    }
    for (const Backend& backend : backends) {
      bounds_.push_back(kLoadBound * static_cast<double>(WeightOf(backend)) /
                        static_cast<double>(sum_of_weights_));
    }
    for (std::size_t slot = 0; slot != kSlots; ++slot) {
      owners_.push_back(static_cast<std::uint32_t>(
          weighted ? HeaviestOf(slot, names) : HighestOf(slot, names)));
    }
  }

  std::size_t Pick(const PickedCall& call) override {
    const std::uint64_t key = call.has_key ? call.key : NextRandom(turn_);
    // A few other slots, the same ones each time, if the first server has more
    // than its share of the calls.
    std::uint64_t hash = MixBits(key);
    for (std::uint32_t i = 0; i != call.refused; ++i) hash = MixBits(hash);
    std::size_t owner = OwnerOf(hash);
    for (int look = 0; look != kLooks && IsFull(owner); ++look) {
      hash = MixBits(hash);
      owner = OwnerOf(hash);
    }
    // There is always one that has less than its share.
    for (std::size_t i = 0; i != backends_.size() && IsFull(owner); ++i) {
      owner = (owner + 1) % backends_.size();
    }
    return owner;
  }

  bool Observes() const override { return true; }
  // relaxed, both: a sum to compare with.
  void OnBegin(std::size_t) override {
    in_flight_.fetch_add(1, std::memory_order_relaxed);
  }
  void OnEnd(std::size_t, const EndedCall&) override {
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  // Always as many, whatever the number of servers: else all keys would move
  // when it changes.
  static constexpr std::size_t kSlots = 65536;
  static constexpr int kLooks = 8;
  static constexpr double kLoadBound = 1.25;

  std::size_t OwnerOf(std::uint64_t hash) const {
    return owners_[hash % kSlots];
  }

  // Would one more call make more than kLoadBound times its share of the calls
  // under way, rounded up? As these are whole numbers, that is the same as:
  bool IsFull(std::size_t index) const {
    const double all = in_flight_.load(std::memory_order_relaxed) + 1.0;
    return backends_[index].in_flight() >= bounds_[index] * all;
  }

  static std::size_t HighestOf(std::size_t slot,
                               const std::vector<std::uint64_t>& names) {
    std::size_t best = 0;
    std::uint64_t highest = 0;
    for (std::size_t i = 0; i != names.size(); ++i) {
      const std::uint64_t score = MixBits(names[i] ^ slot);
      if (score < highest) continue;
      highest = score;
      best = i;
    }
    return best;
  }

  std::size_t HeaviestOf(std::size_t slot,
                         const std::vector<std::uint64_t>& names) const {
    std::size_t best = 0;
    double highest = -1;
    for (std::size_t i = 0; i != names.size(); ++i) {
      const double uniform =
          (static_cast<double>(MixBits(names[i] ^ slot) >> 11) + 0.5) * 0x1p-53;
      const double score =
          -static_cast<double>(WeightOf(backends_[i])) / std::log(uniform);
      if (score < highest) continue;
      highest = score;
      best = i;
    }
    return best;
  }

  const Backends& backends_;
  std::atomic<std::uint64_t>* const turn_;
  std::uint64_t sum_of_weights_ = 0;
  std::vector<double> bounds_;  // Each server's share, times kLoadBound.
  std::vector<std::uint32_t> owners_;
  std::atomic<std::uint32_t> in_flight_{0};
};

// The picker of a balancer that has Next() only.
class NextPicker final : public Picker {
 public:
  NextPicker(LoadBalancer* balancer, std::size_t backends)
      : balancer_(balancer), backends_(backends) {}

  std::size_t Pick(const PickedCall& call) override {
    return call.refused == 0 ? balancer_->Next(backends_)
                             : (call.last_refused + 1) % backends_;
  }

 private:
  LoadBalancer* const balancer_;
  const std::size_t backends_;
};

template <class P>
std::unique_ptr<LoadBalancer> New() {
  return std::make_unique<BalancerOf<P>>();
}

NamedRegistry<LoadBalancerFactory>& Balancers() {
  static auto* registry = new NamedRegistry<LoadBalancerFactory>({
      {"chash", New<ConsistentHash>},
      {"la", New<LatencyAware>},
      {"p2c", New<LeastOutstandingOfTwo>},
      {"random", New<RandomPicker>},
      {"rr", New<RoundRobin>},
      {"wrr", New<WeightedRoundRobin>},
  });
  return *registry;
}

}  // namespace

std::uint32_t Backend::in_flight() const { return state_->in_flight(); }

std::int64_t Backend::latency_ns() const { return state_->latency_ns(); }

std::int64_t Backend::DecayedLatencyNs(std::int64_t now_ns) const {
  return state_->DecayedLatencyNs(now_ns);
}

std::unique_ptr<Picker> LoadBalancer::NewPicker(const Backends& backends) {
  return std::make_unique<NextPicker>(this, backends.size());
}

std::size_t LoadBalancer::Next(std::size_t) { return 0; }

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

// Keeps the calls of a channel in the caller's zone, as long as enough servers
// of that zone can take calls. The channel's own balancer chooses among the
// servers of the zone, and among the others.

#ifndef FLARE_RPC_BALANCE_ZONE_PICKER_H_
#define FLARE_RPC_BALANCE_ZONE_PICKER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flare/rpc/load_balancer.h"

namespace flare::rpc {

// Thread-safe; nothing blocks.
class ZonePicker final : public Picker {
 public:
  // Whether some servers are in `zone` and some aren't, both with a weight.
  static bool IsOfUse(const Backends& backends, const std::string& zone);

  // Needs IsOfUse(backends, zone). Both balancers must outlive this.
  ZonePicker(const Backends& backends, const std::string& zone,
             LoadBalancer* near, LoadBalancer* far);

  // The first two picks for a call are of the same side, further ones of the
  // other.
  std::size_t Pick(const PickedCall& call) override;
  bool Observes() const override { return near_.observes || far_.observes; }
  void OnBegin(std::size_t index) override;
  void OnEnd(std::size_t index, const EndedCall& call) override;

  bool IsNear(std::size_t index) const { return places_[index].near; }

  // Notes how many servers of each side can take calls. From now on all calls
  // stay near if at least seven tenths of the near servers can; below that the
  // share of calls that stay falls with the share of servers.
  void NoteUsable(std::size_t near, std::size_t far);

 private:
  static constexpr std::uint32_t kAll = 65536;

  struct Side {
    std::size_t Pick(const PickedCall& call) const;

    Backends backends;
    std::vector<std::uint32_t> numbers;  // In the whole list.
    std::unique_ptr<Picker> picker;      // Null: there is one server.
    bool observes = false;
  };
  struct Place {
    bool near = false;
    std::uint32_t index = 0;
  };

  const Side& SideOf(Place place) const { return place.near ? near_ : far_; }

  Side near_;
  Side far_;
  std::vector<Place> places_;              // For each server of the list.
  std::atomic<std::uint32_t> stay_{kAll};  // This many of kAll calls stay near.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_BALANCE_ZONE_PICKER_H_

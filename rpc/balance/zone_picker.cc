#include "flare/rpc/balance/zone_picker.h"

#include "flare/base/clock.h"
#include "flare/base/random.h"

namespace flare::rpc {
namespace {

// With this share of its servers a zone can do the work of all of them.
constexpr double kEnough = 0.7;

// Picks for a call before it leaves the zone because its servers refuse it.
constexpr std::uint32_t kNearPicks = 2;

}  // namespace

bool ZonePicker::IsOfUse(const Backends& backends, const std::string& zone) {
  if (zone.empty()) return false;
  bool near = false;
  bool far = false;
  for (const Backend& backend : backends) {
    // Without a weight it gets no calls, and keeps none in its zone.
    if (backend.peer().weight == 0) continue;
    (backend.peer().zone == zone ? near : far) = true;
  }
  return near && far;
}

ZonePicker::ZonePicker(const Backends& backends, const std::string& zone,
                       LoadBalancer* near, LoadBalancer* far) {
  for (const Backend& backend : backends) {
    const bool is_near = backend.peer().zone == zone;
    Side& side = is_near ? near_ : far_;
    const auto number = static_cast<std::uint32_t>(places_.size());
    places_.push_back(
        {is_near, static_cast<std::uint32_t>(side.backends.size())});
    side.backends.push_back(backend);
    side.numbers.push_back(number);
  }
  near_.picker = near->NewPicker(near_.backends);
  far_.picker = far->NewPicker(far_.backends);
  for (Side* const side : {&near_, &far_}) {
    side->observes = side->picker != nullptr && side->picker->Observes();
  }
}

std::size_t ZonePicker::Side::Pick(const PickedCall& call) const {
  return picker == nullptr ? 0 : picker->Pick(call) % backends.size();
}

std::size_t ZonePicker::Pick(const PickedCall& call) {
  // relaxed: a hint.
  const std::uint32_t stay = stay_.load(std::memory_order_relaxed);
  bool near = stay == kAll;
  if (!near) [[unlikely]] {
    // Calls with one key are all on one side.
    near = MixBits(call.has_key ? ~call.key : ReadTsc()) % kAll < stay;
  }
  if (call.refused == 0) [[likely]] {
    const Side& side = near ? near_ : far_;
    return side.numbers[side.Pick(call)];
  }
  const Place last = places_[call.last_refused];
  PickedCall again = call;
  again.last_refused = last.index;
  if (last.near && call.refused >= kNearPicks) {
    again.refused = 0;
    return far_.numbers[far_.Pick(again)];
  }
  const Side& side = SideOf(last);
  return side.numbers[side.Pick(again)];
}

void ZonePicker::OnBegin(std::size_t index) {
  const Place place = places_[index];
  const Side& side = SideOf(place);
  if (side.observes) side.picker->OnBegin(place.index);
}

void ZonePicker::OnEnd(std::size_t index, const EndedCall& call) {
  const Place place = places_[index];
  const Side& side = SideOf(place);
  if (side.observes) side.picker->OnEnd(place.index, call);
}

void ZonePicker::NoteUsable(std::size_t near, std::size_t far) {
  const double share = static_cast<double>(near) /
                       static_cast<double>(near_.backends.size()) / kEnough;
  const bool all = far == 0 || share >= 1;
  // relaxed: a hint.
  stay_.store(all ? kAll : static_cast<std::uint32_t>(share * kAll),
              std::memory_order_relaxed);
}

}  // namespace flare::rpc

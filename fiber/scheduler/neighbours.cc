#include "flare/fiber/scheduler/neighbours.h"

#include <algorithm>
#include <cstddef>

#include "flare/fiber/scheduler/scheduling_group.h"

namespace flare::fiber {
namespace {

SchedulingGroup* ChooseFrom(const Neighbours::Circle& circle,
                            std::uint32_t attempt, std::uint32_t random) {
  if (circle.groups.empty() ||
      attempt % static_cast<std::uint32_t>(circle.ratio) != 0) {
    return nullptr;
  }
  return circle.groups[random % circle.groups.size()];
}

SchedulingGroup* MostIdleOf(const Neighbours::Circle& circle) {
  SchedulingGroup* best = nullptr;
  std::size_t most = 0;
  for (SchedulingGroup* group : circle.groups) {
    const std::size_t idle = group->wakeable();
    if (idle > most) {
      most = idle;
      best = group;
    }
  }
  return best;
}

bool AnyIdleOf(const Neighbours::Circle& circle) {
  return std::any_of(
      circle.groups.begin(), circle.groups.end(),
      [](const SchedulingGroup* group) { return group->CanWake(); });
}

bool AnyBusyOf(const Neighbours::Circle& circle) {
  return std::any_of(
      circle.groups.begin(), circle.groups.end(),
      [](const SchedulingGroup* group) { return !group->CanWake(); });
}

}  // namespace

void Neighbours::Set(Circle near, Circle far) {
  if (near.ratio > 0) near_ = std::move(near);
  if (far.ratio > 0) far_ = std::move(far);
}

bool Neighbours::IsFar(const SchedulingGroup* group) const noexcept {
  return std::find(far_.groups.begin(), far_.groups.end(), group) !=
         far_.groups.end();
}

SchedulingGroup* Neighbours::ChooseNear(std::uint32_t attempt,
                                        std::uint32_t random) const {
  return ChooseFrom(near_, attempt, random);
}

SchedulingGroup* Neighbours::ChooseFar(std::uint32_t attempt,
                                       std::uint32_t random) const {
  return ChooseFrom(far_, attempt, random);
}

SchedulingGroup* Neighbours::MostIdle(int periods) const {
  SchedulingGroup* const near = MostIdleOf(near_);
  if (near != nullptr || far_.groups.empty() || periods < far_.ratio) {
    return near;
  }
  return MostIdleOf(far_);
}

bool Neighbours::AnyIdle() const { return AnyIdleOf(near_) || AnyIdleOf(far_); }

bool Neighbours::AnyBusy() const { return AnyBusyOf(near_) || AnyBusyOf(far_); }

SchedulingGroup* Neighbours::AnyWithStacks() const {
  for (const Circle* circle : {&near_, &far_}) {
    for (SchedulingGroup* group : circle->groups) {
      if (!group->shortage().any()) return group;
    }
  }
  return nullptr;
}

}  // namespace flare::fiber

#include "flare/fiber/scheduler/neighbours.h"

#include <algorithm>

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

}  // namespace flare::fiber

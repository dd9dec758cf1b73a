// The other groups that a group's idle workers help: whose tasks they take when
// their own group has none. Near ones are on the same NUMA node, far ones on
// another; groups of other sets (group_sets.h) are neither.
//
// A worker looks at them by itself when it runs out of work, once in so many
// searches. That is no help while it sleeps: so the watch, when it finds a
// group all of whose workers are busy while tasks wait, invites one that
// sleeps in a neighbouring group (watch.cc). Tasks that a group has no stacks
// for are given to one that has some (spare_carriers.cc [ST6]).

#ifndef FLARE_FIBER_NEIGHBOURS_H_
#define FLARE_FIBER_NEIGHBOURS_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "flare/base/cpu.h"

namespace flare::fiber {

class SchedulingGroup;

class Neighbours {
 public:
  struct Circle {
    std::vector<SchedulingGroup*> groups;
    // One search in this many looks there; 0: none ever does.
    int ratio = 0;
  };

  Neighbours() = default;
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  // Before the workers start. Circles that are never looked at are dropped.
  void Set(Circle near, Circle far);

  bool empty() const noexcept {
    return near_.groups.empty() && far_.groups.empty();
  }
  bool IsFar(const SchedulingGroup* group) const noexcept;

  // Whom to look at in a worker's search number `attempt`; `random` picks among
  // several. nullptr: nobody this time. Any thread.
  SchedulingGroup* ChooseNear(std::uint32_t attempt,
                              std::uint32_t random) const;
  SchedulingGroup* ChooseFar(std::uint32_t attempt, std::uint32_t random) const;

  // The watch: `victim` is short of workers. Its own group's next searcher sees
  // to it, and has to be woken.
  void Invite(SchedulingGroup* victim) noexcept {
    // relaxed: only a pointer that has been valid from before the start.
    invitation_.store(victim, std::memory_order_relaxed);
  }
  // Returns the invitation to the first caller. Any thread.
  SchedulingGroup* TakeInvitation() noexcept {
    // relaxed, both: as in Invite; a first look saves the exchange.
    if (invitation_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    return invitation_.exchange(nullptr, std::memory_order_relaxed);
  }

  const Circle& near() const noexcept { return near_; }
  const Circle& far() const noexcept { return far_; }

  // One for which `wanted(group)` is true, rather a near one; nullptr: there is
  // none.
  template <class Wanted>
  SchedulingGroup* Find(const Wanted& wanted) const {
    for (const Circle* circle : {&near_, &far_}) {
      for (SchedulingGroup* group : circle->groups) {
        if (wanted(group)) return group;
      }
    }
    return nullptr;
  }

 private:
  Circle near_;
  Circle far_;
  // Written by the watch, read by searchers.
  alignas(kCacheLine) std::atomic<SchedulingGroup*> invitation_{nullptr};
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_NEIGHBOURS_H_

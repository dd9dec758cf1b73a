// The stacks of a worker: the carrier it runs on, and spares for when a task
// suspends.
//
//  [ST1] While a task runs on a worker, first time or resumed, the worker holds
//        a spare. So a running task can always suspend, and running out of
//        stacks changes nothing for work that has started. It is kept without
//        a look per task: only a suspension takes a spare, and only to go on
//        with the loop there, which then begins by getting another
//        (NextOnArrival). A resumption from the loop leaves the loop's carrier
//        behind as a spare; one straight from a suspending fiber takes none.
//  [ST2] A worker that gets no spare is short: it runs resumptions, each of
//        which ends its shortage, and puts tasks that have not started aside,
//        in its group (stack_shortage.h). Workers of the group that have spares
//        take them, before they look at the injection queue.
//  [ST3] No task stays aside while a worker of the group that isn't short
//        sleeps: such a worker looks there after it has set its idle bit, and
//        one that puts a task aside looks at the idle bits after that, as in
//        scheduling_group.cc [P1] [P2], and wakes one that isn't short. A
//        worker was short when it set its bit if, and only if, its mark is
//        there for any thread that sees the bit.
//  [ST4] While a worker of the group is short, the others give all spares but
//        two back to the group's allocator, where it finds them when it next
//        meets a task to put aside.
//  [ST5] Every so often (half of Options::stack_idle_ns) a worker gives all
//        spares but one to the group's allocator. A worker that sleeps wakes
//        for it as long as it has more. The memory watch (memory_watch.h) trims
//        the allocator as often, so that stacks that aren't needed for that
//        long lose their memory.
//  [ST6] Stacks come back without a word to the workers that are short: shared
//        by another worker [ST4], or by a group that has stolen fibers on them.
//        So a worker that is short asks again before it sleeps, and does that
//        for kStackRetryNs at most. While all workers of its group are short,
//        tasks that are aside go to a neighbouring group where none is: that
//        one may have the stacks.
#include "flare/fiber/scheduler/spare_carriers.h"

#include "flare/base/clock.h"

namespace flare::fiber {

SpareCarriers::SpareCarriers(StackAllocator* stacks, Carrier::Entry enter,
                             std::int64_t idle_ns)
    : stacks_(stacks), enter_(enter), idle_ns_(idle_ns) {}

bool SpareCarriers::GetFirst() {
  if (idle_ns_ != 0) next_trim_ns_ = SaturatingAdd(NowNs(), idle_ns_ / 2);
  return Get() && Get();
}

bool SpareCarriers::Get() {
  Carrier* const carrier = Carrier::Create(stacks_, enter_);
  if (carrier == nullptr) return false;
  Add(carrier);
  return true;
}

void SpareCarriers::Keep(std::size_t count) {
  while (count_ > count) Take()->Destroy();
}

// [ST5]
void SpareCarriers::Trim(std::int64_t now_ns) {
  next_trim_ns_ = SaturatingAdd(now_ns, idle_ns_ / 2);
  Keep(1);
}

}  // namespace flare::fiber

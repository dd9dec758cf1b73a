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
//        there for whoever sees the bit.
//  [ST4] While a worker of the group is short, the others give all spares but
//        two back to the group's allocator, where it finds them when it next
//        meets a task to put aside.
//  [ST5] Every so often (half of Options::stack_idle_ns) a worker gives all
//        spares but one to the group's allocator. A worker that sleeps wakes
//        for it as long as it has more. The memory watch (memory_watch.h) trims
//        the allocator as often, so that what isn't needed for that long loses
//        its memory.
//  [ST6] Stacks come back without a word to those who are short: shared by
//        another worker [ST4], or by a group that has stolen fibers on them. So
//        a worker that is short asks again before it sleeps, and does that for
//        kStackRetryNs at most. While all workers of its group are short, tasks
//        that are aside go to a neighbouring group where none is: that one may
//        have the stacks.
#include <algorithm>

#include "flare/base/clock.h"
#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/stack.h"

namespace flare::fiber {

bool Worker::GetFirstStacks() {
  next_trim_ns_ = group_->stack_idle_ns() == 0
                      ? kNoDeadline
                      : SaturatingAdd(NowNs(), group_->stack_idle_ns() / 2);
  for (int i = 0; i < 2; ++i) {
    Carrier* const carrier = Carrier::Create(group_->stacks());
    if (carrier == nullptr) return false;
    AddSpare(carrier);
  }
  return true;
}

void Worker::KeepSpares(std::size_t count) {
  while (spare_count_ > count) TakeSpare()->Destroy();
}

bool Worker::GetSpare() {
  Carrier* const carrier = Carrier::Create(group_->stacks());
  if (carrier == nullptr) return false;
  AddSpare(carrier);
  return true;
}

// [ST2]
Task* Worker::NextWithoutSpare() {
  if (GetSpare()) return Next();
  StackShortage& shortage = group_->shortage();
  shortage.Begin(index_);
  Task* task = Next();
  while (task != nullptr && !IsResumption(task) && spares_ == nullptr &&
         !GetSpare()) {
    group_->PutAside(task);
    task = Next();
  }
  shortage.End(index_);
  return task;
}

TaskList Worker::TakeAside(std::size_t most) {
  if (spares_ == nullptr) return TaskList();  // We are short ourselves.
  // No more than can suspend, lest they come back.
  return group_->shortage().TakeAside(std::min(most, spare_count_));
}

void Worker::EaseShortage() {
  if (spares_ != nullptr) {
    KeepSpares(2);  // [ST4]
  } else if (GetSpare()) {
    group_->shortage().End(index_);  // [ST6]
  } else {
    group_->PassAsideOn();
  }
}

// [ST5]
void Worker::TrimSpares(std::int64_t now_ns) {
  next_trim_ns_ = SaturatingAdd(now_ns, group_->stack_idle_ns() / 2);
  KeepSpares(1);
}

std::int64_t Worker::TrimDeadline() const {
  return spare_count_ > 1 ? next_trim_ns_ : kNoDeadline;
}

}  // namespace flare::fiber

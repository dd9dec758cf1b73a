// How the kernel schedules a thread: sched(7).

#ifndef FLARE_FIBER_THREAD_POLICY_H_
#define FLARE_FIBER_THREAD_POLICY_H_

#include <pthread.h>
#include <sched.h>

namespace flare::fiber {

// A policy and its parameters. Threads inherit those of the thread that starts
// them.
struct ThreadPolicy {
  int policy = SCHED_OTHER;
  sched_param parameters{};

  static ThreadPolicy OfThisThread() noexcept {
    ThreadPolicy mine;
    pthread_getschedparam(pthread_self(), &mine.policy, &mine.parameters);
    return mine;
  }

  // To this thread. Where that isn't allowed nothing changes.
  void Apply() const noexcept {
    pthread_setschedparam(pthread_self(), policy, &parameters);
  }

  // Returns the policy of a thread which takes no CPU from one that runs by
  // this: it gets one that has nothing to do, or its turn. Returns this one if
  // this isn't the default: then somebody has chosen it for all.
  ThreadPolicy GivingWay() const noexcept {
    return policy == SCHED_OTHER ? ThreadPolicy{.policy = SCHED_BATCH} : *this;
  }
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_POLICY_H_

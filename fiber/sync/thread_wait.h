// How a plain thread waits for somebody, mostly a fiber, to wake it.
//
//   // the waiter                        // the waker
//   ThreadWait wait;                     wait->Wake();  // Its last access.
//   ... let others know of it ...
//   while (!wait.Until(deadline_ns)) {
//     ... withdraw it, or find that somebody is about to wake it ...
//   }
//
// A CPU that has nothing to run goes to sleep and is slow to come back, by 20
// to 100 us on virtual machines. So a thread looks whether it has been woken
// for a while, if that has proved worth it lately, and offers its CPU to others
// meanwhile, before it sleeps (base/spin_policy.h). To wake it by then takes no
// system call.

#ifndef FLARE_FIBER_THREAD_WAIT_H_
#define FLARE_FIBER_THREAD_WAIT_H_

#include <atomic>
#include <cstdint>

namespace flare::fiber {

class ThreadWait {
 public:
  ThreadWait() = default;
  ThreadWait(const ThreadWait&) = delete;
  ThreadWait& operator=(const ThreadWait&) = delete;

  // True: Wake() was called; all that it followed has happened. False: NowNs()
  // has reached the deadline. Blocks the thread, of which there is one.
  bool Until(std::int64_t deadline_ns);

  // Any thread or fiber, once; doesn't block. The waiter may destroy it at
  // once.
  void Wake();

 private:
  enum State : std::uint32_t { kAwake, kAsleep, kWoken };

  bool woken() const;
  // True: woken meanwhile.
  bool Look(std::int64_t deadline_ns);
  void Sleep(std::int64_t deadline_ns);

  std::atomic<std::uint32_t> state_{kAwake};
};

// For how long threads look at most, from their next wait on or, if they have
// waited before, whether they look at all; 0: no. 100 us at first.
void SetThreadSpin(std::int64_t limit_ns);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_WAIT_H_

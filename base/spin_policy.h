// Whether a thread that has nothing to do looks again for a while, for IO or
// whatever it waits for, before it sleeps.
//
// A CPU that has nothing to run goes to sleep, and is slow to come back: some 5
// us on bare metal, 30 to 100 us on virtual machines, for each side of each
// round trip. A thread that expects an answer sooner is better off awake. But
// not always:
//  - Somebody else may want the CPU, the peer, say. So looks are followed by
//    offers to give it away; a taker is waited for without sleeping,
//    but not for long: it costs others time, where an idle CPU costs nobody
//    any. Then it looks as long as the answer of a peer that has to be woken
//    takes, about twice a wake-up, and learns that time from how late sleeps
//    end that nothing has ended.
//  - Nothing may come for long. Each time that the limit was reached in vain is
//    followed by sleeps without a look: one at first, up to a thousand.
//  - Under much load a sleep brings events of several sockets at once, three
//    and more. That is cheaper than to wait for each, so then it sleeps. Two
//    are no sign of it: while both sides sleep, the second comes during a
//    wake-up.
// docs/decisions/0010-looking-before-sleeping.md
//
// Not thread-safe: each sleeper has its own. Nothing blocks.

#ifndef FLARE_BASE_SPIN_POLICY_H_
#define FLARE_BASE_SPIN_POLICY_H_

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "flare/base/backoff.h"
#include "flare/base/clock.h"
#include "flare/base/cpu.h"

namespace flare {

class SpinPolicy {
 public:
  // A look that is a system call must be worth this.
  static constexpr std::int64_t kSystemCallIntervalNs = 2000;

  // Looks around for at most `limit_ns` before a sleep, every `interval_ns`; 0:
  // never.
  explicit SpinPolicy(std::int64_t limit_ns,
                      std::int64_t interval_ns = kSystemCallIntervalNs)
      : most_ns_(limit_ns),
        interval_ns_(interval_ns),
        taken_limit_ns_(limit_ns) {}

  // Waits until `deadline_ns` (NowNs()) for the result of sleep(until): a
  // number other than 0, which it returns by then; sleep(0) only looks. 0:
  // don't wait. The thread's timers should be exact (PR_SET_TIMERSLACK).
  template <class SleepUntil>
  int Wait(std::int64_t deadline_ns, SleepUntil&& sleep) {
    if (deadline_ns == 0) return sleep(0);
    if (ShouldSpin()) {
      const int n = Spin(deadline_ns, [&] { return sleep(0); });
      if (n != 0) return n;
    }
    const int n = Sleep(deadline_ns, sleep);
    Slept(n);
    return n;
  }

  // The parts of Wait().

  // For how long it looks around, by whether somebody has taken the CPU.
  std::int64_t limit_ns(bool taken) const {
    return taken ? taken_limit_ns_ : most_ns_;
  }

  // Before a sleep: whether to look around this time. If so, say Found() or
  // Missed() afterwards, or call Spin().
  bool ShouldSpin() {
    if (most_ns_ == 0 || batch_ > kLargeBatch) return false;
    if (!backoff_.ShouldTry()) return false;
    // Samples some sleeps, to know their results.
    return ++asked_ % kSampleEvery != 0;
  }
  void Found() { backoff_.Succeeded(); }
  void Missed() { backoff_.Failed(); }

  // After a sleep: that it brought `events`.
  void Slept(int events) {
    if (events > 0) batch_ += (std::min(events, 64) * kOne - batch_) / 4;
  }
  // ... or that it lasted `ns` longer than it should have. The limit becomes
  // twice the lower quartile: a longer sleep has often waited for a CPU.
  void Overslept(std::int64_t ns) {
    std::int64_t limit = taken_limit_ns_;
    limit += 2 * ns > limit ? limit / 16 : -3 * limit / 16;
    taken_limit_ns_ = std::min(std::max(limit, kLeastLimitNs), most_ns_);
  }

  // Calls look() again and again until it returns something other than 0,
  // which is returned, or until the limit or `deadline_ns` (NowNs()): then 0.
  // Instead of Found() and Missed().
  template <class Look>
  int Spin(std::int64_t deadline_ns, Look&& look) {
    std::int64_t now = NowNs();
    const std::int64_t start = now;
    bool taken = false;
    unsigned looks = 0;
    for (;;) {
      if (const int found = look(); found != 0) {
        Found();
        return found;
      }
      const std::int64_t looked = now;
      // A system call, too: not each time as long as nobody wants the CPU.
      if (taken || looks++ % kOfferEvery == 0) ::sched_yield();
      now = NowNs();
      taken |= now - looked > kTakenNs;
      if (now >= deadline_ns) return 0;  // Which says nothing about IO.
      if (now - start >= limit_ns(taken)) {
        Missed();
        return 0;
      }
      while (now < looked + interval_ns_) {
        CpuRelax();
        now = NowNs();
      }
    }
  }

 private:
  // In two parts if it is time to learn from one.
  template <class SleepUntil>
  int Sleep(std::int64_t deadline_ns, SleepUntil&& sleep) {
    if (most_ns_ != 0) {
      const std::int64_t now = NowNs();
      const std::int64_t part = now + kTrialNs;
      if (now >= next_trial_ns_ && part < deadline_ns) {
        next_trial_ns_ = now + kTrialIntervalNs;
        if (const int n = sleep(part); n != 0) return n;
        Overslept(NowNs() - part);
      }
    }
    return sleep(deadline_ns);
  }

  static constexpr unsigned kOfferEvery = 4;  // Looks.
  // A look and an offer that nobody takes are 1 to 2 us.
  static constexpr std::int64_t kTakenNs = 5000;
  static constexpr std::int64_t kLeastLimitNs = 20'000;
  static constexpr std::int64_t kTrialNs = 50'000;
  static constexpr std::int64_t kTrialIntervalNs = 20'000'000;
  static constexpr int kSampleEvery = 64;
  static constexpr int kOne = 16;  // One event, in batch_.
  static constexpr int kLargeBatch = 2 * kOne + kOne / 2;

  const std::int64_t most_ns_;
  const std::int64_t interval_ns_;
  std::int64_t taken_limit_ns_;
  std::int64_t next_trial_ns_ = 0;
  Backoff backoff_;   // Sleeps without a look around.
  int batch_ = kOne;  // Events of a sleep lately, times kOne.
  unsigned asked_ = 0;
};

}  // namespace flare

#endif  // FLARE_BASE_SPIN_POLICY_H_

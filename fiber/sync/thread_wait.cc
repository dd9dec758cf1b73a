// [TH1] The waiter goes from kAwake to kAsleep before it sleeps, by an exchange
//       that fails once it is kWoken; the waker's exchange to kWoken tells it
//       whether the waiter was kAsleep. One of the two comes first, so either
//       the waiter doesn't sleep or the waker rouses it.
// [TH2] The waker's exchange is its last access: from then on the waiter may be
//       gone. Rousing takes the address alone, and rouses nobody, or somebody
//       else for nothing, if it is another word by then.
#include "flare/fiber/sync/thread_wait.h"

#include "flare/base/clock.h"
#include "flare/base/futex.h"
#include "flare/base/spin_policy.h"
#include "flare/fiber/scheduler/fork_guard.h"

namespace flare::fiber {
namespace {

// A look is a load.
constexpr std::int64_t kLookIntervalNs = 500;

std::atomic<std::int64_t> spin_limit_ns{100'000};

[[gnu::noinline]] SpinPolicy& ThreadSpin() {
  // relaxed: a number.
  thread_local SpinPolicy policy(spin_limit_ns.load(std::memory_order_relaxed),
                                 kLookIntervalNs);
  SpinPolicy* address = &policy;
  asm volatile("" : "+r"(address));  // docs/proofs.md
  return *address;
}

}  // namespace

void SetThreadSpin(std::int64_t limit_ns) {
  // relaxed: a number.
  spin_limit_ns.store(limit_ns, std::memory_order_relaxed);
}

bool ThreadWait::woken() const {
  // acquire: pairs with the release in Wake.
  return state_.load(std::memory_order_acquire) == kWoken;
}

bool ThreadWait::Until(std::int64_t deadline_ns) {
  if (IsForkedChild()) [[unlikely]]
    DieAsForkedChild();
  // relaxed: a number.
  const bool looks = spin_limit_ns.load(std::memory_order_relaxed) != 0;
  while (!woken()) {
    if (NowNs() >= deadline_ns) return false;
    if (looks && Look(deadline_ns)) return true;
    Sleep(deadline_ns);
  }
  return true;
}

// It isn't SpinPolicy::Wait(), which learns from sleeps in two parts now and
// then: too many of them where hundreds of threads wait.
bool ThreadWait::Look(std::int64_t deadline_ns) {
  SpinPolicy& policy = ThreadSpin();
  return policy.ShouldSpin() &&
         policy.Spin(deadline_ns, [this] { return woken() ? 1 : 0; }) != 0;
}

// May return early: callers look again.
void ThreadWait::Sleep(std::int64_t deadline_ns) {
  std::uint32_t state = kAwake;
  // relaxed: says that we sleep, no more [TH1]; woken() acquires.
  if (state_.compare_exchange_strong(state, kAsleep,
                                     std::memory_order_relaxed) ||
      state == kAsleep) {
    FutexWait(&state_, kAsleep, deadline_ns);
  }
}

void ThreadWait::Wake() {
  std::atomic<std::uint32_t>* const state = &state_;
  // release: pairs with the acquire in woken() [TH1] [TH2].
  if (state->exchange(kWoken, std::memory_order_release) == kAsleep) {
    FutexWake(state, 1);
  }
}

}  // namespace flare::fiber

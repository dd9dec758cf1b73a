// A thread that looks after something again and again, and sleeps while there
// is nothing to look after: until it is poked, or stopped.
//
//   void Main() {
//     while (!thread_.stopping()) {
//       if (Look()) {
//         thread_.SleepUntil(NowNs() + period_ns);
//       } else {
//         thread_.SleepUnless([this] { return AnythingToDo(); });
//       }
//     }
//   }
//   thread_.Start([this] { Main(); });
//
// [PT1] Before it sleeps without limit, the thread stores 1 to `asleep_`
//       (seq_cst) and then asks whether there is anything; another thread that
//       makes that so does it (seq_cst) and then loads `asleep_`. So either the
//       thread sees that there is something, or the other one sees it asleep.
// [PT2] Stop() stores 1 to `stop_` (seq_cst) and then exchanges `asleep_`; the
//       thread stores 1 to `asleep_` and then loads `stop_`. So it doesn't
//       sleep through its end, either.

#ifndef FLARE_FIBER_POKED_THREAD_H_
#define FLARE_FIBER_POKED_THREAD_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/futex.h"

namespace flare::fiber {

class PokedThread {
 public:
  // Stop() first, if it was started.
  PokedThread() = default;
  PokedThread(const PokedThread&) = delete;
  PokedThread& operator=(const PokedThread&) = delete;

  // Once. `main` returns soon once stopping() is true.
  template <class Main>
  void Start(Main&& main) {
    thread_ = std::thread(std::forward<Main>(main));
  }

  // Waits until the thread has ended. False: it wasn't started, or was stopped.
  bool Stop() {
    if (!thread_.joinable()) return false;
    // seq_cst: pairs with the loads in stopping() and SleepUnless() [PT2].
    stop_.store(1, std::memory_order_seq_cst);
    FutexWake(&stop_, 1);
    WakeUp();
    thread_.join();
    return true;
  }

  // There may be something to look after. One load while the thread is awake,
  // a system call to wake it otherwise. Any thread.
  void Poke() {
    if (asleep()) [[unlikely]] {
      WakeUp();
    }
  }

  // Does it sleep without limit?
  bool asleep() const noexcept {
    // seq_cst: pairs with the store in SleepUnless() [PT1].
    return asleep_.load(std::memory_order_seq_cst) != 0;
  }

  // For the thread itself.

  bool stopping() const noexcept {
    // seq_cst: pairs with the store in Stop() [PT2].
    return stop_.load(std::memory_order_seq_cst) != 0;
  }

  // Sleeps until NowNs() is that, or Stop() is called.
  void SleepUntil(std::int64_t deadline_ns) {
    FutexWait(&stop_, 0, deadline_ns);
  }

  // Sleeps until Poke() or Stop() is called, or not at all if `anything` says
  // that there is something. It reads the pokers' writes, seq_cst [PT1].
  template <class Anything>
  void SleepUnless(Anything&& anything) {
    // seq_cst: pairs with the loads in asleep() [PT1] and the exchange in
    // WakeUp() [PT2].
    asleep_.store(1, std::memory_order_seq_cst);
    if (!anything() && !stopping()) {
      FutexWait(&asleep_, 1, kNoDeadline);
    }
    // seq_cst: as the store of 1; no memory is handed over.
    asleep_.store(0, std::memory_order_seq_cst);
  }

 private:
  void WakeUp() {
    // seq_cst: one waker is enough; pairs with SleepUnless() [PT1] [PT2].
    if (asleep_.exchange(0, std::memory_order_seq_cst) != 0) {
      FutexWake(&asleep_, 1);
    }
  }

  std::atomic<std::uint32_t> asleep_{0};
  std::atomic<std::uint32_t> stop_{0};
  std::thread thread_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_POKED_THREAD_H_

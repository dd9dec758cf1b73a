// Times the waits for a lock, by place, while a profile of them is taken
// (contention_profile.h). At the beginning of the part of lock() that may
// block:
//
//   void Gate::LockSlow() {
//     const LockWait wait("Gate");
//     ScopedLock guard(lock_);
//     ...
//   }
//
// Costs a load and two branches while there is no profile. The caller of the
// function that has the LockWait is the innermost frame of the place.

#ifndef FLARE_FIBER_LOCK_WAIT_H_
#define FLARE_FIBER_LOCK_WAIT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "flare/base/backtrace.h"

namespace flare::fiber {

// Waits with the same backtrace for the same kind of lock. Numbers are
// estimates where only some waits were sampled.
struct ContentionPlace {
  const char* what = "";  // "Mutex", "SharedMutex, to read".
  Backtrace where;        // The innermost frame called lock(), or was it.
  std::uint64_t waits = 0;
  std::uint64_t waiting = 0;    // Those of them that hadn't ended by the end.
  std::int64_t wait_ns = 0;     // All together, up to the end.
  std::int64_t longest_ns = 0;  // The longest sampled one.
};

class LockWait {
 public:
  // `what` is a literal.
  [[gnu::always_inline]] explicit LockWait(const char* what) {
    // Begin() looks again, under the lock of the places.
    if (IsRecording()) [[unlikely]] {
      Begin(what);
    }
  }
  [[gnu::always_inline]] ~LockWait() {
    if (weight_ != 0) [[unlikely]] {
      End();
    }
  }
  LockWait(const LockWait&) = delete;
  LockWait& operator=(const LockWait&) = delete;

  // --- For the profile. Any thread or fiber; these don't block ---

  // Places beyond that are lost.
  static constexpr std::size_t kMaxPlaces = 1024;

  // Counts waits that begin from now on. False: they are counted already.
  static bool StartRecording();
  static bool IsRecording() {
    // relaxed: it may end at once.
    return recording_.load(std::memory_order_relaxed);
  }

  struct Recorded {
    std::vector<ContentionPlace> places;
    std::uint64_t samples = 0;
    std::uint64_t lost = 0;  // Waits at further places.
  };
  // Throws std::bad_alloc; it has stopped then, too.
  static Recorded StopRecording();
  static void DropRecording() noexcept;

 private:
  [[gnu::noinline, gnu::cold]] void Begin(const char* what);
  [[gnu::noinline, gnu::cold]] void End();

  static constinit inline std::atomic<bool> recording_{false};

  // The number of waits in this sample; 0: it isn't counted, the rest unset.
  std::uint64_t weight_ = 0;
  std::uint64_t recording_number_;
  std::size_t place_;
  std::int64_t since_ns_;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_LOCK_WAIT_H_

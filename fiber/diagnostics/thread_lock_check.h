// The check that no fiber is suspended while its thread holds a ThreadMutex
// (base/thread_mutex.h): other fibers of that thread would block the thread on
// it, perhaps for good, and the fiber may go on, and unlock, on another thread.
//
// Off, it costs one comparison per suspension, with a field of the worker that
// lies beside those used there anyway.

#ifndef FLARE_FIBER_THREAD_LOCK_CHECK_H_
#define FLARE_FIBER_THREAD_LOCK_CHECK_H_

namespace flare::fiber {

struct WaitReason;  // carrier.h

enum class ThreadLockCheck {
  kOff,
  kReport,  // Logged as an error, once per suspension.
  kAbort,   // ... and the process ends.
};

#ifdef NDEBUG
inline constexpr ThreadLockCheck kDefaultThreadLockCheck =
    ThreadLockCheck::kOff;
#else
inline constexpr ThreadLockCheck kDefaultThreadLockCheck =
    ThreadLockCheck::kAbort;
#endif

// For the whole process, from the next lock on. Before workers start.
void SetThreadLockCheck(ThreadLockCheck check);

// The fiber that runs here is about to be suspended for `reason`, with noted
// mutexes held: reports it with the places of locking and of the suspension,
// and doesn't mention these locks again.
[[gnu::noinline, gnu::cold]] void ReportSuspensionUnderLock(
    const WaitReason& reason);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_THREAD_LOCK_CHECK_H_

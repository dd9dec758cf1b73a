// Lock contracts in signatures, checked by clang's -Wthread-safety in all but
// tests, where these are built for a sanitizer (tools/bazel/flare.bzl); for
// other compilers they say nothing.
//
//   class Account {
//     void Deposit(int n) FLARE_EXCLUDES(lock_);     // Locks it itself.
//     void AddLocked(int n) FLARE_REQUIRES(lock_);   // The caller holds it.
//     Spinlock lock_;
//     int balance_ FLARE_GUARDED_BY(lock_) = 0;
//   };
//
// Lock with flare::ScopedLock: libstdc++'s std::scoped_lock carries no
// annotations, so clang can't see that it locks.

#ifndef FLARE_BASE_THREAD_ANNOTATIONS_H_
#define FLARE_BASE_THREAD_ANNOTATIONS_H_

#include <mutex>

#if defined(__clang__)
#define FLARE_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define FLARE_THREAD_ANNOTATION(x)
#endif

// A class that is a lock; a class that holds one for its scope.
#define FLARE_CAPABILITY(x) FLARE_THREAD_ANNOTATION(capability(x))
#define FLARE_SCOPED_CAPABILITY FLARE_THREAD_ANNOTATION(scoped_lockable)

// Data (the target of a pointer) that is only touched with the lock held.
#define FLARE_GUARDED_BY(x) FLARE_THREAD_ANNOTATION(guarded_by(x))
#define FLARE_PT_GUARDED_BY(x) FLARE_THREAD_ANNOTATION(pt_guarded_by(x))

// Functions whose caller must hold, or must not hold, the lock.
#define FLARE_REQUIRES(...) \
  FLARE_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define FLARE_REQUIRES_SHARED(...) \
  FLARE_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define FLARE_EXCLUDES(...) FLARE_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

// Functions that take or give up the lock.
#define FLARE_ACQUIRE(...) \
  FLARE_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define FLARE_ACQUIRE_SHARED(...) \
  FLARE_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define FLARE_RELEASE(...) \
  FLARE_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define FLARE_RELEASE_SHARED(...) \
  FLARE_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define FLARE_TRY_ACQUIRE(...) \
  FLARE_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define FLARE_TRY_ACQUIRE_SHARED(...) \
  FLARE_THREAD_ANNOTATION(try_acquire_shared_capability(__VA_ARGS__))

#define FLARE_RETURN_CAPABILITY(x) FLARE_THREAD_ANNOTATION(lock_returned(x))

// For the few functions whose locking the analysis can't follow; say why there.
#define FLARE_NO_THREAD_SAFETY_ANALYSIS \
  FLARE_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace flare {

// Holds `lock` from construction to the end of the scope, except between
// unlock() and lock().
template <class Lock>
class FLARE_SCOPED_CAPABILITY ScopedLock {
 public:
  explicit ScopedLock(Lock& lock) FLARE_ACQUIRE(lock) : lock_(&lock) {
    lock.lock();
  }
  // One that is held already.
  ScopedLock(Lock& lock, std::adopt_lock_t) FLARE_REQUIRES(lock)
      : lock_(&lock) {}
  ~ScopedLock() FLARE_RELEASE() {
    if (held_) lock_->unlock();
  }

  ScopedLock(const ScopedLock&) = delete;
  ScopedLock& operator=(const ScopedLock&) = delete;

  void lock() FLARE_ACQUIRE() {
    lock_->lock();
    held_ = true;
  }
  void unlock() FLARE_RELEASE() {
    held_ = false;
    lock_->unlock();
  }
  // Somebody else unlocks it from here on.
  Lock* release() FLARE_RELEASE() {
    held_ = false;
    return lock_;
  }
  Lock* mutex() const { return lock_; }

 private:
  Lock* const lock_;
  bool held_ = true;
};

}  // namespace flare

#endif  // FLARE_BASE_THREAD_ANNOTATIONS_H_

#include "flare/rpc/naming/refresh_gate.h"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare::rpc {

RefreshGate* RefreshGate::Instance() {
  // Never destroyed. Not allocated: the end of a program without memory may be
  // the first to ask.
  alignas(RefreshGate) static std::byte place[sizeof(RefreshGate)];
  static RefreshGate* const gate = ::new (place) RefreshGate();
  return gate;
}

void RefreshGate::Open() {
  // relaxed: the caller's lock puts it before or after Close() [CP2].
  open_.store(true, std::memory_order_relaxed);
}

bool RefreshGate::Enter() {
  ScopedLock guard(mutex_);
  if (!IsOpen()) return false;
  ++running_;
  return true;
}

void RefreshGate::Leave() {
  ScopedLock guard(mutex_);
  if (--running_ == 0) changed_.notify_all();
}

// Unchecked, as Ask(): clang doesn't see that a std::unique_lock locks.
void RefreshGate::Close() FLARE_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock lock(mutex_);
  // relaxed: those that enter, or wait, look at it under mutex_.
  open_.store(false, std::memory_order_relaxed);
  changed_.notify_all();
  changed_.wait(
      lock, [this]() FLARE_NO_THREAD_SAFETY_ANALYSIS { return running_ == 0; });
}

}  // namespace flare::rpc

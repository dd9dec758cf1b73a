// Calls whose methods threw before they had run `done`: they aren't given back
// soon, since the code that such a method has passed `done` on to may still use
// its call (call_completion.cc [CE3]).
#ifndef FLARE_RPC_SERVER_THROWN_CALLS_H_
#define FLARE_RPC_SERVER_THROWN_CALLS_H_

#include <cstddef>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare::rpc {

class ServerCall;

// The latest of them: the last one, and as many as their messages leave room
// for, which are as large as callers like. Thread-safe; nothing blocks.
class ThrownCalls {
 public:
  // Keeps `call`, whose messages take `bytes`. Returns one to be given back, or
  // null; TakeExcess() is due.
  ServerCall* Add(ServerCall* call, std::size_t bytes) FLARE_EXCLUDES(lock_) {
    ScopedLock guard(lock_);
    ServerCall* const oldest = count_ == kMost ? TakeOldest() : nullptr;
    calls_[(first_ + count_++) % kMost] = {call, bytes};
    bytes_ += bytes;
    return oldest;
  }

  // Returns another one to be given back, until it is null.
  ServerCall* TakeExcess() FLARE_EXCLUDES(lock_) {
    ScopedLock guard(lock_);
    return count_ > 1 && bytes_ > kMostBytes ? TakeOldest() : nullptr;
  }

 private:
  static constexpr std::size_t kMost = 64;
  static constexpr std::size_t kMostBytes = 16 << 20;

  struct Kept {
    ServerCall* call;
    std::size_t bytes;
  };

  ServerCall* TakeOldest() FLARE_REQUIRES(lock_) {
    const Kept oldest = calls_[first_];
    first_ = (first_ + 1) % kMost;
    --count_;
    bytes_ -= oldest.bytes;
    return oldest.call;
  }

  Spinlock lock_;
  std::size_t first_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t count_ FLARE_GUARDED_BY(lock_) = 0;
  std::size_t bytes_ FLARE_GUARDED_BY(lock_) = 0;
  Kept calls_[kMost] FLARE_GUARDED_BY(lock_) = {};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_THROWN_CALLS_H_

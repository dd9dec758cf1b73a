// Decides which thread looks for changes of a file: one thread at a time, and
// only if the last look was an interval ago.
//
//   if (const ReloadGate::Turn turn = gate.TryEnter()) {
//     ...                                  // Nobody else is here.
//   }
//
// The holder of a turn sees the writes of those before it. Any thread; nothing
// blocks. Without a turn it costs a reading of the clock.
#ifndef FLARE_BASE_RELOAD_GATE_H_
#define FLARE_BASE_RELOAD_GATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "flare/base/clock.h"

namespace flare {

class ReloadGate {
 public:
  class Turn {
   public:
    ~Turn() {
      // release: pairs with the acquire in TryEnter().
      if (held_ != nullptr) held_->store(false, std::memory_order_release);
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    explicit operator bool() const { return held_ != nullptr; }

   private:
    friend class ReloadGate;
    explicit Turn(std::atomic<bool>* held) : held_(held) {}

    std::atomic<bool>* const held_;
  };

  // The first turn comes an interval from now. 0 or less: none ever.
  explicit ReloadGate(std::chrono::nanoseconds interval)
      : interval_ns_(ToNs(interval)),
        next_ns_(SaturatingAdd(NowNs(), interval_ns_)) {}

  [[nodiscard]] Turn TryEnter() {
    if (interval_ns_ <= 0) return Turn(nullptr);
    const std::int64_t now_ns = NowNs();
    // relaxed: a time that orders nothing.
    if (now_ns < next_ns_.load(std::memory_order_relaxed)) return Turn(nullptr);
    // acquire: pairs with the release of the turn before.
    if (held_.exchange(true, std::memory_order_acquire)) return Turn(nullptr);
    // relaxed: a time that orders nothing.
    next_ns_.store(SaturatingAdd(now_ns, interval_ns_),
                   std::memory_order_relaxed);
    return Turn(&held_);
  }

 private:
  const std::int64_t interval_ns_;
  std::atomic<std::int64_t> next_ns_;
  std::atomic<bool> held_{false};
};

}  // namespace flare

#endif  // FLARE_BASE_RELOAD_GATE_H_

// Looks for changes of files now and then, on behalf of callers that mustn't
// wait for a file system that hangs.
//
//   class Rules : public std::enable_shared_from_this<Rules> {
//     bool Allow(...) {
//       gate_.LookIfDue(this, &Rules::CheckFile);  // Rarely.
//       ...                                        // By the newest rules read.
//     }
//     void CheckFile();                            // May block the thread.
//     io::ReloadGate gate_{std::chrono::seconds(1)};
//   };
//
// Rules:
//  [RG1] held_ is true while a look is under way, and only the caller that set
//        it begins one. The end of the look sets it to false. So looks come one
//        at a time, and each sees the writes of those before it.
//  [RG2] The look holds a reference to the owner, and so to the gate.
#ifndef FLARE_IO_RELOAD_GATE_H_
#define FLARE_IO_RELOAD_GATE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>

#include "flare/base/clock.h"
#include "flare/base/function.h"

namespace flare::io {

class ReloadGate {
 public:
  // The first look comes an interval from now. 0 or less: none ever.
  explicit ReloadGate(std::chrono::nanoseconds interval)
      : interval_ns_(ToNs(interval)),
        next_ns_(SaturatingAdd(NowNs(), interval_ns_)) {}

  // Calls `look` if the last look began an interval ago and has ended. It runs
  // where it blocks no worker; the caller waits for it, at most for as long as
  // a look takes unless the file system hangs (200 ms). Without a runtime it
  // runs right here. Otherwise costs a reading of the clock. Any thread; blocks
  // the fiber (or thread). Without memory the look is left out.
  template <class Owner>
  void LookIfDue(Owner* owner, void (Owner::*look)()) {
    if (!TryEnter()) [[likely]]
      return;
    try {
      Look([self = owner->shared_from_this(), look] {  // [RG2]
        (self.get()->*look)();
      });
    } catch (const std::bad_alloc&) {
      Leave();
    }
  }

 private:
  bool TryEnter() {
    if (interval_ns_ <= 0) return false;
    const std::int64_t now_ns = NowNs();
    // relaxed: a time that orders nothing.
    if (now_ns < next_ns_.load(std::memory_order_relaxed)) return false;
    // acquire: pairs with the release in Leave() [RG1].
    if (held_.exchange(true, std::memory_order_acquire)) return false;
    // relaxed: a time that orders nothing.
    next_ns_.store(SaturatingAdd(now_ns, interval_ns_),
                   std::memory_order_relaxed);
    return true;
  }
  // release: pairs with the acquire in TryEnter() [RG1].
  void Leave() { held_.store(false, std::memory_order_release); }

  // Throws std::bad_alloc before the look begins only.
  void Look(Function<void()> look);

  const std::int64_t interval_ns_;
  std::atomic<std::int64_t> next_ns_;
  std::atomic<bool> held_{false};
};

}  // namespace flare::io

#endif  // FLARE_IO_RELOAD_GATE_H_

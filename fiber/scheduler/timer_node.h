// Timer: the node that a TimerWheel links. fiber/timer.h arms and cancels it.

#ifndef FLARE_FIBER_TIMER_NODE_H_
#define FLARE_FIBER_TIMER_NODE_H_

#include <cstdint>

namespace flare::fiber {

class TimerWheel;

// One deadline. Embed it; it must stay in place while armed. Arming and
// cancelling of one Timer must be serialised by its owner; different timers
// are independent. May be armed again after it fired or was cancelled, also
// from its own callback.
class Timer {
 public:
  // Runs on a worker (or on a thread that helps out), outside all locks. Must
  // be short and must not block: Submit() a task for anything more. It belongs
  // to no fiber: no FiberLocal, no this_fiber::GetId(). May free the timer, or
  // arm it again.
  using Callback = void (*)(Timer* self);

  Timer() = default;
  explicit Timer(Callback callback) : callback_(callback) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Call it while not armed.
  void set_callback(Callback callback) { callback_ = callback; }

  // Called instead if the runtime ends while the timer is armed, by
  // TerminateRuntime() once nothing runs any more. May free the timer. By
  // default nothing is called. Set it while not armed.
  void set_on_runtime_end(Callback callback) { on_runtime_end_ = callback; }

 private:
  friend class TimerWheel;
  friend void ArmTimer(Timer* timer, std::int64_t deadline_ns);
  friend bool CancelTimer(Timer* timer);

  Callback callback_ = nullptr;
  Callback on_runtime_end_ = nullptr;
  Timer* prev_ = nullptr;
  Timer* next_ = nullptr;
  TimerWheel* wheel_ = nullptr;  // The one it was last armed on.
  std::uint64_t tick_ = 0;       // When it is due, in wheel ticks.
  std::uint16_t slot_ = kUnarmed;

  static constexpr std::uint16_t kUnarmed = 0xffff;
};

}  // namespace flare::fiber

#endif  // FLARE_FIBER_TIMER_NODE_H_

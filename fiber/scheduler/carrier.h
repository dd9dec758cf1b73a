// A carrier is a stack with a scheduling loop at its bottom.
//
// There is no master context: a worker runs its loop on some carrier, calls
// tasks from it as plain functions, and only when a task suspends does the
// carrier, with the task's frames on it, become that suspended fiber. The
// worker then goes on with its loop on a spare carrier, or, if the next one in
// its queue is a fiber to resume, straight with that. Resuming from the loop
// switches to the suspended carrier and makes the one just left a spare.
//
// Rules:
//  [C1] A carrier is on exactly one of: a worker (running), a wait (suspended),
//       a run queue (its `resume` task queued), a worker's spare list.
//  [C2] Nobody may switch to a carrier before its registers are saved. The step
//       that makes a carrier reachable (publishing a waiter, unlocking its
//       list, putting it on a spare list) is therefore done by an *after-switch
//       hook*, which runs on the next carrier.
//  [C3] After any switch the thread may be another one. The code that switches
//       hands over its worker; all other code looks it up anew through
//       CurrentWorker(), the only, never inlined, accessor.
//  [C4] errno and the C++ exception globals belong to the fiber: they leave the
//       thread with it and come back with it. Between tasks the thread's
//       exception globals are zero.
//  [C5] Floating-point modes (rounding, traps, denormal numbers) belong to the
//       fiber: the switch saves and loads them. Between tasks they are the
//       defaults, so that no task begins with those that another one has left.

#ifndef FLARE_FIBER_CARRIER_H_
#define FLARE_FIBER_CARRIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "flare/base/cpu.h"
#include "flare/fiber/scheduler/task_list.h"

namespace flare::fiber {

class ExecutionContext;
class SchedulingGroup;
class StackAllocator;
class TaskGroup;
class Worker;
struct FiberLocals;  // fiber_locals.h

// The cause of a fiber's suspension, for readers: fiber lists and debuggers.
struct WaitReason {
  const char* what = "";         // A literal: "Mutex", "sleep".
  const void* object = nullptr;  // Which one.
};

// Lives at the high end of its own stack. Everything in it is touched only by
// the worker that runs it, or, while suspended, by the thread that resumes it;
// handing it over through a run queue orders the accesses.
class Carrier {
 public:
  // The function that a carrier's stack begins with, when it is first switched
  // to. It gets the argument that the switch hands over. Doesn't return.
  using Entry = void (*)(void* carrier, void* handed_over);

  // nullptr when there is no memory for a stack.
  static Carrier* Create(StackAllocator* stacks, Entry enter);
  void Destroy();

  // The task that continues this carrier once it is suspended. To be queued
  // exactly once per suspension: by ResumeFiber(), or where it shall go on.
  Task* resume_task() noexcept { return &resume_; }

  // `task` continues a suspended carrier.
  static bool IsResumption(const Task* task) noexcept {
    return task->run == &Carrier::Resume;
  }

  // The stack: its lowest address, guard included, and where it is from.
  char* low() const noexcept { return static_cast<char*>(low_); }
  StackAllocator* stacks() const noexcept { return stacks_; }
  // Behind the guard; the end, this object included.
  const char* usable_low() const noexcept;
  const char* high() const noexcept;

  // Identity of the task that is running on this carrier; 0: not asked for yet.
  std::uint64_t fiber_id = 0;

  // Fiber-local values of the task that is running; nullptr: none yet.
  FiberLocals* locals = nullptr;

  // The running task inherits these from others. Set and put back by scopes on
  // its stack, hence null again when it ends.
  ExecutionContext* execution_context = nullptr;
  TaskGroup* task_group = nullptr;  // The group whose child it is.

  // Shown to readers of the fiber. `entry` and `name` are of the task that is
  // running, `reason` and `suspended_at_ns` of its latest suspension. The time
  // is the worker's latest look at the clock, up to 100 us or one task old.
  // `suspended` is false while the carrier runs a task or is a spare. `entry`
  // of a worker's carrier is null while the worker looks for work, or sleeps.
  Task::Run entry = nullptr;
  const char* name = nullptr;  // By this_fiber::SetName(); a literal.
  WaitReason reason;
  std::int64_t suspended_at_ns = 0;
  std::atomic<bool> suspended{false};

 private:
  friend class Worker;
  friend class SpareCarriers;
  friend void ResumeFiber(Carrier* carrier);
  friend class BlockingRegion;  // Has a fiber run on another thread.
  friend class BlockingThread;
  friend struct FiberInspector;  // debug_layout.cc
  friend void SuspendFiber(WaitReason reason, void (*hook)(void*),
                           void* argument);

  struct ExceptionGlobals {
    void* caught = nullptr;
    std::uintptr_t uncaught = 0;
  };

  Carrier(StackAllocator* stacks, void* low, Entry enter);

  struct ResumeTask : Task {
    Carrier* carrier = nullptr;
  };

  static void Resume(Task* task);

  // For the code that is about to switch to it: fiber_list.cc [FL2].
  void* TakeStackPointer() noexcept {
    return std::exchange(stack_pointer_, nullptr);
  }

  int errno_ = 0;  // While suspended.
  ResumeTask resume_;
  void* stack_pointer_ = nullptr;     // Null while running.
  SchedulingGroup* group_ = nullptr;  // In which it was suspended last.
  Carrier* next_spare_ = nullptr;
  // Most suspensions touch the two cache lines up to here.
  ExceptionGlobals exception_globals_;
  StackAllocator* const stacks_;
  void* const low_;  // Lowest address of the stack, guard included.
  void* tsan_fiber_ = nullptr;
  void* asan_fake_stack_ = nullptr;
};

// The bytes that a carrier takes of its stack's high end.
inline constexpr std::size_t kCarrierBytes =
    (sizeof(Carrier) + kCacheLine - 1) & ~(kCacheLine - 1);

}  // namespace flare::fiber

#endif  // FLARE_FIBER_CARRIER_H_

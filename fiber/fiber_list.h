// Lists all fibers of the process at run time: the function that each runs, the
// thing that it waits for and since when, and the backtraces of the suspended
// ones. For status pages and for finding out why a program makes no progress.
//
//   fiber::DumpFibers(std::cerr);
//
// Fibers go on while they are looked at, and nothing is locked or counted for
// the purpose: the list is a snapshot in which each fiber is shown as it was at
// some moment during the call. One that starts, ends, blocks or wakes meanwhile
// may be missing or shown with a shortened backtrace; one that has been woken
// is shown as suspended until a worker takes it. Tasks that have not started
// are not fibers yet and not shown.
//
// All functions may be called from any thread or fiber, but not while
// TerminateRuntime() runs. They take about 10 us per fiber plus the text of the
// backtraces (base/backtrace.h), and block the thread for that time.

#ifndef FLARE_FIBER_FIBER_LIST_H_
#define FLARE_FIBER_FIBER_LIST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "flare/base/backtrace.h"

namespace flare::fiber {

enum class FiberState {
  kRunning,    // On a worker, perhaps blocking it.
  kSuspended,  // Waits, or has been woken and waits for a worker.
};

struct FiberSnapshot {
  std::uint64_t id = 0;           // this_fiber::GetId(), 0 if never called.
  const void* carrier = nullptr;  // Tells fibers apart at one time.
  // The carrier as an offset in all memory for stacks: no address.
  std::uintptr_t place = 0;
  std::string name;             // this_fiber::SetName(); may be empty.
  const void* entry = nullptr;  // Function of its task; see EntryName().
  FiberState state = FiberState::kSuspended;
  std::size_t group = 0;           // Running on; suspended: started on.
  int worker = -1;                 // Running on, within the group.
  std::string waits_for;           // "Mutex", "sleep", ...; suspended ones.
  const void* waits_on = nullptr;  // Which one; nullptr if there is none.
  // The holder of the Mutex, or the writer that holds the SharedMutex, that it
  // waits for: "\"a\" id 7 on 0x3ff40", a fiber by name, id and place as far as
  // known, or "thread 4711", as of gettid(). Empty if readers hold it, it is
  // just changing hands, or the holder isn't known.
  std::string held_by;
  std::int64_t suspended_ns = 0;  // How long it has waited, to about 0.1 ms.
  // The call that it works for: "example.Echo.Echo of 127.0.0.1:5, 0.123 s".
  // Empty if there is none, or it is just changing.
  std::string works_for;
  Backtrace backtrace;  // Empty unless suspended.
};

// Names the fiber's task: the function given to Submit(), or the closure given
// to Spawn().
std::string EntryName(const void* entry);

// Calls `visit` for each fiber: running ones first.
void VisitFibers(const std::function<void(const FiberSnapshot&)>& visit);

// About 0.7 KiB each: with very many fibers rather use VisitFibers().
std::vector<FiberSnapshot> ListFibers();

// A text of running fibers one by one, and of suspended ones by the place they
// are suspended at, most frequent first:
//
//   3 fibers: 1 running, 2 suspended
//   running on worker 0/1: "poll" on 0x1ff40
//       entry Poll(flare::fiber::Task*)
//   2 suspended: sleep, 1.204 s to 3.411 s; "a" id 7 on 0x3ff40, "b" on 0x5ff40
//       entry Work(flare::fiber::Task*)
//       #0 0x55d7c0 flare::fiber::SuspendFiber(...) (scheduler/carrier.cc:124)
//       ...
// A fiber that waits for a Mutex is shown with the holder:
// "b" on 0x5ff40 (held by "a" id 7 on 0x3ff40).
// Up to `limits`; a last line says if there is more.
struct DumpLimits {
  static constexpr std::size_t kNoLimit = ~std::size_t{0};
  std::size_t fibers = kNoLimit;  // To look at.
  std::size_t places = kNoLimit;  // To write.
  std::int64_t looking_ns = std::numeric_limits<std::int64_t>::max();
};
void DumpFibers(std::ostream& out, const DumpLimits& limits = {});

}  // namespace flare::fiber

#endif  // FLARE_FIBER_FIBER_LIST_H_

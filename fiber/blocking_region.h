// Runs calls that block the thread and that nobody can turn into something that
// suspends the fiber: reading a file or a pipe, getaddrinfo(), a database
// client's library, waiting for a child process.
//
//   const ssize_t got = fiber::RunBlocking([&] { return read(fd, p, n); });
//
//   {
//     fiber::BlockingRegion region;
//     legacy_query(...);
//   }
//
// Without a region such a call holds a worker, and all tasks that this worker
// has queued until another one takes them over; as many such calls as there are
// workers hold up everything. A region takes the fiber off its worker: it goes
// on, on its own stack, on a thread of a pool meant for that, and the worker
// runs other tasks. At the region's end the fiber is queued in its scheduling
// group again.
//
// A region costs two hand-overs between threads, 10 to 50 us in all. Don't use
// it for calls that take less, nor for computing (a long computation loses
// nothing by being on a worker: others take over the tasks that are queued
// there).
//
// Inside of a region
//  * IsFiberWorker() is false, and all primitives of fiber/ work as on a plain
//    thread: waiting blocks the thread of the pool. Don't wait there for code
//    that needs a region itself: the pool is limited.
//  * FiberLocal, this_fiber::GetId(), SetName(), the execution context, the
//    stop token of the TaskGroup and the current scheduling group are the
//    fiber's. errno and exceptions in flight go with it, in and out. A
//    fiber::Mutex that is held stays held; std::mutex and other locks of
//    threads must not be held on the way in or out.
//  * thread_local variables are another thread's than before and after it, and
//    compilers may keep their addresses: RunBlocking() takes care that they
//    don't within the function given to it.
//  * The stack is the fiber's, so it has --flare_fiber_stack_size bytes.
//
// On plain threads, and inside of another region, it does nothing.
//
// The pool has at most RuntimeOptions::max_blocking_threads threads, started
// when needed and ended when idle for RuntimeOptions::blocking_thread_idle.
// Regions beyond that wait for their turn, first come, first served. If the
// system has no thread for the first one, the fiber goes on on its worker.
// TerminateRuntime() waits for the ends of all regions.

#ifndef FLARE_FIBER_BLOCKING_REGION_H_
#define FLARE_FIBER_BLOCKING_REGION_H_

#include <functional>
#include <type_traits>
#include <utility>

#include "flare/fiber/scheduler/blocking_visit.h"

namespace flare::fiber {

class Worker;

// The scope is the region. Make it only on the stack of the function that uses
// it.
class BlockingRegion {
 public:
  BlockingRegion();
  ~BlockingRegion();

  BlockingRegion(const BlockingRegion&) = delete;
  BlockingRegion& operator=(const BlockingRegion&) = delete;

 private:
  void Enter(Worker* worker);
  void Leave();
  void ArriveOnWorker(Worker* worker);

  BlockingVisit visit_;
};

// Calls `f` in a region; returns its result, or throws its exception.
template <class F>
[[gnu::noinline]] std::invoke_result_t<F> RunBlocking(F&& f) {
  // A call that can't be inlined: nothing thread-local is kept across it.
  struct Call {
    [[gnu::noinline]] static std::invoke_result_t<F> Go(F& f) {
      return std::invoke(std::forward<F>(f));
    }
  };
  const BlockingRegion region;
  return Call::Go(f);
}

}  // namespace flare::fiber

#endif  // FLARE_FIBER_BLOCKING_REGION_H_

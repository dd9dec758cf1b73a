// Two leave a call, in any order: the task that calls the service, and `done`.
// Their progress is in one word:
//
//   kReturned  the service's method has returned, or wasn't called; set from
//              the start with interceptors, behind which the task releases all
//   kEnded     somebody has claimed the end: by `done`, or as the method threw
//   kThrown    ... the latter; set with kEnded, at once, or not at all
//   kReleased  all of the call is released but its memory
//   kWatched   somebody watches its context
//
// A call with interceptors ends when these have returned. For it kEnded means
// that `done` was run, or the method threw, and there are three more:
//
//   kIntercepted  there are interceptors
//   kWaiting      the task waits in done_event_ for kEnded
//   kSealed       the interceptors have returned: the task has claimed the end
//
// [CE1] Only the thread that sets kEnded answers the call and releases it. An
//       exception that leaves the method sets it, too: the call fails if that
//       was first; if `done` was, the exception is only logged. A watcher of
//       the context that finds it set begins nothing; one that comes before it
//       is ended with the call (call_watch.cc [CW1]). With interceptors all
//       this goes for kSealed; `done` only lets their fiber go on.
// [CE2] The second of kReturned and kReleased to be set gives the call back. So
//       call and context last as long as the method.
// [CE3] A call whose method threw before `done` isn't given back soon: the code
//       that the method has passed `done` on to may still use it, and run it,
//       which has no effect then (thrown_calls.h).
#include "flare/rpc/server/call_completion.h"

#include "glog/logging.h"

namespace flare::rpc {

// `before`: the former word. A second time isn't noticed if the next call has
// taken this one's place in memory: then that is ended.
void CallCompletion::NoteDone(std::uint8_t before) {
  if ((before & kEnded) == 0) {
    // Without kWaiting the call may be gone already.
    if ((before & kWaiting) != 0) done_event_->Set();
    return;
  }
  CHECK((before & kThrown) != 0)
      << "done->Run() was called twice, or after its call had ended: a service "
         "runs it exactly once for each call.";
  LOG(ERROR) << "done->Run() was called after the method had thrown, by which "
                "the call had failed.";
}

void CallCompletion::BlockForDone() {
  fiber::Event ended;
  done_event_ = &ended;
  // acq_rel: pairs with ClaimByDone(), both ways.
  if ((word_.fetch_or(kWaiting, std::memory_order_acq_rel) & kEnded) == 0) {
    ended.Wait();
  }
  done_event_ = nullptr;
}

}  // namespace flare::rpc

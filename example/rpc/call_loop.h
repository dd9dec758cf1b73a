// A caller without a stack: the end of one call starts the next. press uses it
// by default, because it costs least.

#ifndef EXAMPLE_RPC_CALL_LOOP_H_
#define EXAMPLE_RPC_CALL_LOOP_H_

#include <google/protobuf/service.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "example/rpc/caller.h"
#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"

namespace example {

// After Start() exactly one thing is under way at any time: the task that
// starts or wakes the loop, its timer, or its call. The thread that completes
// that owns the loop, so it needs no lock; the last owner counts `running` down
// and doesn't touch the loop again.
class CallLoop final : public Caller,
                       private google::protobuf::Closure,
                       private flare::fiber::Task,
                       private flare::fiber::Timer {
 public:
  CallLoop(const Load& load, std::unique_ptr<Call> call, std::size_t number,
           std::size_t group);

  // Begins in its scheduling group.
  void Start() override;

 private:
  void Run() override;  // The call has ended.
  void Resume();        // The task runs.
  void Continue(std::int64_t now_ns);
  void WaitOrSend(std::int64_t now_ns);

  CallSequence calls_;
  CallerCount* const running_;
  const std::size_t group_;
  bool begun_ = false;
};

}  // namespace example

#endif  // EXAMPLE_RPC_CALL_LOOP_H_

// One of the loops that make up the load: owns what one call needs and uses
// it again for each, so that a round allocates nothing.

#ifndef EXAMPLE_RPC_CALL_LOOP_H_
#define EXAMPLE_RPC_CALL_LOOP_H_

#include <google/protobuf/service.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "example/rpc/call_recorder.h"
#include "example/rpc/load_generator.h"
#include "example/rpc/schedule.h"
#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"

namespace example {

// After Start() exactly one thing is under way at any time: the task that
// starts or wakes the loop, its timer, or its call. Whoever completes that
// owns the loop, so it needs no lock; the last owner counts `running` down and
// doesn't touch the loop again.
class CallLoop : private google::protobuf::Closure,
                 private flare::fiber::Task,
                 private flare::fiber::Timer {
 public:
  // All that is pointed to must outlive the loop.
  static std::unique_ptr<CallLoop> Create(
      const LoadOptions& options, std::size_t group, flare::RpcChannel* channel,
      Schedule* schedule, CallRecorder* recorder, LoopCount* running);
  ~CallLoop() override = default;

  // Begins in its scheduling group. Once.
  void Start();

 protected:
  CallLoop(const LoadOptions& options, std::size_t group, Schedule* schedule,
           CallRecorder* recorder, LoopCount* running);

  // Sends the request; `done` runs when the call has ended.
  virtual void Call(flare::RpcClientController* controller,
                    google::protobuf::Closure* done) = 0;
  virtual const std::string& reply_body() const = 0;

 private:
  void Run() override;  // The call has ended.
  void Resume();        // The task runs.
  void Continue(std::int64_t now_ns);
  void WaitOrSend(std::int64_t now_ns);
  void NoteFailure(int status, const std::string& reason, std::int64_t now_ns);
  bool ReplyIsEcho() const;

  const LoadOptions& options_;
  const std::size_t group_;
  Schedule* const schedule_;
  CallRecorder* const recorder_;
  LoopCount* const running_;
  flare::RpcClientController controller_;

  std::int64_t due_ns_ = 0;   // When the call should have been sent ...
  std::int64_t sent_ns_ = 0;  // ... and when it was.
  std::int64_t pause_ns_ = 0;
  std::int64_t pause_until_ns_ = 0;
};

}  // namespace example

#endif  // EXAMPLE_RPC_CALL_LOOP_H_

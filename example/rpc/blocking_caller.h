// A caller that blocks until its call has ended, as most programs do: a fiber,
// or a plain thread.

#ifndef EXAMPLE_RPC_BLOCKING_CALLER_H_
#define EXAMPLE_RPC_BLOCKING_CALLER_H_

#include <cstddef>
#include <memory>
#include <thread>

#include "example/rpc/caller.h"
#include "flare/fiber/fiber.h"

namespace example {

class BlockingCaller final : public Caller {
 public:
  // options.caller_kind says whether it is a fiber or a thread.
  BlockingCaller(const Load& load, std::unique_ptr<Call> call,
                 std::size_t number, std::size_t group);
  ~BlockingCaller() override;

  void Start() override;

 private:
  void Run();

  CallSequence calls_;
  CallerCount* const running_;
  const CallerKind kind_;
  const std::size_t number_;
  const std::size_t callers_;  // All of the load.
  const std::size_t group_;
  flare::Fiber fiber_;
  std::thread thread_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_BLOCKING_CALLER_H_

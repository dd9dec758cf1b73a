// The callers of a load. There are three kinds: loops (call_loop.h), and fibers
// and plain threads that block (blocking_caller.h).

#ifndef EXAMPLE_RPC_CALLER_H_
#define EXAMPLE_RPC_CALLER_H_

#include <cstddef>
#include <memory>

#include "example/rpc/call_sequence.h"

namespace example {

class Caller {
 public:
  // Don't destroy it between Start() and the caller's end
  // (CallerCount::OneEnded()).
  virtual ~Caller() = default;
  // Begins to call. Once; doesn't block.
  virtual void Start() = 0;
};

// Caller `number` of a load, of the kind that its options say, in scheduling
// group `group`. The objects that `load` and `call` refer to must outlive it.
std::unique_ptr<Caller> NewCaller(const Load& load, std::unique_ptr<Call> call,
                                  std::size_t number, std::size_t group);

}  // namespace example

#endif  // EXAMPLE_RPC_CALLER_H_

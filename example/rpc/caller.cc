#include "example/rpc/caller.h"

#include <utility>

#include "example/rpc/blocking_caller.h"
#include "example/rpc/call_loop.h"

namespace example {

std::unique_ptr<Caller> NewCaller(const Load& load, std::unique_ptr<Call> call,
                                  std::size_t number, std::size_t group) {
  if (load.options.caller_kind == CallerKind::kLoop) {
    return std::make_unique<CallLoop>(load, std::move(call), number, group);
  }
  return std::make_unique<BlockingCaller>(load, std::move(call), number, group);
}

}  // namespace example

// Nor for the contexts of requests, in a program that has them.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include "flare/fiber/execution_context.h"
#include "flare/rpc/testing/allocation_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

TEST_F(AllocationTest, ContextsAllocateNothing) {
  static fiber::ExecutionLocal<int> number;
  service().on_call = [](TestCall call) {
    *number = call.request->number();
    FlexibleService::Echo(call);
  };
  StartServer({"flare"});
  RawClient client(endpoint());
  AllocationsOf(&client, 1000);
  EXPECT_LE(AllocationsOf(&client, kRounds), kFew);
}

}  // namespace
}  // namespace flare::rpc::testing

#endif  // sanitizers bring their own operators

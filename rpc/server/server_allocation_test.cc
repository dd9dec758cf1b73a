// A server in steady state calls the general allocator for nothing except the
// fields of messages; short strings need none.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <memory>

#include "flare/rpc/interceptor.h"
#include "flare/rpc/testing/allocation_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

TEST_F(AllocationTest, FlareCallsAllocateNothing) {
  StartServer({"flare"});
  RawClient client(endpoint());
  AllocationsOf(&client, 1000);
  EXPECT_LE(AllocationsOf(&client, kRounds), kFew);
}

TEST_F(AllocationTest, InterceptedCallsAllocateNothing) {
  struct Interceptor : ServerInterceptor {
    void Intercept(InterceptedCall&, ServerNext& next) override { next.Run(); }
  };
  server().AddInterceptor(std::make_shared<Interceptor>());
  StartServer({"flare"});
  RawClient client(endpoint());
  AllocationsOf(&client, 1000);
  EXPECT_LE(AllocationsOf(&client, kRounds), kFew);
}

TEST_F(AllocationTest, BaiduStdCallsAllocateNothing) {
  StartServer({"baidu-std"});
  RawClient client(endpoint(), "baidu-std");
  AllocationsOf(&client, 1000);
  EXPECT_LE(AllocationsOf(&client, kRounds), kFew);
}

TEST_F(AllocationTest, TrpcCallsAllocateNothing) {
  StartServer({"trpc"});
  RawClient client(endpoint(), "trpc");
  AllocationsOf(&client, 1000);
  EXPECT_LE(AllocationsOf(&client, kRounds), kFew);
}

TEST_F(AllocationTest, HttpCallsAllocateNothing) {
  StartServer({"http+pb"});
  RawClient client(endpoint(), "http+pb");
  AllocationsOf(&client, 1000);
  EXPECT_LE(AllocationsOf(&client, kRounds), kFew);
}

TEST_F(AllocationTest, BoltCallsAllocateNothing) {
  StartServer({"bolt"});
  RawClient client(endpoint(), "bolt");
  AllocationsOf(&client, 1000);
  EXPECT_LE(AllocationsOf(&client, kRounds), kFew);
}

}  // namespace
}  // namespace flare::rpc::testing

#endif  // sanitizers bring their own operators

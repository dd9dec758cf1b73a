// A server in steady state calls the general allocator for nothing but what is
// in the fields of messages; short strings need none.
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "flare/base/sanitizer.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

namespace {

// Of this process's workers, while true; the test's own thread doesn't count.
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void* Allocate(std::size_t size) {
  if (counting && flare::fiber::IsFiberWorker()) ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace flare::rpc::testing {
namespace {

class AllocationTest : public ServerTest {
 protected:
  // Of `rounds` batches of calls, on the server's side.
  int AllocationsOf(RawClient* client, int rounds) {
    std::string batch;
    for (int i = 1; i <= kBatch; ++i) {
      batch += client->Encode(i, kCall, MakeRequest("ten bytes!", i), 60'000);
    }
    allocations = 0;
    counting = true;
    for (int round = 0; round != rounds; ++round) {
      client->Send(batch);
      for (int i = 0; i != kBatch; ++i) {
        const auto reply = client->ReadReply();
        EXPECT_TRUE(reply && reply->status == STATUS_SUCCESS);
      }
    }
    counting = false;
    return allocations;
  }

  static constexpr int kBatch = 20;
  static constexpr int kRounds = 500;
  // Now and then a pool of one worker runs dry while that of another fills, the
  // more often the less evenly the machine runs them. One allocation for each
  // batch, let alone for each call, would be many more.
  static constexpr int kFew = kRounds / 5;
};

// All calls of this program have contexts; these use theirs, too.
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

TEST_F(AllocationTest, FlareCallsAllocateNothing) {
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

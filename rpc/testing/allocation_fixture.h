// For tests that a server calls the general allocator for nothing. Replaces
// operator new, so it is for one file of a program that has no other tests.

#ifndef FLARE_RPC_TESTING_ALLOCATION_FIXTURE_H_
#define FLARE_RPC_TESTING_ALLOCATION_FIXTURE_H_

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "flare/fiber/runtime.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

// While true, allocations of this process's workers are counted; the test's own
// thread isn't.
inline std::atomic<bool> counting{false};
inline std::atomic<int> allocations{0};

inline void* CountedAllocate(std::size_t size) {
  if (counting && fiber::IsFiberWorker()) ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace flare::rpc::testing

void* operator new(std::size_t size) {
  return flare::rpc::testing::CountedAllocate(size);
}
void* operator new[](std::size_t size) {
  return flare::rpc::testing::CountedAllocate(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace flare::rpc::testing {

class AllocationTest : public ServerTest {
 protected:
  // The allocations of `rounds` batches of calls, on the server's side.
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

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_ALLOCATION_FIXTURE_H_

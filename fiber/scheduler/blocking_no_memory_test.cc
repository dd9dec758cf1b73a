// A region whose first thread finds no memory goes on on its worker.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <atomic>
#include <cstddef>
#include <new>

#include "flare/base/testing/replaced_new.h"
#include "flare/fiber/async.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/future.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace {

// Whether this thread's next allocation fails.
thread_local bool fails = false;
std::atomic<int> failures{0};

}  // namespace

void flare::testing::OnAllocation(std::size_t) {
  if (!fails) return;
  fails = false;
  ++failures;
  throw std::bad_alloc();
}

namespace flare::fiber {
namespace {

TEST(BlockingNoMemory, ARegionGoesOnOnItsWorker) {
  RuntimeOptions options;
  options.concurrency = 1;
  ASSERT_TRUE(StartRuntime(options).ok());
  const auto block = [] {
    return RunBlocking([] { return !IsFiberWorker(); });
  };
  EXPECT_FALSE(BlockingGet(Async([&] {
    fails = true;  // The pool's first thread, then.
    return block();
  })));
  EXPECT_EQ(failures, 1);
  EXPECT_TRUE(BlockingGet(Async(block)));
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber

#endif

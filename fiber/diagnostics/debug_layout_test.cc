#include "flare/fiber/diagnostics/debug_layout.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/worker.h"
#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/stack.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

std::vector<StackRegion> RegionsOf(const void* owner) {
  std::vector<StackRegion> regions = ListStackRegions();
  std::erase_if(regions, [&](const auto& r) { return r.owner != owner; });
  return regions;
}

TEST(StackRegions, AreListedUntilTheirOwnerRemovesThem) {
  const char a = 0;
  const char b = 0;
  StackRegion* const first =
      AddStackRegion(&a, reinterpret_cast<void*>(0x1000), 4096, 3);
  StackRegion* const other =
      AddStackRegion(&b, reinterpret_cast<void*>(0x10000), 8192, 5);
  StackRegion* const last =
      AddStackRegion(&a, reinterpret_cast<void*>(0x20000), 4096, 7);
  EXPECT_EQ(RegionsOf(&a).size(), 2U);
  ASSERT_EQ(RegionsOf(&b).size(), 1U);
  EXPECT_EQ(RegionsOf(&b)[0].low, 0x10000U);
  EXPECT_EQ(RegionsOf(&b)[0].stack_size, 8192U);
  EXPECT_EQ(RegionsOf(&b)[0].stacks, 5U);
  // From the middle of the list, and from both ends.
  RemoveStackRegion(other);
  EXPECT_TRUE(RegionsOf(&b).empty());
  EXPECT_EQ(RegionsOf(&a).size(), 2U);
  RemoveStackRegion(first);
  ASSERT_EQ(RegionsOf(&a).size(), 1U);
  EXPECT_EQ(RegionsOf(&a)[0].low, 0x20000U);
  RemoveStackRegion(last);
  EXPECT_TRUE(RegionsOf(&a).empty());
}

TEST(StackRegions, HoldAllStacksOfAnAllocator) {
  StackAllocator::Options options;
  options.stack_size = 65536;
  auto stacks = std::make_unique<StackAllocator>(options);
  EXPECT_TRUE(ListStackRegions().empty());
  std::vector<void*> taken;
  for (int i = 0; i < 600; ++i) taken.push_back(stacks->Allocate());
  const std::vector<StackRegion> regions = RegionsOf(stacks.get());
  for (void* stack : taken) {
    const auto low = reinterpret_cast<std::uintptr_t>(stack);
    EXPECT_EQ(std::count_if(regions.begin(), regions.end(),
                            [&](const StackRegion& r) {
                              return low >= r.low &&
                                     (low - r.low) % r.stack_size == 0 &&
                                     (low - r.low) / r.stack_size < r.stacks;
                            }),
              1);
    stacks->Free(stack);
  }
  stacks.reset();
  EXPECT_TRUE(ListStackRegions().empty());
}

TEST(StackRegions, MayBeListedWhileTheyComeAndGo) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      char owner = 0;
      // relaxed: only to end.
      while (!stop.load(std::memory_order_relaxed)) {
        std::vector<StackRegion*> added;
        for (std::uintptr_t low : {1, 2, 3}) {
          added.push_back(
              AddStackRegion(&owner, reinterpret_cast<void*>(low), 1, 1));
        }
        EXPECT_EQ(RegionsOf(&owner).size(), 3U);
        for (StackRegion* const region : added) RemoveStackRegion(region);
      }
    });
  }
  for (int i = 0; i < 5000; ++i) {
    for (const StackRegion& region : ListStackRegions()) {
      EXPECT_NE(region.owner, nullptr);
    }
  }
  stop.store(true, std::memory_order_relaxed);  // relaxed: only to end.
  for (std::thread& thread : threads) thread.join();
}

TEST(DebugLayout, SaysHowCarriersLie) {
  EXPECT_EQ(flare_debug_layout.version, 1U);
  EXPECT_EQ(flare_debug_layout.carrier_bytes, kCarrierBytes);
  for (const std::uint64_t offset :
       {flare_debug_layout.resume_run, flare_debug_layout.resume_carrier,
        flare_debug_layout.stack_pointer, flare_debug_layout.suspended_at_ns,
        flare_debug_layout.fiber_id, flare_debug_layout.entry,
        flare_debug_layout.name, flare_debug_layout.reason_what,
        flare_debug_layout.reason_object}) {
    EXPECT_EQ(offset % 8, 0U);
    EXPECT_LE(offset + 8, sizeof(Carrier));
  }
  EXPECT_LT(flare_debug_layout.suspended, sizeof(Carrier));
}

class ReadCarrierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RuntimeOptions options;
    options.concurrency = 1;
    ASSERT_TRUE(StartRuntime(options).ok());
  }
  void TearDown() override { TerminateRuntime(); }
};

TEST_F(ReadCarrierTest, ReadsWhatASuspendedFiberTells) {
  Event event;
  std::atomic<std::uintptr_t> place{0};
  Fiber fiber([&] {
    this_fiber::SetName("told");
    this_fiber::GetId();
    place.store(reinterpret_cast<std::uintptr_t>(CurrentCarrier()));
    event.Wait();
  });
  CarrierView view;
  while (place.load() == 0 || !ReadCarrier(place.load(), &view) ||
         !view.suspended) {
    std::this_thread::yield();
  }
  // It says so just before it leaves its stack: when the only worker has run
  // another one, it has.
  Fiber([] {}).join();
  ASSERT_TRUE(ReadCarrier(place.load(), &view));
  EXPECT_EQ(ReadName(view.name), "told");
  EXPECT_NE(view.fiber_id, 0U);
  EXPECT_NE(view.entry, nullptr);
  EXPECT_EQ(ReadName(view.reason.what), "Event");
  EXPECT_EQ(view.reason.object, &event);
  EXPECT_GT(view.suspended_at_ns, 0);
  EXPECT_LT(view.stack_pointer, place.load());
  CarrierView again;
  ASSERT_TRUE(ReadCarrier(place.load(), &again));
  EXPECT_EQ(view, again);
  EXPECT_FALSE(ReadCarrier(place.load() + 8, &again));
  event.Set();
  fiber.join();
}

TEST_F(ReadCarrierTest, TakesNothingElseForACarrier) {
  std::mt19937_64 random(20262);
  alignas(64) std::uint64_t noise[sizeof(Carrier) / 8 + 8];
  CarrierView view;
  for (int round = 0; round < 2000; ++round) {
    for (std::uint64_t& word : noise) word = random();
    // Even with the right function, it isn't at its own address.
    std::memcpy(reinterpret_cast<char*>(noise) + flare_debug_layout.resume_run,
                &flare_debug_layout.resume_function, 8);
    EXPECT_FALSE(ReadCarrier(reinterpret_cast<std::uintptr_t>(noise), &view));
  }
  EXPECT_FALSE(ReadCarrier(0, &view));
  EXPECT_FALSE(ReadCarrier(~std::uintptr_t{0} - 64, &view));
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const locked =
      mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(locked, MAP_FAILED);
  EXPECT_FALSE(ReadCarrier(reinterpret_cast<std::uintptr_t>(locked), &view));
  EXPECT_EQ(ReadName(static_cast<const char*>(locked)), "");
  munmap(locked, page);
}

TEST(ReadName, StopsAtTheEndOfWhatIsThere) {
  EXPECT_EQ(ReadName(nullptr), "");
  EXPECT_EQ(ReadName(""), "");
  EXPECT_EQ(ReadName("a name"), "a name");
  EXPECT_EQ(ReadName(std::string(200, 'x').c_str()), std::string(63, 'x'));
  EXPECT_EQ(ReadName(reinterpret_cast<const char*>(16)), "");
  // Right before memory that can't be read.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const pages =
      static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
  std::memcpy(pages + page - 4, "end", 4);
  EXPECT_EQ(ReadName(pages + page - 4), "end");
  pages[page - 1] = 'X';
  EXPECT_EQ(ReadName(pages + page - 4), "endX");
  munmap(pages, 2 * page);
}

TEST(ReadContext, FindsWhereANewContextStarts) {
  alignas(64) char stack[1024] = {};
  void* const top = stack + sizeof(stack);
  const auto* const frame = static_cast<const char*>(MakeContext(
      top, [](void*, void*) {}, nullptr));
  char copy[kContextBytes];
  std::memcpy(copy, frame, sizeof(copy));
  const SavedContext context = ReadContext(copy);
  EXPECT_EQ(context.return_address,
            reinterpret_cast<std::uintptr_t>(&flare_context_entry));
  EXPECT_EQ(context.frame_pointer, 0U);
}

}  // namespace
}  // namespace flare::fiber

#include "flare/fiber/stack/stack.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/stack/context.h"
#include "flare/fiber/stack/sanitizer.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

TEST(StackTest, HandsOutDistinctWritableStacks) {
  StackAllocator::Options options;
  options.stack_size = 65536;
  StackAllocator stacks(options);
  std::set<void*> all;
  for (int i = 0; i < 600; ++i) {  // More than one region.
    char* const low = static_cast<char*>(stacks.Allocate());
    ASSERT_NE(low, nullptr);
    EXPECT_TRUE(all.insert(low).second);
    std::memset(low + stacks.stack_size() - 4096, 0xab, 4096);
    low[stacks.guard_size()] = 1;  // The lowest byte that is no guard.
  }
  EXPECT_EQ(stacks.allocated(), 600U);
  for (void* low : all) stacks.Free(low);
  EXPECT_EQ(stacks.allocated(), 0U);
}

TEST(StackTest, ReusesTheLatestFirst) {
  StackAllocator stacks({});
  void* const a = stacks.Allocate();
  void* const b = stacks.Allocate();
  stacks.Free(a);
  stacks.Free(b);
  EXPECT_EQ(stacks.Allocate(), b);
  EXPECT_EQ(stacks.Allocate(), a);
  stacks.Free(a);
  stacks.Free(b);
}

// Pages of the stack that hold memory.
std::size_t ResidentPages(const StackAllocator& stacks, void* low) {
  const auto page = static_cast<std::size_t>(getpagesize());
  char* const from = static_cast<char*>(low) + stacks.guard_size();
  const std::size_t bytes = stacks.stack_size() - stacks.guard_size();
  std::vector<unsigned char> resident(bytes / page);
  EXPECT_EQ(mincore(from, bytes, resident.data()), 0);
  return static_cast<std::size_t>(
      std::count_if(resident.begin(), resident.end(),
                    [](unsigned char each) { return (each & 1) != 0; }));
}

std::vector<char*> TakeAndTouch(StackAllocator* stacks, std::size_t count) {
  std::vector<char*> taken;
  for (std::size_t i = 0; i < count; ++i) {
    taken.push_back(static_cast<char*>(stacks->Allocate()));
    taken.back()[stacks->stack_size() - 1] = 1;
    taken.back()[stacks->guard_size()] = 1;
  }
  return taken;
}

TEST(StackTest, GivesMemoryBackAboveTheHighWaterMark) {
  StackAllocator::Options options;
  options.high_water = 1;
  StackAllocator stacks(options);
  const std::vector<char*> taken = TakeAndTouch(&stacks, 2);
  stacks.Free(taken[0]);
  stacks.Free(taken[1]);  // One too many: the first one's pages go.
  EXPECT_EQ(stacks.warm(), 1U);
  EXPECT_EQ(ResidentPages(stacks, taken[0]), 0U);
  EXPECT_EQ(ResidentPages(stacks, taken[1]), 2U);
  EXPECT_EQ(stacks.Allocate(), taken[1]);  // Those with memory first.
  EXPECT_EQ(stacks.Allocate(), taken[0]);
  stacks.Free(taken[0]);
  stacks.Free(taken[1]);
}

TEST(StackTest, ABurstKeepsNoMoreThanTheHighWaterMark) {
  StackAllocator::Options options;
  options.stack_size = 65536;
  options.high_water = 100;
  StackAllocator stacks(options);
  const std::vector<char*> taken = TakeAndTouch(&stacks, 1000);
  std::size_t pages = 0;
  for (char* low : taken) pages += ResidentPages(stacks, low);
  EXPECT_EQ(pages, 2000U);
  for (char* low : taken) stacks.Free(low);
  pages = 0;
  for (char* low : taken) pages += ResidentPages(stacks, low);
  EXPECT_LE(pages, 200U);
  EXPECT_EQ(pages, 2 * stacks.warm());
}

TEST(StackTest, TrimTakesTheMemoryOfWhatWasNotNeeded) {
  StackAllocator stacks({});
  void* const other = stacks.Allocate();  // So that the region stays.
  const std::vector<char*> taken = TakeAndTouch(&stacks, 80);
  for (char* low : taken) stacks.Free(low);
  stacks.Trim();  // They have been free for no time at all.
  EXPECT_EQ(stacks.warm(), 80U);
  // 30 are needed at some moment; the other 50 are the ones freed first.
  std::vector<void*> used;
  for (int i = 0; i < 30; ++i) used.push_back(stacks.Allocate());
  for (void* low : used) stacks.Free(low);
  stacks.Trim();
  EXPECT_EQ(stacks.warm(), 30U);
  for (std::size_t i = 0; i < 80; ++i) {
    EXPECT_EQ(ResidentPages(stacks, taken[i]), i < 50 ? 0U : 2U) << i;
  }
  stacks.Trim();
  EXPECT_EQ(stacks.warm(), 0U);
  for (char* low : taken) EXPECT_EQ(ResidentPages(stacks, low), 0U);
  // And all can be used again, guards in place.
  const std::vector<char*> again = TakeAndTouch(&stacks, 80);
  EXPECT_EQ(std::set<char*>(again.begin(), again.end()),
            std::set<char*>(taken.begin(), taken.end()));
  for (char* low : again) stacks.Free(low);
  stacks.Free(other);
}

long PageTableKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmPTE:")) return std::stol(line.substr(6));
  }
  return -1;
}

// The tables of 1,000 stacks of 32 pages take 250 KiB.
TEST(StackTest, TrimReturnsThePageTablesOfABurst) {
  for (const bool light : {true, false}) {
    StackAllocator::Options options;
    options.light_guards = light;
    StackAllocator stacks(options);
    void* const other = stacks.Allocate();
    for (int round = 0; round < 3; ++round) {
      const std::vector<char*> taken = TakeAndTouch(&stacks, 1000);
      EXPECT_EQ(stacks.regions(), 4U);
      const long most = PageTableKiB();
      for (char* low : taken) stacks.Free(low);
      stacks.Trim();
      EXPECT_EQ(stacks.regions(), 4U);  // They have been free for no time.
      stacks.Trim();
      EXPECT_EQ(stacks.regions(), 1U);
      EXPECT_LE(PageTableKiB(), most - 180);
    }
    stacks.Free(other);
    stacks.Trim();
    stacks.Trim();
    EXPECT_EQ(stacks.regions(), 0U);
    void* const again = stacks.Allocate();
    EXPECT_NE(again, nullptr);
    stacks.Free(again);
  }
}

// In an order in which each region is used until the end.
TEST(StackTest, RegionsStayUntilTheirLastStackIsFree) {
  StackAllocator::Options options;
  options.stack_size = 65536;
  options.high_water = 10;
  StackAllocator stacks(options);
  constexpr std::size_t kRegions = 5;
  std::vector<char*> taken =
      TakeAndTouch(&stacks, kRegions * StackAllocator::kStacksPerRegion);
  std::minstd_rand random(1);
  std::shuffle(taken.begin(), taken.end(), random);
  while (taken.size() > 700) {
    stacks.Free(taken.back());
    taken.pop_back();
    if (random() % 50 == 0) stacks.Trim();
  }
  EXPECT_EQ(stacks.regions(), kRegions);
  for (char* low : taken) {
    EXPECT_EQ(low[stacks.guard_size()], 1);
    stacks.Free(low);
  }
  stacks.Trim();
  stacks.Trim();
  EXPECT_EQ(stacks.regions(), 0U);
}

TEST(StackDeathTest, TrimmedStacksKeepTheirGuards) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const bool light : {true, false}) {
    StackAllocator::Options options;
    options.light_guards = light;
    StackAllocator stacks(options);
    // The region stays, or is unmapped and mapped anew.
    for (const bool stays : {true, false}) {
      void* const other = stays ? stacks.Allocate() : nullptr;
      const std::vector<char*> taken = TakeAndTouch(&stacks, 8);
      for (char* low : taken) stacks.Free(low);
      stacks.Trim();
      stacks.Trim();
      EXPECT_EQ(stacks.regions(), stays ? 1U : 0U);
      char* const low = static_cast<char*>(stacks.Allocate());
      EXPECT_DEATH(static_cast<volatile char*>(low)[100] = 1, "");
      low[stacks.guard_size()] = 1;
      stacks.Free(low);
      if (stays) stacks.Free(other);
    }
  }
}

TEST(StackTest, TheLimitIsOnWhatIsHandedOut) {
  StackAllocator::Options options;
  options.limit = 3;
  StackAllocator stacks(options);
  std::vector<char*> taken = TakeAndTouch(&stacks, 3);
  EXPECT_EQ(stacks.Allocate(), nullptr);
  EXPECT_EQ(stacks.Allocate(), nullptr);
  EXPECT_EQ(stacks.allocated(), 3U);
  stacks.Free(taken[1]);
  EXPECT_EQ(stacks.Allocate(), taken[1]);
  EXPECT_EQ(stacks.Allocate(), nullptr);
  for (char* low : taken) stacks.Free(low);
}

// Gathers warnings while it exists.
class WarningLog : public google::LogSink {
 public:
  WarningLog() { google::AddLogSink(this); }
  ~WarningLog() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity severity, const char*, const char*, int,
            const struct ::tm*, const char* message,
            std::size_t size) override {
    if (severity == google::GLOG_WARNING) text_.append(message, size);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A kernel that has light guards is not blamed for their absence.
TEST(StackTest, SaysThatMemoryIsLocked) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
  GTEST_SKIP() << "sanitizers leave mlockall() out";
#endif
  StackAllocator::Options options;
  options.stack_size = 16384;
  {
    const WarningLog log;
    StackAllocator stacks(options);
    stacks.Free(stacks.Allocate());
    if (!log.text().empty()) GTEST_SKIP() << "no light guards: " << log.text();
  }
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "may not lock memory";
  const WarningLog log;
  StackAllocator stacks(options);
  void* const low = stacks.Allocate();
  munlockall();
  if (low == nullptr) GTEST_SKIP() << "may not lock as much memory";
  EXPECT_NE(log.text().find("memory is locked (mlockall)"), std::string::npos)
      << log.text();
  EXPECT_EQ(log.text().find("this kernel"), std::string::npos) << log.text();
  stacks.Free(low);
}

// As many as there can be without light guards, and mappings are left for
// others. Then some are free again, for another allocator.
TEST(StackTest, MappedGuardsEndBeforeTheMappings) {
  const std::size_t limit = MappedGuardLimit();
  ASSERT_GT(limit, 100U);
  if (limit > 100'000) GTEST_SKIP() << "vm.max_map_count is large here";
  StackAllocator::Options options;
  options.stack_size = 16384;
  options.light_guards = false;
  {
    StackAllocator stacks(options);
    std::vector<void*> taken;
    while (void* const low = stacks.Allocate()) taken.push_back(low);
    EXPECT_EQ(taken.size(), limit);
    for (int i = 0; i < 1000; ++i) {
      void* const other = mmap(nullptr, 8192, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(other, MAP_FAILED);
      ASSERT_EQ(mprotect(other, 4096, PROT_NONE), 0);
      munmap(other, 8192);
    }
    stacks.Free(taken.back());
    EXPECT_EQ(stacks.Allocate(), taken.back());
    for (void* low : taken) stacks.Free(low);
    // Unmapped regions give their mappings back.
    stacks.Trim();
    stacks.Trim();
    EXPECT_EQ(stacks.regions(), 0U);
    StackAllocator others(options);
    for (void*& low : taken) low = others.Allocate();
    EXPECT_EQ(std::count(taken.begin(), taken.end(), nullptr), 0);
    for (void* low : taken) others.Free(low);
  }
  StackAllocator again(options);
  void* const low = again.Allocate();
  EXPECT_NE(low, nullptr);
  again.Free(low);
}

// All invariants together, from several threads: nothing is handed out twice,
// the limit holds, and nothing is lost.
TEST(StackTest, ThreadsAllocateFreeAndTrim) {
  StackAllocator::Options options;
  options.stack_size = 32768;
  options.high_water = 20;
  options.limit = 150;
  StackAllocator stacks(options);
  constexpr int kThreads = 4;
  std::atomic<int> refused{0};
  std::vector<std::thread> threads;
  for (int t = 1; t <= kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t));
      std::vector<char*> mine;
      const auto free_one = [&] {
        EXPECT_EQ(mine.back()[stacks.stack_size() - 1], t);
        stacks.Free(mine.back());
        mine.pop_back();
      };
      for (int i = 0; i < 5000; ++i) {
        const auto choice = random() % 100;
        if (choice == 0) {
          stacks.Trim();
        } else if (choice < 55) {
          auto* const low = static_cast<char*>(stacks.Allocate());
          if (low == nullptr) {
            refused.fetch_add(1);
            while (mine.size() > 10) free_one();
          } else {
            low[stacks.stack_size() - 1] = static_cast<char>(t);
            mine.push_back(low);
          }
        } else if (!mine.empty()) {
          free_one();
        }
      }
      while (!mine.empty()) free_one();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(stacks.allocated(), 0U);
  EXPECT_GT(refused.load(), 0);
  std::set<void*> all;
  while (void* const low = stacks.Allocate()) {
    EXPECT_TRUE(all.insert(low).second);
  }
  EXPECT_EQ(all.size(), 150U);
  for (void* low : all) stacks.Free(low);
}

TEST(StackDeathTest, TheGuardFaults) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  StackAllocator stacks({});
  char* const low = static_cast<char*>(stacks.Allocate());
  EXPECT_EQ(stacks.guard_size(), static_cast<std::size_t>(getpagesize()));
  EXPECT_DEATH(*static_cast<volatile char*>(low) = 1, "");
  EXPECT_DEATH(static_cast<volatile char*>(low)[stacks.guard_size() - 1] = 1,
               "");
  stacks.Free(low);
}

TEST(StackDeathTest, RefusesOddSizes) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  StackAllocator::Options options;
  options.stack_size = 70000;
  EXPECT_DEATH(StackAllocator{options}, "multiple of the page size");
  options.stack_size = 4096;
  EXPECT_DEATH(StackAllocator{options}, "too small");
}

TEST(StackTest, WithoutGuard) {
  StackAllocator::Options options;
  options.guard = false;
  StackAllocator stacks(options);
  char* const low = static_cast<char*>(stacks.Allocate());
  low[0] = 1;
  EXPECT_EQ(stacks.guard_size(), 0U);
  stacks.Free(low);
}

// The bare switch: values go both ways, callee-saved state survives.
struct PingPong {
  void* main_sp = nullptr;
  void* other_sp = nullptr;
  std::vector<std::uintptr_t> seen;
};

void Other(void* argument, void* value) {
  auto* const shared = static_cast<PingPong*>(argument);
  double kept = 0.5;
  for (std::uintptr_t i = 0;; ++i) {
    shared->seen.push_back(reinterpret_cast<std::uintptr_t>(value));
    kept *= 2;
    const double before = kept;
    value = flare_switch_context(&shared->other_sp, shared->main_sp,
                                 reinterpret_cast<void*>(i + 100));
    if (kept != before) return;  // Never returns while all is well.
  }
}

TEST(ContextTest, SwitchesBackAndForth) {
  StackAllocator stacks({});
  char* const low = static_cast<char*>(stacks.Allocate());
  PingPong shared;
  shared.other_sp = MakeContext(low + stacks.stack_size(), &Other, &shared);
  for (std::uintptr_t i = 0; i < 5; ++i) {
    void* const back = flare_switch_context(&shared.main_sp, shared.other_sp,
                                            reinterpret_cast<void*>(i));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(back), i + 100);
  }
  EXPECT_EQ(shared.seen, (std::vector<std::uintptr_t>{0, 1, 2, 3, 4}));
  stacks.Free(low);
}

// A new context computes with the default modes, whatever its maker does.
void RoundingOf(void* argument, void*) {
  auto* const shared = static_cast<PingPong*>(argument);
  shared->seen.push_back(static_cast<std::uintptr_t>(std::fegetround()));
  flare_switch_context(&shared->other_sp, shared->main_sp, nullptr);
}

TEST(ContextTest, FloatingPointModesBelongToTheContext) {
  StackAllocator stacks({});
  char* const low = static_cast<char*>(stacks.Allocate());
  PingPong shared;
  std::fesetround(FE_UPWARD);
  shared.other_sp =
      MakeContext(low + stacks.stack_size(), &RoundingOf, &shared);
  flare_switch_context(&shared.main_sp, shared.other_sp, nullptr);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(shared.seen, std::vector<std::uintptr_t>{
                             static_cast<std::uintptr_t>(FE_TONEAREST)});
  stacks.Free(low);
}

}  // namespace
}  // namespace flare::fiber

#include "flare/fiber/stack_profile.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "flare/fiber/fiber_local.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/stack/stack.h"
#include "flare/fiber/task.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

// The most that a frame and the look at it may add.
constexpr std::size_t kSlack = 6144;

template <std::size_t kBytes>
[[gnu::noinline]] void Use() {
  char used[kBytes];
  std::memset(used, 1, kBytes);
  asm volatile("" : : "r"(used) : "memory");  // As if somebody read it.
}

// Tasks with functions of their own, to be told apart by.
template <std::size_t kBytes, bool kSuspends>
struct Job : Task {
  explicit Job(Latch* done) : done(done) { run = &Run; }
  static void Run(Task* self) {
    auto* const job = static_cast<Job*>(self);
    Use<kBytes>();
    if (kSuspends) {
      this_fiber::Yield();
      Use<kBytes>();
    }
    job->done->count_down();
  }
  Latch* done;
};

template <class J>
void RunJobs(int count) {
  Latch done(count);
  std::vector<J> jobs(static_cast<std::size_t>(count), J(&done));
  for (J& job : jobs) Submit(&job);
  done.wait();
}

void Start(bool profile, int workers) {
  RuntimeOptions options;
  options.concurrency = workers;
  options.stack_profile = profile;
  ASSERT_TRUE(StartRuntime(options).ok());
}

StackProfileEntry Find(Task::Run entry) {
  for (const StackProfileEntry& each : GetStackProfile()) {
    if (each.entry == entry) return each;
  }
  return {};
}

TEST(StackProfileTest, NothingUnlessAskedFor) {
  Start(false, 1);
  RunJobs<Job<1000, false>>(10);
  TerminateRuntime();
  EXPECT_TRUE(GetStackProfile().empty());
  EXPECT_EQ(SuggestedStackSize(), 0U);
}

TEST(StackProfileTest, EachFunctionHasItsDepth) {
  for (const int workers : {1, 4}) {
    Start(true, workers);
    // The deepest first: its traces must not be taken for the others'.
    RunJobs<Job<60000, true>>(20);
    RunJobs<Job<30000, false>>(20);
    RunJobs<Job<8000, true>>(20);
    RunJobs<Job<1000, false>>(20);
    TerminateRuntime();
    const auto expect = [](Task::Run entry, std::size_t bytes) {
      const StackProfileEntry found = Find(entry);
      EXPECT_EQ(found.tasks, 20U);
      EXPECT_GE(found.max_bytes, bytes);
      EXPECT_LE(found.max_bytes, bytes + kSlack);
      EXPECT_NE(found.name.find("Job"), std::string::npos) << found.name;
    };
    expect(&Job<60000, true>::Run, 60000);
    expect(&Job<30000, false>::Run, 30000);
    expect(&Job<8000, true>::Run, 8000);
    expect(&Job<1000, false>::Run, 1000);
    const std::vector<StackProfileEntry> all = GetStackProfile();
    EXPECT_EQ(all.front().entry, (&Job<60000, true>::Run));
    EXPECT_TRUE(std::is_sorted(all.begin(), all.end(),
                               [](const auto& a, const auto& b) {
                                 return a.max_bytes > b.max_bytes;
                               }));
  }
}

TEST(StackProfileTest, SuggestsTwiceTheDeepest) {
  Start(true, 1);
  RunJobs<Job<40000, true>>(1);
  TerminateRuntime();
  const std::size_t suggested = SuggestedStackSize();
  EXPECT_EQ(suggested % 4096, 0U);
  EXPECT_GE(suggested, 2 * 40000U + 4096);
  EXPECT_LE(suggested, 2 * (40000U + kSlack) + 8192);
  Start(true, 1);
  RunJobs<Job<100, false>>(1);
  TerminateRuntime();
  EXPECT_GE(SuggestedStackSize(), kLeastStack + 4096);
  EXPECT_LE(SuggestedStackSize(), kLeastStack + 2 * kSlack + 4096);
}

// With a stack that is looked at in several pieces, used down to its end.
TEST(StackProfileTest, LargeStacks) {
  RuntimeOptions options;
  options.concurrency = 1;
  options.stack_size = 4 << 20;
  options.stack_profile = true;
  ASSERT_TRUE(StartRuntime(options).ok());
  RunJobs<Job<(4 << 20) - 32768, true>>(2);
  RunJobs<Job<2000, true>>(2);
  TerminateRuntime();
  EXPECT_GE(Find((&Job<(4 << 20) - 32768, true>::Run)).max_bytes,
            (4U << 20) - 32768);
  EXPECT_LE(Find((&Job<2000, true>::Run)).max_bytes, 2000 + kSlack);
}

// A function is alive while others are recorded on other stacks, and its data
// isn't zeroed.
TEST(StackProfileTest, ZeroesNothingThatIsUsed) {
  Start(true, 4);
  constexpr int kFibers = 200;
  Latch done(kFibers);
  std::atomic<int> right{0};
  static FiberLocal<int> local;
  for (int i = 0; i < kFibers; ++i) {
    Spawn([&, i] {
      volatile int kept[500];
      for (int k = 0; k < 500; ++k) kept[k] = i + k;
      *local = i;
      for (int round = 0; round < 20; ++round) {
        this_fiber::Yield();
        Spawn([] { Use<3000>(); });
      }
      bool same = *local == i;
      for (int k = 0; k < 500; ++k) same = same && kept[k] == i + k;
      if (same) right.fetch_add(1);
      done.count_down();
    });
  }
  done.wait();
  EXPECT_EQ(right.load(), kFibers);
  TerminateRuntime();
}

}  // namespace
}  // namespace flare::fiber

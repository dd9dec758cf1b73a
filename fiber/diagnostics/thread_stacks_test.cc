#include "flare/fiber/diagnostics/thread_stacks.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

std::uintptr_t Here() {
  return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
}

TEST(ThreadStacks, KnowTheThreadsThatRunAndThoseThatSleep) {
  struct Other {
    std::uintptr_t stack = 0;
    pid_t thread = 0;
  };
  constexpr int kThreads = 8;
  std::vector<Other> others(kThreads);
  std::atomic<int> ready{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      others[i] = {Here(), static_cast<pid_t>(syscall(SYS_gettid))};
      ready.fetch_add(1);
      ready.notify_one();
      if (i % 2 == 0) {
        stop.wait(false);
      } else {
        while (!stop.load()) std::this_thread::yield();
      }
    });
  }
  for (int now = 0; now != kThreads; now = ready.load()) ready.wait(now);
  const ThreadStacks stacks;
  for (const Other& other : others) {
    EXPECT_EQ(stacks.ThreadAt(other.stack), other.thread);
  }
  stop.store(true);
  stop.notify_all();
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadStacks, KnowTheMainThread) {
  EXPECT_EQ(ThreadStacks().ThreadAt(Here()), getpid());
}

TEST(ThreadStacks, KnowNothingOfOtherMemory) {
  const ThreadStacks stacks;
  const auto on_heap = std::make_unique<int>();
  EXPECT_EQ(stacks.ThreadAt(reinterpret_cast<std::uintptr_t>(on_heap.get())),
            0);
  EXPECT_EQ(stacks.ThreadAt(0), 0);
}

}  // namespace
}  // namespace flare::fiber

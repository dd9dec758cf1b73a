#include "flare/fiber/scheduler/thread_state.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <thread>

#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

TEST(ThreadStateTest, TellsSleepingFromRunning) {
  EXPECT_FALSE(SleepsInKernel(ThisThread()));

  std::atomic<pid_t> number{0};
  std::atomic<bool> stop{false};
  std::latch woken(1);
  std::thread thread([&] {
    number = ThisThread();
    while (!stop) {
    }
    woken.wait();
  });
  while (number == 0) std::this_thread::yield();
  // While it computes it may have to wait for a CPU, but never sleeps.
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(SleepsInKernel(number));
  stop = true;
  while (!SleepsInKernel(number)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  woken.count_down();
  thread.join();
  EXPECT_FALSE(SleepsInKernel(number)) << "a thread that has ended";
}

TEST(ThreadStateTest, IsNotMisledByNames) {
  char before[16];
  ASSERT_EQ(pthread_getname_np(pthread_self(), before, sizeof(before)), 0);
  for (const char* name : {"a) S (b", ") S ) S ) S ) S", "((", ")", ""}) {
    ASSERT_EQ(pthread_setname_np(pthread_self(), name), 0);
    EXPECT_FALSE(SleepsInKernel(ThisThread())) << name;
  }
  pthread_setname_np(pthread_self(), before);
}

TEST(ThreadStateTest, KnowsNothingOfOthers) {
  EXPECT_FALSE(SleepsInKernel(0));
  EXPECT_FALSE(SleepsInKernel(-1));
  EXPECT_FALSE(SleepsInKernel(1)) << "another process";
}

}  // namespace
}  // namespace flare::fiber

#include "flare/base/thread_mutex.h"

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare {

// Outside the anonymous namespace: tests look for the name.
namespace thread_mutex_test {

[[gnu::noinline]] void LockHere(ThreadMutex* mutex)
    FLARE_NO_THREAD_SAFETY_ANALYSIS {
  mutex->lock();
  asm volatile("");  // Prevents a tail call.
}

}  // namespace thread_mutex_test

namespace {

class ThreadMutexTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { ThreadMutex::SetCheck(GetParam()); }
  void TearDown() override { ThreadMutex::SetCheck(false); }
};
INSTANTIATE_TEST_SUITE_P(Checked, ThreadMutexTest, ::testing::Bool());

std::vector<ThreadMutex*> HeldMutexes() {
  std::vector<ThreadMutex*> mutexes;
  for (const auto& held : ThreadMutex::HeldByThisThread()) {
    mutexes.push_back(held.mutex);
  }
  return mutexes;
}

TEST_P(ThreadMutexTest, Excludes) {
  ThreadMutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 2000; ++j) {
        std::scoped_lock guard(mutex);
        ++count;
      }
      EXPECT_TRUE(ThreadMutex::HeldByThisThread().empty());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 8000);
}

TEST_P(ThreadMutexTest, TryLockFailsWhileHeld) {
  ThreadMutex mutex;
  ScopedLock guard(mutex);
  bool locked = true;
  std::thread([&] {
    locked = mutex.try_lock();
    EXPECT_TRUE(ThreadMutex::HeldByThisThread().empty());
    if (locked) mutex.unlock();
  }).join();
  EXPECT_FALSE(locked);
}

TEST_P(ThreadMutexTest, TryLockLocks) {
  ThreadMutex mutex;
  ASSERT_TRUE(mutex.try_lock());
  EXPECT_EQ(HeldMutexes().size(), GetParam() ? 1U : 0U);
  mutex.unlock();
  EXPECT_TRUE(HeldMutexes().empty());
}

TEST_P(ThreadMutexTest, ToleratesTheCheckBeingSwitchedWhileHeld) {
  ThreadMutex mutex;
  {
    std::unique_lock guard(mutex);
    ThreadMutex::SetCheck(!GetParam());
  }
  EXPECT_TRUE(HeldMutexes().empty());
  {
    std::unique_lock guard(mutex);
    ThreadMutex::SetCheck(GetParam());
  }
  EXPECT_TRUE(HeldMutexes().empty());
}

class CheckedThreadMutex : public ThreadMutexTest {};
INSTANTIATE_TEST_SUITE_P(Checked, CheckedThreadMutex, ::testing::Values(true));

TEST_P(CheckedThreadMutex, KnowsWhatIsHeldInOrder) {
  ThreadMutex a;
  ThreadMutex b;
  ThreadMutex c;
  a.lock();
  b.lock();
  c.lock();
  EXPECT_EQ(HeldMutexes(), (std::vector<ThreadMutex*>{&a, &b, &c}));
  b.unlock();
  EXPECT_EQ(HeldMutexes(), (std::vector<ThreadMutex*>{&a, &c}));
  std::thread([] { EXPECT_TRUE(HeldMutexes().empty()); }).join();
  a.unlock();
  c.unlock();
  EXPECT_TRUE(HeldMutexes().empty());
}

TEST_P(CheckedThreadMutex, CountsWhereItIsTold) {
  std::uint32_t count = 77;
  ThreadMutex a;
  ThreadMutex b;
  a.lock();
  ThreadMutex::CountHeldIn(&count);
  EXPECT_EQ(count, 1U);
  b.lock();
  EXPECT_EQ(count, 2U);
  std::thread([] {
    ThreadMutex other;
    ScopedLock guard(other);
  }).join();
  EXPECT_EQ(count, 2U);
  a.unlock();
  EXPECT_EQ(count, 1U);
  ThreadMutex::CountHeldIn(nullptr);
  b.unlock();
  EXPECT_EQ(count, 1U);
}

TEST_P(CheckedThreadMutex, KnowsWhereItWasLocked) {
  ThreadMutex mutex;
  thread_mutex_test::LockHere(&mutex);
  const std::vector<ThreadMutex::Held> held = ThreadMutex::HeldByThisThread();
  mutex.unlock();
  ASSERT_EQ(held.size(), 1U);
  EXPECT_NE(held[0].where.ToString().find("thread_mutex_test::LockHere"),
            std::string::npos);
}

TEST_P(CheckedThreadMutex, ForgottenOnesAreUnlockedAnywhere) {
  std::uint32_t count = 0;
  ThreadMutex::CountHeldIn(&count);
  ThreadMutex mutex;
  mutex.lock();
  ThreadMutex::ForgetHeld();
  EXPECT_EQ(count, 0U);
  EXPECT_TRUE(HeldMutexes().empty());
  EXPECT_FALSE(mutex.try_lock());
  mutex.unlock();
  EXPECT_EQ(count, 0U);
  mutex.lock();  // Noted again.
  EXPECT_EQ(count, 1U);
  mutex.unlock();
  ThreadMutex::CountHeldIn(nullptr);
}

}  // namespace
}  // namespace flare

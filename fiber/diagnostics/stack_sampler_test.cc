#include "flare/fiber/diagnostics/stack_sampler.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "flare/fiber/stack/sanitizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::fiber {

// Outside the anonymous namespace: tests look for the name.
namespace stack_sampler_test {

[[gnu::noinline]] void ComputeUntil(const std::atomic<bool>* stop) {
  // relaxed: only to end.
  while (!stop->load(std::memory_order_relaxed)) {
  }
}

}  // namespace stack_sampler_test

namespace {

using ::testing::HasSubstr;

// ThreadSanitizer holds signals back until the thread calls something that it
// intercepts, so there may be no answer.
#ifdef FLARE_TSAN
constexpr bool kSignalsArriveAtOnce = false;
#else
constexpr bool kSignalsArriveAtOnce = true;
#endif

class StackSamplerTest : public ::testing::Test {
 protected:
  void SetUp() override { StartStackSampler(); }
  void TearDown() override { StopStackSampler(); }
};

constexpr std::int64_t kLong = 30'000'000'000;

// A thread that computes until destroyed.
struct Busy {
  std::atomic<pid_t> tid{0};
  std::atomic<bool> stop{false};
  std::thread thread{[this] {
    // release, acquire below: only to be sure that it is there.
    tid.store(static_cast<pid_t>(syscall(SYS_gettid)),
              std::memory_order_release);
    stack_sampler_test::ComputeUntil(&stop);
  }};

  Busy() {
    while (tid.load(std::memory_order_acquire) == 0) std::this_thread::yield();
  }
  ~Busy() {
    stop.store(true, std::memory_order_relaxed);  // Only to end.
    thread.join();
  }
};

TEST_F(StackSamplerTest, SamplesTheThreadAskedFor) {
  if (!kSignalsArriveAtOnce) GTEST_SKIP() << "ThreadSanitizer delays signals";
  Busy busy;
  Backtrace backtrace;
  for (int i = 0; i < 200; ++i) {
    backtrace = SampleStack(busy.tid.load(), kLong);
    ASSERT_FALSE(backtrace.empty());
  }
  EXPECT_THAT(backtrace.ToString(), HasSubstr("ComputeUntil"));
}

TEST_F(StackSamplerTest, SamplesForManyAtOnce) {
  if (!kSignalsArriveAtOnce) GTEST_SKIP() << "ThreadSanitizer delays signals";
  Busy busy[2];
  std::atomic<int> empty{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 100; ++j) {
        // relaxed: read after joining.
        if (SampleStack(busy[i % 2].tid.load(), kLong).empty()) {
          empty.fetch_add(1, std::memory_order_relaxed);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(empty.load(), 0);
}

TEST_F(StackSamplerTest, LosesPatienceWithThreadsThatDoNotAnswer) {
  EXPECT_TRUE(SampleStack(1 << 30, 1'000'000).empty());  // No such thread.
  std::atomic<pid_t> tid{0};
  std::atomic<bool> stop{false};
  std::thread deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    tid.store(static_cast<pid_t>(syscall(SYS_gettid)));
    stack_sampler_test::ComputeUntil(&stop);
    AcceptStackSampling();  // The late signals arrive, and find no request.
  });
  while (tid.load() == 0) std::this_thread::yield();
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(SampleStack(tid.load(), 1'000'000).empty());
  }
  if (kSignalsArriveAtOnce) {
    Busy busy;  // Which is not confused with the deaf one.
    EXPECT_FALSE(SampleStack(busy.tid.load(), kLong).empty());
  }
  stop.store(true);
  deaf.join();
}

TEST_F(StackSamplerTest, DoesNothingUnlessStarted) {
  StopStackSampler();
  EXPECT_TRUE(
      SampleStack(static_cast<pid_t>(syscall(SYS_gettid)), kLong).empty());
  StartStackSampler();
}

std::atomic<int> foreign{0};

TEST(StackSampler, LeavesOthersTheirSignals) {
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = [](int) { foreign.fetch_add(1); };
  ASSERT_EQ(sigaction(SIGURG, &action, &before), 0);
  StartStackSampler();
  raise(SIGURG);
  EXPECT_EQ(foreign.load(), 1);
  StopStackSampler();
  raise(SIGURG);
  EXPECT_EQ(foreign.load(), 2);

  StartStackSampler();
  ASSERT_EQ(sigaction(SIGURG, &action, nullptr), 0);  // Comes after us.
  StopStackSampler();
  raise(SIGURG);
  EXPECT_EQ(foreign.load(), 3);
  ASSERT_EQ(sigaction(SIGURG, &before, nullptr), 0);
}

struct sigaction ours;  // The action that `Chained` replaced.

void Chained(int signal, siginfo_t* info, void* context) {
  foreign.fetch_add(1);
  ours.sa_sigaction(signal, info, context);
}

TEST(StackSampler, StaysBehindWhoCameLaterAndStays) {
  struct sigaction before = {};
  ASSERT_EQ(sigaction(SIGURG, nullptr, &before), 0);
  struct sigaction chained = {};
  chained.sa_sigaction = &Chained;
  chained.sa_flags = SA_SIGINFO | SA_ONSTACK;
  StartStackSampler();
  ASSERT_EQ(sigaction(SIGURG, &chained, &ours), 0);
  StopStackSampler();

  StartStackSampler();
  foreign.store(0);
  raise(SIGURG);  // From elsewhere: ours doesn't give it back to Chained().
  EXPECT_EQ(foreign.load(), 1);
  if (kSignalsArriveAtOnce) {
    Busy busy;
    EXPECT_FALSE(SampleStack(busy.tid.load(), kLong).empty());
    EXPECT_EQ(foreign.load(), 2);
  }
  // It goes, with ours: the next start has nobody to count on.
  ASSERT_EQ(sigaction(SIGURG, &before, nullptr), 0);
  StopStackSampler();
  StartStackSampler();
  if (kSignalsArriveAtOnce) {
    Busy busy;
    EXPECT_FALSE(SampleStack(busy.tid.load(), kLong).empty());
  }
  StopStackSampler();
}

}  // namespace
}  // namespace flare::fiber

// A fiber runtime to make loads in.

#ifndef EXAMPLE_RPC_LOAD_TEST_FIXTURE_H_
#define EXAMPLE_RPC_LOAD_TEST_FIXTURE_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "example/rpc/call_recorder.h"
#include "example/rpc/load_generator.h"
#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/io/epoll_poller.h"
#include "flare/rpc/connection_pool.h"
#include "gtest/gtest.h"

namespace example {

constexpr CallerKind kAllKinds[] = {CallerKind::kLoop, CallerKind::kFiber,
                                    CallerKind::kThread};

// Counts the calls of one caller that began before the end of a pause after a
// failure (call_sequence.cc), which is 5 ms at least from the fifth on. Unlike
// the time that all of them take, that says something on a busy machine, too.
class CallsWithoutPause {
 public:
  void Begin() {
    const std::int64_t now_ns = flare::NowNs();
    if (now_ns - last_ns_.exchange(now_ns) < 5 * flare::kNsPerMs) ++count_;
  }
  int count() const { return count_; }

 private:
  std::atomic<std::int64_t> last_ns_{0};
  std::atomic<int> count_{0};
};

class LoadTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    flare::fiber::RuntimeOptions options;
    options.concurrency = 2;
    options.make_poller = flare::io::EpollPoller::Factory();
    const auto started = flare::fiber::StartRuntime(options);
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  static void TearDownTestSuite() {
    flare::rpc::ShutdownClientSide();
    flare::fiber::TerminateRuntime();
  }

  // Makes all calls of `options`; returns how ordinary ones ended, and those
  // of the tail.
  static std::pair<CallStatistics, CallStatistics> RunWithTail(
      const LoadOptions& options) {
    LoadRecorder recorder;
    LoadGenerator load(options, &recorder);
    const auto opened = load.Open();
    EXPECT_TRUE(opened.ok()) << opened;
    load.Start();
    EXPECT_TRUE(load.WaitUntilFinished(flare::kNoDeadline));
    EXPECT_EQ(load.running(), 0u);
    return {recorder.ordinary.Take(), recorder.tail.Take()};
  }

  // Runs without a tail.
  static CallStatistics Run(const LoadOptions& options) {
    return RunWithTail(options).first;
  }
};

}  // namespace example

#endif  // EXAMPLE_RPC_LOAD_TEST_FIXTURE_H_

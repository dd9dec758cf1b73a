#include "example/proxy/hangup_signal.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/new_events.h"
#include "flare/fiber/testing/no_threads.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

class HangupSignalTest : public flare::io::testing::IoTest {};
INSTANTIATE_TEST_SUITE_P(Shapes, HangupSignalTest,
                         ::testing::Values(flare::fiber::testing::RuntimeShape{
                             1, 1, "io-heavy"}),
                         flare::fiber::testing::RuntimeShapeName);

// Called so for GoogleTest to run it first.
TEST(HangupSignalDeathTest, WithoutAThreadTheProgramEnds) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        const flare::fiber::testing::NoThreads no_threads;
        const HangupSignal hangup([] {});
      },
      ::testing::ExitedWithCode(1),
      "Can't wait for SIGHUP: can't start a thread: .*ulimit -u");
}

// The unread count of each of this process's eventfds.
std::map<int, std::uint64_t> EventCounts() {
  std::map<int, std::uint64_t> counts;
  for (const auto& fd :
       std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream file(fd.path());
    for (std::string word; file >> word;) {
      if (word != "eventfd-count:") continue;
      file >> std::hex >> counts[std::stoi(fd.path().filename())];
      break;
    }
  }
  return counts;
}

TEST_P(HangupSignalTest, EachSignalCausesARun) {
  flare::Fiber([] {
    std::atomic<int> runs{0};
    flare::fiber::Event events[3];
    {
      HangupSignal hangup([&] { events[runs++].Set(); });
      for (flare::fiber::Event& event : events) {
        ::raise(SIGHUP);
        EXPECT_TRUE(event.WaitUntil(flare::io::testing::Deadline()));
      }
    }
    EXPECT_EQ(runs, 3);
  }).join();
}

TEST_P(HangupSignalTest, SignalsDuringARunCauseOneMore) {
  flare::Fiber([] {
    std::atomic<int> runs{0};
    flare::fiber::Event started, go_on, again;
    {
      HangupSignal hangup([&] {
        if (++runs == 1) {
          started.Set();
          go_on.Wait();
        } else {
          again.Set();
        }
      });
      ::raise(SIGHUP);
      started.Wait();
      for (int i = 0; i != 5; ++i) ::raise(SIGHUP);
      go_on.Set();
      EXPECT_TRUE(again.WaitUntil(flare::io::testing::Deadline()));
    }
    EXPECT_EQ(runs, 2);
  }).join();
}

// Waiting for signals takes none of the threads of blocking regions, of which
// there may be one.
TEST(HangupSignal, LeavesBlockingRegionsToOthers) {
  flare::fiber::RuntimeOptions options;
  options.concurrency = 1;
  options.max_blocking_threads = 1;
  ASSERT_TRUE(flare::fiber::StartRuntime(options).ok());
  flare::Fiber([] {
    HangupSignal hangup([] {});
    for (int i = 0; i != 3; ++i) {
      flare::this_fiber::SleepFor(std::chrono::milliseconds(10));
      flare::fiber::RunBlocking([] {});
    }
  }).join();
  flare::fiber::TerminateRuntime();
}

TEST_P(HangupSignalTest, PutsBackWhatWas) {
  ::signal(SIGHUP, SIG_IGN);
  flare::Fiber([] { HangupSignal hangup([] {}); }).join();
  struct sigaction now;
  ASSERT_EQ(::sigaction(SIGHUP, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
  ::signal(SIGHUP, SIG_DFL);
}

// It has begun on another thread, and is kept from its CPU until the end:
// descriptors opened since then aren't written to.
TEST_P(HangupSignalTest, ALateHandlerWritesToNobodyElse) {
  struct sigaction handler = {};
  flare::Fiber([&] {
    HangupSignal hangup([] {});
    EXPECT_EQ(::sigaction(SIGHUP, nullptr, &handler), 0);
  }).join();
  const flare::fiber::testing::NewEvents others;
  handler.sa_handler(SIGHUP);
  EXPECT_EQ(others.written(), 0U);
}

// Nor does it cause a run of the next one.
TEST_P(HangupSignalTest, WhatTheLastOneLeftIsForgotten) {
  flare::Fiber([&] {
    struct sigaction handler = {};
    {
      HangupSignal hangup([] {});
      EXPECT_EQ(::sigaction(SIGHUP, nullptr, &handler), 0);
    }
    const auto before = EventCounts();
    for (int i = 0; i != 1000; ++i) handler.sa_handler(SIGHUP);
    // No other is written to as often.
    int event = -1;
    for (const auto& [fd, count] : EventCounts()) {
      const auto it = before.find(fd);
      if (it != before.end() && count == it->second + 1000) event = fd;
    }
    ASSERT_NE(event, -1) << "its count isn't in /proc/self/fdinfo";

    flare::fiber::Event raised, ran;
    std::atomic<int> runs{0};
    std::uint64_t unread = 0;
    {
      HangupSignal hangup([&] {
        raised.Wait();
        if (runs++ == 0) unread = EventCounts()[event];
        ran.Set();
      });
      // The rest is either still there, or has caused a run. That waits, and
      // nobody reads meanwhile the count that we raise.
      EXPECT_EQ(EventCounts()[event], 0U);
      ::raise(SIGHUP);
      raised.Set();
      EXPECT_TRUE(ran.WaitUntil(flare::io::testing::Deadline()));
    }
    EXPECT_EQ(unread, 0U);
    EXPECT_EQ(runs, 1);
  }).join();
}

}  // namespace
}  // namespace example::proxy

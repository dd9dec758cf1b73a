#include "flare/io/epoll_poller.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/runtime.h"
#include "flare/io/epoll_wait.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

// Notes its events and offers its task each time.
class Probe final : public Descriptor {
 public:
  Probe(UniqueFd fd, std::atomic<int>* alive)
      : Descriptor(std::move(fd)), alive_(alive) {
    alive_->fetch_add(1);
  }
  ~Probe() override { alive_->fetch_sub(1); }

  void OnEvents(std::uint32_t events, fiber::TaskList* ready) override {
    events_ |= events;
    ++calls_;
    ready->PushBack(&task_);
  }

  std::uint32_t TakeEvents() { return std::exchange(events_, 0U); }
  int calls() const { return calls_; }
  fiber::Task* task() { return &task_; }

 private:
  std::atomic<int>* const alive_;
  std::uint32_t events_ = 0;
  int calls_ = 0;
  fiber::Task task_;
};

// The poller by itself, called from the test's thread. The parameter: for how
// long it spins.
class EpollPollerTest
    : public ::testing::TestWithParam<std::chrono::microseconds> {
 protected:
  void SetUp() override {
    auto poller = EpollPoller::Create({.spin = GetParam()});
    ASSERT_TRUE(poller.has_value()) << poller.error().message();
    poller_ = std::move(*poller);
  }

  RefPtr<Probe> NewProbe(UniqueFd* peer) {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    peer->Reset(fds[1]);
    return MakeRefCounted<Probe>(UniqueFd(fds[0]), &alive_);
  }

  // Each is ready, for output.
  std::vector<RefPtr<Probe>> RegisterProbes(std::vector<UniqueFd>* peers) {
    std::vector<RefPtr<Probe>> probes;
    for (UniqueFd& peer : *peers) {
      probes.push_back(NewProbe(&peer));
      EXPECT_TRUE(poller_->Register(probes.back().Get()).ok());
    }
    return probes;
  }

  std::size_t PollNow() {
    fiber::TaskList ready;
    poller_->Poll(0, &ready);
    return ready.size();
  }

  std::atomic<int> alive_{0};
  std::unique_ptr<EpollPoller> poller_;
};

INSTANTIATE_TEST_SUITE_P(Spin, EpollPollerTest,
                         ::testing::Values(std::chrono::microseconds(0),
                                           std::chrono::microseconds(200)));

TEST_P(EpollPollerTest, NothingToReport) {
  EXPECT_EQ(PollNow(), 0U);
  EXPECT_EQ(poller_->size(), 0U);
}

TEST_P(EpollPollerTest, ReportsEachEdgeOnce) {
  UniqueFd peer;
  auto probe = NewProbe(&peer);
  ASSERT_TRUE(poller_->Register(probe.Get()).ok());
  EXPECT_EQ(poller_->size(), 1U);

  // Readiness at registration is an event.
  fiber::TaskList ready;
  poller_->Poll(0, &ready);
  EXPECT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready.Front(), probe->task());
  EXPECT_EQ(probe->TakeEvents(), static_cast<std::uint32_t>(EPOLLOUT));

  EXPECT_EQ(PollNow(), 0U);
  ASSERT_EQ(::write(peer.get(), "x", 1), 1);
  EXPECT_EQ(PollNow(), 1U);
  EXPECT_NE(probe->TakeEvents() & EPOLLIN, 0U);
  EXPECT_EQ(PollNow(), 0U);  // Unread, but no new edge.
  ASSERT_EQ(::write(peer.get(), "y", 1), 1);
  EXPECT_EQ(PollNow(), 1U);

  ::shutdown(peer.get(), SHUT_WR);
  EXPECT_EQ(PollNow(), 1U);
  EXPECT_NE(probe->TakeEvents() & EPOLLRDHUP, 0U);
  peer.Reset();
  EXPECT_EQ(PollNow(), 1U);
  EXPECT_NE(probe->TakeEvents() & EPOLLHUP, 0U);
  poller_->Retire(probe.Get());
}

TEST_P(EpollPollerTest, KeepsReferencesUntilTheNextPoll) {
  UniqueFd peer;
  auto probe = NewProbe(&peer);
  ASSERT_TRUE(poller_->Register(probe.Get()).ok());
  Probe* const raw = probe.Get();
  probe.Reset();
  EXPECT_EQ(alive_.load(), 1);
  EXPECT_EQ(PollNow(), 1U);
  poller_->Retire(raw);
  EXPECT_EQ(poller_->size(), 0U);
  EXPECT_EQ(alive_.load(), 1);
  ASSERT_EQ(::write(peer.get(), "x", 1), 1);
  EXPECT_EQ(PollNow(), 0U);  // No event any more.
  EXPECT_EQ(alive_.load(), 0);
}

TEST_P(EpollPollerTest, DestructionDropsWhatIsRetired) {
  UniqueFd peers[3];
  for (auto& peer : peers) {
    auto probe = NewProbe(&peer);
    ASSERT_TRUE(poller_->Register(probe.Get()).ok());
    poller_->Retire(probe.Get());
  }
  EXPECT_EQ(alive_.load(), 3);
  poller_.reset();
  EXPECT_EQ(alive_.load(), 0);
}

TEST_P(EpollPollerTest, RefusesWhatCannotBePolled) {
  UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(file);
  auto probe = MakeRefCounted<Probe>(std::move(file), &alive_);
  const Status status = poller_->Register(probe.Get());
  EXPECT_EQ(status.code(), EPERM);
  EXPECT_NE(status.message().find("epoll"), std::string::npos);
  EXPECT_EQ(poller_->size(), 0U);
  EXPECT_EQ(probe->UnsafeRefCount(), 1U);

  auto closed = MakeRefCounted<Probe>(UniqueFd(), &alive_);
  EXPECT_EQ(poller_->Register(closed.Get()).code(), EBADF);
}

TEST_P(EpollPollerTest, MoreEventsThanOneBatch) {
  constexpr std::size_t kProbes = 300;
  constexpr std::size_t kBatch = EpollPoller::kMaxEvents;
  std::vector<UniqueFd> peers(kProbes);
  const auto probes = RegisterProbes(&peers);
  std::size_t reported = 0;
  while (reported < kProbes) {
    fiber::TaskList ready;
    poller_->Poll(kNoDeadline, &ready);  // Doesn't wait.
    // One at a time, in their order.
    const std::size_t begun = reported / kBatch * kBatch;
    const std::size_t fetched = std::min(kProbes - begun, kBatch);
    ASSERT_EQ(ready.size(), 1U);
    EXPECT_EQ(ready.Front(), probes[reported++]->task());
    EXPECT_EQ(poller_->pending(), begun + fetched - reported);
  }
  EXPECT_EQ(PollNow(), 0U);
  for (auto& probe : probes) {
    EXPECT_EQ(probe->calls(), 1);
    poller_->Retire(probe.Get());
  }
}

TEST_P(EpollPollerTest, WaitingPaysIfOneFlushInFourHasMore) {
  EXPECT_FALSE(poller_->waiting_pays());
  const auto note = [this](int rounds, int paid, int in_vain) {
    for (int i = 0; i < rounds; ++i) {
      for (int j = 0; j < paid; ++j) poller_->NoteFlushWaited(true);
      for (int j = 0; j < in_vain; ++j) poller_->NoteFlushWaited(false);
    }
  };
  note(100, 1, 9);
  EXPECT_FALSE(poller_->waiting_pays());
  EXPECT_FALSE(poller_->waiting_may_pay());
  note(3, 1, 0);  // That is worth a look.
  EXPECT_FALSE(poller_->waiting_pays());
  EXPECT_TRUE(poller_->waiting_may_pay());
  note(100, 1, 1);
  EXPECT_TRUE(poller_->waiting_pays());
  note(3, 0, 1);  // That says little.
  EXPECT_TRUE(poller_->waiting_pays());
  note(100, 1, 9);
  EXPECT_FALSE(poller_->waiting_pays());
}

TEST_P(EpollPollerTest, ServesOneIfAllEventsAreOfOne) {
  std::vector<UniqueFd> peers(2);
  const auto probes = RegisterProbes(&peers);
  const auto event_of = [&](std::size_t i) {
    ASSERT_TRUE(testing::SendAll(peers[i].get(), "x"));
    ASSERT_EQ(PollNow(), 1U);
  };
  while (PollNow() != 0) {
  }
  event_of(0);
  for (int i = 0; i < EpollPoller::kFetchesOfOne; ++i) {
    EXPECT_FALSE(poller_->serves_one());
    event_of(0);
  }
  EXPECT_TRUE(poller_->serves_one());
  poller_->Wake();  // Is nobody's.
  EXPECT_EQ(PollNow(), 0U);
  EXPECT_TRUE(poller_->serves_one());
  event_of(1);
  EXPECT_FALSE(poller_->serves_one());
  for (int i = 0; i < EpollPoller::kFetchesOfOne; ++i) event_of(1);
  EXPECT_TRUE(poller_->serves_one());
  // Both at once.
  ASSERT_TRUE(testing::SendAll(peers[0].get(), "x"));
  event_of(1);
  EXPECT_FALSE(poller_->serves_one());
  EXPECT_EQ(PollNow(), 1U);
  for (const auto& probe : probes) poller_->Retire(probe.Get());
}

// An event that has been fetched and not handed out is a reason to keep its
// target.
TEST_P(EpollPollerTest, WhatIsRetiredLivesUntilItsEventIsHandedOut) {
  constexpr int kProbes = 10;
  std::vector<UniqueFd> peers(kProbes);
  auto probes = RegisterProbes(&peers);
  EXPECT_EQ(PollNow(), 1U);
  poller_->Retire(probes.front().Get());
  poller_->Retire(probes.back().Get());
  Probe* const last = probes.back().Get();
  probes.front().Reset();
  probes.back().Reset();
  while (poller_->pending() != 0) {
    EXPECT_EQ(alive_.load(), kProbes);
    PollNow();
  }
  EXPECT_EQ(alive_.load(), kProbes);
  EXPECT_EQ(last->calls(), 1);
  EXPECT_EQ(PollNow(), 0U);
  EXPECT_EQ(alive_.load(), kProbes - 2);
  for (int i = 1; i < kProbes - 1; ++i) poller_->Retire(probes[i].Get());
}

TEST_P(EpollPollerTest, WaitsForTheDeadlineAndNotMuchLess) {
  for (const std::int64_t wait : {100'000, 1'500'000, 3'000'000}) {
    fiber::TaskList ready;
    const std::int64_t deadline = NowNs() + wait;
    poller_->Poll(deadline, &ready);
    EXPECT_TRUE(ready.empty());
    EXPECT_GE(NowNs(), deadline - 2'000);  // The clock's promise.
  }
  fiber::TaskList ready;
  poller_->Poll(1, &ready);  // Long past: like 0.
}

TEST_P(EpollPollerTest, WakeEndsTheNextWait) {
  poller_->Wake();
  fiber::TaskList ready;
  poller_->Poll(kNoDeadline, &ready);  // Returns.
  EXPECT_TRUE(ready.empty());
  // Edges of many wake-ups are one.
  for (int i = 0; i < 10; ++i) poller_->Wake();
  poller_->Poll(kNoDeadline, &ready);
  const std::int64_t deadline = NowNs() + 1'000'000;
  poller_->Poll(deadline, &ready);
  EXPECT_GE(NowNs(), deadline - 2'000);
}

TEST_P(EpollPollerTest, WakesFromAnotherThread) {
  constexpr int kRounds = 2000;
  std::atomic<int> asleep{0};  // Rounds begun.
  std::thread waker([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (asleep.load() < i) std::this_thread::yield();
      poller_->Wake();
    }
  });
  for (int i = 1; i <= kRounds; ++i) {
    asleep.store(i);
    fiber::TaskList ready;
    poller_->Poll(kNoDeadline, &ready);  // A lost wake-up would hang here.
  }
  waker.join();
}

// Descriptors are registered and retired by other threads while events come.
TEST_P(EpollPollerTest, RetiringUnderEvents) {
  constexpr int kThreads = 3;
  constexpr int kEach = 1000;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        UniqueFd peer;
        auto probe = NewProbe(&peer);
        ASSERT_TRUE(poller_->Register(probe.Get()).ok());
        ASSERT_EQ(::write(peer.get(), "x", 1), 1);
        peer.Reset();
        poller_->Retire(probe.Get());
      }
      running.fetch_sub(1);
    });
  }
  while (running.load() > 0) PollNow();
  for (auto& thread : threads) thread.join();
  while (poller_->pending() != 0) PollNow();
  PollNow();
  EXPECT_EQ(alive_.load(), 0);
  EXPECT_EQ(poller_->size(), 0U);
}

// With the runtime: workers poll.
class RunningPollerTest : public testing::IoTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(RunningPollerTest);

class EventCounter final : public Descriptor {
 public:
  EventCounter(UniqueFd fd, std::atomic<int>* alive, fiber::Latch* events)
      : Descriptor(std::move(fd)), alive_(alive), events_(events) {
    alive_->fetch_add(1);
    task_.counter = this;
    task_.run = [](fiber::Task* task) {
      static_cast<Role*>(task)->counter->events_->count_down();
    };
  }
  ~EventCounter() override { alive_->fetch_sub(1); }

  void OnEvents(std::uint32_t, fiber::TaskList* ready) override {
    if (!seen_.exchange(true)) ready->PushBack(&task_);
  }

 private:
  struct Role : fiber::Task {
    EventCounter* counter = nullptr;
  };
  std::atomic<int>* const alive_;
  fiber::Latch* const events_;
  std::atomic<bool> seen_{false};
  Role task_;
};

TEST_P(RunningPollerTest, SleepingWorkersAreWokenByEvents) {
  constexpr int kSockets = 50;
  std::atomic<int> alive{0};
  fiber::Latch events(kSockets);
  std::vector<RefPtr<EventCounter>> counters;
  std::vector<UniqueFd> peers;
  for (int i = 0; i < kSockets; ++i) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    peers.emplace_back(fds[1]);
    counters.push_back(
        MakeRefCounted<EventCounter>(UniqueFd(fds[0]), &alive, &events));
    const std::size_t group = i % fiber::GetSchedulingGroupCount();
    ASSERT_TRUE(
        EpollPoller::OfGroup(group)->Register(counters.back().Get()).ok());
  }
  EXPECT_TRUE(events.wait_for(testing::kLimit));
  for (int i = 0; i < kSockets; ++i) {
    const std::size_t group = i % fiber::GetSchedulingGroupCount();
    EpollPoller::OfGroup(group)->Retire(counters[i].Get());
  }
  counters.clear();
  testing::DrainPollers();
  EXPECT_EQ(alive.load(), 0);
}

// One Status names the cause, and nothing is left.
TEST(EpollPollerFactoryTest, FailsTheStartWhenThereAreTooFewDescriptors) {
  fiber::RuntimeOptions options;
  options.concurrency = 16;
  options.group_size = 1;
  options.numa_aware = false;
  options.make_poller = EpollPoller::Factory();
  // UBSan wants a descriptor to look at a kind of object for the first time.
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  fiber::TerminateRuntime();
  ASSERT_EQ(StatusFromErrno(EMFILE, "").code(), EMFILE);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight{.rlim_cur = 40, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const Status few = fiber::StartRuntime(options);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(few.code(), EMFILE);
  for (const char* part : {"the poller of scheduling group ", "Too many open",
                           "ulimit -n", "--flare_scheduling_group_size"}) {
    EXPECT_NE(few.message().find(part), std::string::npos) << few.message();
  }
  EXPECT_FALSE(fiber::IsRuntimeRunning());
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
  fiber::TerminateRuntime();
}

}  // namespace
}  // namespace flare::io

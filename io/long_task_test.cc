// fiber/long_task.h, with events of the kernel.
#include "flare/fiber/long_task.h"

#include <atomic>
#include <chrono>
#include <string>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/testing/event_source.h"
#include "flare/io/testing/loopback.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using testing::EventSource;

// Without the watch, which would help in time, too.
void StartWorkers(int workers) {
  fiber::RuntimeOptions options;
  options.concurrency = workers;
  options.reserve_workers = 0;
  options.watch_period = std::chrono::nanoseconds(0);
  ASSERT_TRUE(fiber::StartRuntime(options).ok());
}

void Stop(std::initializer_list<EventSource*> sources) {
  for (EventSource* const source : sources) {
    EpollPoller::OfGroup(0)->Retire(source);
  }
  testing::DrainPollers();
  fiber::TerminateRuntime();
}

struct Counting : fiber::Task {
  std::atomic<int> ticks{0};
};

void Count(fiber::Task* task) {
  auto* const self = static_cast<Counting*>(task);
  self->ticks.fetch_add(1);
  self->ticks.notify_one();
}

// Computes until the counting has ticked.
struct Computing : fiber::Task {
  Counting* counting = nullptr;
  EventSource* ticks = nullptr;
  std::atomic<bool> in_time{false};
  std::atomic<int> runs{0};
};

void Compute(fiber::Task* task) {
  auto* const self = static_cast<Computing*>(task);
  if (self->runs.load() != 0) {  // Else it is the event of the registration.
    const int before = self->counting->ticks.load();
    fiber::CallLookout();
    self->ticks->Touch();
    const std::int64_t enough = NowNs() + 10 * kNsPerSecond;
    while (self->counting->ticks.load() == before && NowNs() < enough) {
    }
    self->in_time.store(self->counting->ticks.load() != before);
  }
  self->runs.fetch_add(1);
  self->runs.notify_one();
}

// The worker that computes is the one that has waited for events, and that the
// other one has left it to.
TEST(LongTaskTest, TheLookoutSeesEventsMeanwhile) {
  StartWorkers(2);
  Counting counting;
  counting.run = Count;
  Computing computing;
  computing.run = Compute;
  auto ticks = MakeRefCounted<EventSource>(&counting);
  auto begins = MakeRefCounted<EventSource>(&computing);
  computing.counting = &counting;
  computing.ticks = ticks.Get();
  ASSERT_TRUE(EpollPoller::OfGroup(0)->Register(ticks.Get()).ok());
  counting.ticks.wait(0);
  ASSERT_TRUE(EpollPoller::OfGroup(0)->Register(begins.Get()).ok());
  computing.runs.wait(0);
  for (int run = 1; run <= 100; ++run) {
    begins->Touch();
    computing.runs.wait(run);
    ASSERT_TRUE(computing.in_time.exchange(false)) << run;
  }
  Stop({ticks.Get(), begins.Get()});
}

// Appends its name.
struct Named : fiber::Task {
  char name = ' ';
  std::string* log = nullptr;
};

void Log(fiber::Task* task) {
  auto* const self = static_cast<Named*>(task);
  *self->log += self->name;
}

struct Stepping : fiber::Task {
  Named* next = nullptr;
  EventSource* source = nullptr;
  fiber::Event* submitted = nullptr;
};

// An event that nobody has looked for.
void Step(fiber::Task* task) {
  auto* const self = static_cast<Stepping*>(task);
  self->source->Touch();
  fiber::SubmitToLast(0, self->next);
  self->submitted->Set();
}

TEST(LongTaskTest, TheNextOneIsBehindEventsThatCameMeanwhile) {
  StartWorkers(1);
  std::string log;
  Named event, next;
  event.run = next.run = Log;
  event.log = next.log = &log;
  event.name = 'e';
  next.name = 'n';
  auto source = MakeRefCounted<EventSource>(&event);
  ASSERT_TRUE(EpollPoller::OfGroup(0)->Register(source.Get()).ok());
  testing::DrainPollers();
  EXPECT_EQ(log, "e");
  fiber::Event submitted;
  Stepping step;
  step.run = Step;
  step.next = &next;
  step.source = source.Get();
  step.submitted = &submitted;
  fiber::SubmitTo(0, &step);
  submitted.Wait();
  Stop({source.Get()});
  EXPECT_EQ(log, "een");
}

// From a plain thread there is nothing to be behind of.
TEST(LongTaskTest, APlainThreadMaySubmit) {
  StartWorkers(1);
  Counting counting;
  counting.run = Count;
  EXPECT_FALSE(fiber::SubmitLast(&counting));
  fiber::CallLookout();
  fiber::SubmitToLast(0, &counting);
  counting.ticks.wait(0);
  fiber::TerminateRuntime();
}

}  // namespace
}  // namespace flare::io

// fiber/long_task.h, with events of the kernel.
#include "flare/fiber/long_task.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/fd.h"
#include "flare/io/testing/event_source.h"
#include "flare/io/testing/loopback.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/io/tls_context.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
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
  std::function<void()> begin;
  Counting* counting = nullptr;
  EventSource* ticks = nullptr;
  std::atomic<bool> prepared{false};  // Else it is the registration's event.
  std::atomic<bool> in_time{false};
  std::atomic<int> runs{0};
};

void Compute(fiber::Task* task) {
  auto* const self = static_cast<Computing*>(task);
  if (self->prepared.exchange(false)) {
    const int before = self->counting->ticks.load();
    self->begin();
    self->ticks->Touch();
    const std::int64_t enough = NowNs() + kNsPerSecond;
    while (self->counting->ticks.load() == before && NowNs() < enough) {
    }
    self->in_time.store(self->counting->ticks.load() != before);
  }
  self->runs.fetch_add(1);
  self->runs.notify_one();
}

// Whether others see each of some events while a task computes, which has begun
// to by `begin`. The worker that it runs on is the one that has waited for
// events, and that the other one has left it to.
bool SeeEventsMeanwhile(const std::function<void()>& prepare,
                        const std::function<void()>& begin) {
  StartWorkers(2);
  Counting counting;
  counting.run = Count;
  Computing computing;
  computing.run = Compute;
  computing.begin = begin;
  auto ticks = MakeRefCounted<EventSource>(&counting);
  auto begins = MakeRefCounted<EventSource>(&computing);
  computing.counting = &counting;
  computing.ticks = ticks.Get();
  EXPECT_TRUE(EpollPoller::OfGroup(0)->Register(ticks.Get()).ok());
  counting.ticks.wait(0);
  EXPECT_TRUE(EpollPoller::OfGroup(0)->Register(begins.Get()).ok());
  computing.runs.wait(0);
  bool in_time = true;
  const fiber::SchedulingGroup* const group = fiber::GetGroup(0);
  for (int run = 1; run <= 20 && in_time; ++run) {
    prepare();
    computing.prepared.store(true);
    // Both sleep: one that is about to would hear no call.
    EXPECT_TRUE(fiber::testing::Eventually(
        [&] { return group->idle_mask() == group->all_idle_mask(); }));
    begins->Touch();
    computing.runs.wait(run);
    counting.ticks.wait(run);  // Sooner or later.
    in_time = computing.in_time.load();
  }
  Stop({ticks.Get(), begins.Get()});
  return in_time;
}

// Once is enough, as threads may lose the CPU. Each time with workers that have
// met no long task.
void ExpectEventsMeanwhile(const std::function<void()>& prepare,
                           const std::function<void()>& begin) {
  EXPECT_TRUE(fiber::testing::Eventually([&] {
    return SeeEventsMeanwhile(prepare, begin);
  })) << "events had to wait each time";
}

TEST(LongTaskTest, TheLookoutSeesEventsMeanwhile) {
  ExpectEventsMeanwhile([] {}, [] { fiber::CallLookout(); });
}

// Up to the server's signature.
TEST(LongTaskTest, AHandshakeCallsTheLookout) {
  std::string folder = ::testing::TempDir() + "/long_task_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  testing::MakeTlsCertificate(folder);
  TlsServerOptions options;
  options.certificates = {{folder + "/certificate", folder + "/key"}};
  const auto server_context = TlsServerContext::Create(options);
  ASSERT_TRUE(server_context) << server_context.error().message();
  const auto client_context =
      TlsClientContext::Get({.insecure_skip_verify = true}, {});
  ASSERT_TRUE(client_context) << client_context.error().message();
  UniqueFd near, far;
  std::unique_ptr<Transport> server, client;
  const auto say_hello = [&] {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    near = UniqueFd(fds[0]);
    far = UniqueFd(fds[1]);
    server = (*server_context)->NewTransport();
    server->Attach(near.get());
    client = (*client_context)->NewTransport("localhost", "");
    client->Attach(far.get());
    ASSERT_EQ(client->Handshake(), Transport::Progress::kWaiting);
  };
  ExpectEventsMeanwhile(say_hello, [&] {
    EXPECT_EQ(server->Handshake(), Transport::Progress::kWaiting);
  });
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

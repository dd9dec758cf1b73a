// Rules:
//  [FW1] The poller tells of changes only, so a waiter first notes the number
//        of changes, then asks poll(), and then waits for another number. A
//        change that comes after poll() looked makes an event, which adds one.
//  [FW2] `queued_` is true from when an event queues the task until the task
//        begins. An event in between queues nothing: the task that is queued
//        counts for it as well, and does so after that event.
//  [FW3] A queued task has a reference, as the waiter and the poller have: it
//        may run after the waiter has gone.
#include "flare/io/fd_waiter.h"

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/scheduler/fork_guard.h"
#include "flare/fiber/task.h"
#include "flare/io/descriptor.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/fd.h"

namespace flare::io {

class FdWaiter::Watched final : public Descriptor {
 public:
  explicit Watched(UniqueFd fd) : Descriptor(std::move(fd)) {
    counting_.watched = this;
    counting_.run = [](fiber::Task* task) {
      static_cast<Counting*>(task)->watched->Count();
    };
  }

  void OnEvents(std::uint32_t, fiber::TaskList* ready) override {
    // acq_rel: the task that is queued sees this event [FW2].
    if (queued_.exchange(true, std::memory_order_acq_rel)) return;
    Ref();  // [FW3]
    ready->PushBack(&counting_);
  }

  short WaitUntil(short events, std::int64_t deadline_ns);

  // For the waiter, which is the only one to use it.
  using Descriptor::CloseFd;

 private:
  struct Counting : fiber::Task {
    Watched* watched = nullptr;
  };

  void Count();

  std::atomic<bool> queued_{false};
  Counting counting_;
  fiber::Mutex mutex_;
  fiber::ConditionVariable changed_;
  std::uint64_t changes_ = 0;  // By `mutex_`.
};

void FdWaiter::Watched::Count() {
  const RefPtr<Watched> self(adopt_ref, this);
  // acq_rel: pairs with the exchange of each event that queued nothing [FW2].
  queued_.exchange(false, std::memory_order_acq_rel);
  const std::scoped_lock lock(mutex_);
  ++changes_;
  changed_.notify_all();
}

short FdWaiter::Watched::WaitUntil(short events, std::int64_t deadline_ns) {
  pollfd ready{.fd = fd(), .events = events, .revents = 0};
  std::unique_lock lock(mutex_);
  for (;;) {
    const std::uint64_t seen = changes_;  // [FW1]
    lock.unlock();
    if (::poll(&ready, 1, 0) > 0) return ready.revents;
    lock.lock();
    if (!changed_.wait_until(lock, ToTimePoint(deadline_ns),
                             [&] { return changes_ != seen; })) {
      return 0;
    }
  }
}

Expected<std::unique_ptr<FdWaiter>, Status> FdWaiter::Create(int fd) {
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return StatusFromErrno(errno, "duplicate a descriptor");
  auto watched = MakeRefCounted<Watched>(std::move(own));
  EpollPoller* const poller =
      EpollPoller::OfGroup(fiber::GetCurrentSchedulingGroupIndex());
  const Status status = poller->Register(watched.Get());
  if (!status.ok()) return status;
  return std::unique_ptr<FdWaiter>(new FdWaiter(poller, std::move(watched)));
}

FdWaiter::FdWaiter(EpollPoller* poller, RefPtr<Watched> watched)
    : poller_(poller), watched_(std::move(watched)) {}

FdWaiter::~FdWaiter() {
  // The parent has the epoll instance, too.
  if (fiber::IsForkedChild()) [[unlikely]] {
    fiber::DieAsForkedChild();
  }
  poller_->Retire(watched_.Get());
  // The poller may sleep for long before it lets go of the object. The peer
  // sees the owner's close() at once.
  watched_->CloseFd();
}

short FdWaiter::WaitUntil(short events, std::int64_t deadline_ns) {
  return watched_->WaitUntil(events, deadline_ns);
}

}  // namespace flare::io

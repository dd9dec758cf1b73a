// Rules:
//  [EP1] The kernel holds a raw pointer for each registered descriptor, and the
//        poller a reference for it. Retire() first removes the pointer from the
//        kernel, then pushes the descriptor onto `retired_`.
//  [EP2] Only Poll() drops those references (and the destructor), of
//        descriptors that have been pushed by then, when no event is pending
//        and before it fetches others. Poll() is exclusive, so a batch that was
//        fetched before a removal has been delivered by then, and none fetched
//        later contains it: OnEvents never meets a dead object. Workers call
//        Poll() between two tasks, and within one that looks for events
//        (long_task.h): destructors neither block nor take locks that are held
//        there.
//  [EP3] A poller that sleeps keeps memory of descriptors that were retired
//        meanwhile, and nothing else; it isn't woken for that.
//  [EP4] Everything is edge-triggered. Each registration asks for all events
//        and is never modified; a descriptor that doesn't care at the moment
//        gets an event it ignores, once per change, not once per Poll().
//  [EP5] That a descriptor was constructed before its first event is delivered
//        follows from the kernel's own ordering, which the C++ memory model
//        knows nothing of; `size_` repeats it in C++ terms.
//  [EP6] The standby sleeps in an epoll instance of its own, which watches the
//        other one for one event, from when a Poll() that has waited ends until
//        the next one begins to wait; all the time, each event would wake both.
//        `alert_` is set before that begins. The one that ends it clears it
//        afterwards: the next Poll(), or the standby that the event has woken.
//        So it isn't true while nothing is watched, except for a moment. False
//        for too long means that the watch cares for the poller, or that an
//        event wakes two.
#include "flare/io/epoll_poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "flare/fiber/runtime.h"
#include "flare/io/epoll_wait.h"
#include "glog/logging.h"

namespace flare::io {
namespace {

constexpr std::uint32_t kAllEvents =
    EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP | EPOLLET;

// A runtime that was started without saying so has sockets, too.
[[maybe_unused]] const bool is_default = [] {
  fiber::SetDefaultPoller(
      [](std::size_t group) { return EpollPoller::Factory()(group); });
  return true;
}();

}  // namespace

struct EpollPoller::Events {
  std::array<epoll_event, kMaxEvents> list;
};

Expected<std::unique_ptr<EpollPoller>, Status> EpollPoller::Create(
    const Options& options) {
  Fds fds;
  for (UniqueFd* const epoll : {&fds.epoll, &fds.standby_epoll}) {
    *epoll = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    if (!*epoll) return StatusFromErrno(errno, "create an epoll instance");
  }
  for (UniqueFd* const wakeup : {&fds.wakeup, &fds.standby_wakeup}) {
    *wakeup = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!*wakeup) return StatusFromErrno(errno, "create an eventfd");
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = nullptr;  // Says: the wake-up.
  if (::epoll_ctl(fds.epoll.get(), EPOLL_CTL_ADD, fds.wakeup.get(), &event) !=
          0 ||
      ::epoll_ctl(fds.standby_epoll.get(), EPOLL_CTL_ADD,
                  fds.standby_wakeup.get(), &event) != 0) {
    return StatusFromErrno(errno, "watch an eventfd");
  }
  return std::unique_ptr<EpollPoller>(new EpollPoller(std::move(fds), options));
}

std::function<Expected<std::unique_ptr<fiber::Poller>, Status>(std::size_t)>
EpollPoller::Factory(const Options& options) {
  return [options](std::size_t group)
             -> Expected<std::unique_ptr<fiber::Poller>, Status> {
    if (group == 0) ReserveDescriptors(kDescriptors);  // No worker runs yet.
    auto poller = Create(options);
    if (poller) return *std::move(poller);
    const int code = poller.error().code();
    if (code != EMFILE && code != ENFILE) return poller.error();
    return Status(code,
                  poller.error().message() +
                      "; raise the limit of descriptors (ulimit -n), of which "
                      "each group takes four, or have fewer groups "
                      "(--flare_scheduling_group_size)");
  };
}

EpollPoller* EpollPoller::OfGroup(std::size_t group) {
  fiber::Poller* const poller = fiber::GetPoller(group);
  LOG_IF(FATAL, poller == nullptr)
      << "the fiber runtime was started without a poller, and so has no "
         "sockets: leave RuntimeOptions::make_poller empty, or let it be "
         "io::EpollPoller::Factory()";
  DCHECK(dynamic_cast<EpollPoller*>(poller) != nullptr)
      << "RuntimeOptions::make_poller must be io::EpollPoller::Factory()";
  return static_cast<EpollPoller*>(poller);
}

EpollPoller::EpollPoller(Fds fds, const Options& options)
    : fds_(std::move(fds)),
      events_(std::make_unique<Events>()),
      spin_(options.spin.count()) {}

EpollPoller::~EpollPoller() {
  DropRetired();
  LOG_IF(ERROR, size() != 0) << size() << " descriptor(s) are still registered "
                             << "while their poller ends; close connections "
                                "and acceptors before the runtime";
}

Status EpollPoller::Register(Descriptor* descriptor) {
  // Before the kernel knows the pointer: an event may come at once [EP1].
  descriptor->Ref();
  // release: pairs with the acquire in Poll [EP5].
  size_.fetch_add(1, std::memory_order_release);
  epoll_event event{};
  event.events = kAllEvents;
  event.data.ptr = descriptor;
  if (::epoll_ctl(fds_.epoll.get(), EPOLL_CTL_ADD, descriptor->fd(), &event) !=
      0) {
    const int error = errno;
    // relaxed: an estimate.
    size_.fetch_sub(1, std::memory_order_relaxed);
    descriptor->Deref();
    return StatusFromErrno(error, "watch a socket with epoll");
  }
  return Status();
}

void EpollPoller::Retire(Descriptor* descriptor) {
  // The event argument is ignored, but must not be null before Linux 2.6.9.
  epoll_event unused{};
  const int result =
      ::epoll_ctl(fds_.epoll.get(), EPOLL_CTL_DEL, descriptor->fd(), &unused);
  PCHECK(result == 0) << "descriptor " << descriptor->fd()
                      << " was closed before it was retired";
  // relaxed: an estimate.
  size_.fetch_sub(1, std::memory_order_relaxed);
  PushRetired(descriptor);  // [EP1]
}

void EpollPoller::PushRetired(Descriptor* descriptor) {
  // relaxed: validated by the exchange; nothing is read through it.
  Descriptor* head = retired_.load(std::memory_order_relaxed);
  do {
    descriptor->next_retired_ = head;
    // release: pairs with the acquire in DropRetired [EP2].
  } while (!retired_.compare_exchange_weak(
      head, descriptor, std::memory_order_release, std::memory_order_relaxed));
}

void EpollPoller::DropRetired() {
  // relaxed: a look, so that a Poll() with nothing to drop stays cheap.
  if (retired_.load(std::memory_order_relaxed) == nullptr) return;
  // acquire: pairs with the release in PushRetired [EP2].
  Descriptor* next = retired_.exchange(nullptr, std::memory_order_acquire);
  while (next != nullptr) {
    Descriptor* const descriptor = next;
    next = descriptor->next_retired_;
    descriptor->Deref();
  }
}

// Waits awake for a while, if that is promising, before it sleeps. A thread
// that wakes it meanwhile makes an event like any other.
int EpollPoller::Wait(std::int64_t deadline_ns) {
  return spin_.Wait(deadline_ns, [this](std::int64_t until) {
    return EpollWait(fds_.epoll.get(), events_->list.data(), kMaxEvents, until);
  });
}

// Notes whose events they are, for serves_one(). After each fetch that brought
// some.
void EpollPoller::NoteFetched() {
  // relaxed, all: as in HandOut.
  fetches_.store(fetches_.load(std::memory_order_relaxed) + 1,
                 std::memory_order_relaxed);
  const void* const one = events_->list[0].data.ptr;
  if (fetched_ == 1 && one == nullptr) return;  // A wake-up says nothing.
  if (fetched_ != 1 || one != fetched_last_) {
    fetched_last_ = fetched_ == 1 ? one : nullptr;
    fetches_of_last_ = 0;
    if (serves_one()) serves_one_.store(false, std::memory_order_relaxed);
  } else if (!serves_one() && ++fetches_of_last_ == kFetchesOfOne) {
    serves_one_.store(true, std::memory_order_relaxed);
  }
}

// The next of the events that have been fetched, in their order. Some make no
// task.
void EpollPoller::HandOut(fiber::TaskList* ready) {
  // relaxed: written by Poll() only, whose calls the runtime orders.
  int pending = pending_.load(std::memory_order_relaxed);
  const std::size_t enough = ready->size() + 1;
  for (; pending > 0 && ready->size() < enough; --pending) {
    const auto i = static_cast<std::size_t>(fetched_ - pending);
    const epoll_event& event = events_->list[i];
    auto* const descriptor = static_cast<Descriptor*>(event.data.ptr);
    if (descriptor != nullptr) descriptor->OnEvents(event.events, ready);
  }
  // relaxed: written by Poll() only.
  pending_.store(pending, std::memory_order_relaxed);
}

void EpollPoller::NoteFlushWaited(bool paid) noexcept {
  // relaxed, both: a flush noted at the same time may as well be the one lost.
  const int old = waits_paid_.load(std::memory_order_relaxed);
  const int wanted =
      paid ? std::min(old + 3, kMostWaitsPaid) : std::max(old - 1, 0);
  // No store for nothing.
  if (wanted != old) waits_paid_.store(wanted, std::memory_order_relaxed);
}

void EpollPoller::Poll(std::int64_t deadline_ns, fiber::TaskList* ready) {
  if (pending() != 0) return HandOut(ready);
  DropRetired();  // [EP2]
  const bool blocks = deadline_ns != 0 && ready->empty();
  // relaxed: whatever it is, the next Poll() puts it right [EP6].
  if (blocks && alert_.load(std::memory_order_relaxed)) Alert(false);
  const int n = Wait(blocks ? deadline_ns : 0);
  if (n < 0) {
    PCHECK(errno == EINTR) << "epoll_wait";
    return;
  }
  // acquire: pairs with the release in StandBy: the descriptor to alert. A
  // standby that comes later misses events that come before the next Poll()
  // that waits.
  if (blocks && standing_by_.load(std::memory_order_acquire)) Alert(true);
  // acquire: pairs with the release in Register [EP5].
  static_cast<void>(size_.load(std::memory_order_acquire));
  fetched_ = n;
  // relaxed, all: as in HandOut.
  pending_.store(n, std::memory_order_relaxed);
  if (n != 0) NoteFetched();
  HandOut(ready);
}

void EpollPoller::Alert(bool on) {
  // relaxed, both: a hint to others [EP6].
  if (on) alert_.store(true, std::memory_order_relaxed);
  PCHECK(ChangeAlert(EPOLL_CTL_MOD, on)) << "epoll_ctl";
  if (!on) alert_.store(false, std::memory_order_relaxed);
}

// With an event that isn't null, as the wake-up's is.
bool EpollPoller::ChangeAlert(int operation, bool on) {
  epoll_event event{};
  event.events = on ? EPOLLIN | EPOLLONESHOT : EPOLLONESHOT;
  event.data.ptr = this;
  return ::epoll_ctl(fds_.standby_epoll.get(), operation, fds_.epoll.get(),
                     &event) == 0;
}

void EpollPoller::StandBy(std::int64_t deadline_ns) {
  if (!can_be_alerted_) {
    can_be_alerted_ = ChangeAlert(EPOLL_CTL_ADD, false);
    PLOG_IF(ERROR, !can_be_alerted_)
        << "can't watch for events from two threads; those behind a task that "
           "blocks its thread will wait longer";
  }
  // release: pairs with the acquire in Poll.
  standing_by_.store(can_be_alerted_, std::memory_order_release);
  std::array<epoll_event, 2> events;  // It and the wake-up.
  const int n = EpollWait(fds_.standby_epoll.get(), events.data(),
                          static_cast<int>(events.size()), deadline_ns);
  PCHECK(n >= 0 || errno == EINTR) << "epoll_wait";
  for (int i = 0; i < n; ++i) {
    if (events[static_cast<std::size_t>(i)].data.ptr != nullptr) {
      alert_.store(false, std::memory_order_relaxed);  // As in Alert.
    }
  }
  // relaxed: a poller that alerts nobody does no harm.
  standing_by_.store(false, std::memory_order_relaxed);
}

// Each write makes an edge, whatever the counter is, so nobody reads it. It
// would overflow after 2^64 wake-ups.
void EpollPoller::Wake() { SignalEventFd(fds_.wakeup.get()); }

void EpollPoller::WakeStandby() { SignalEventFd(fds_.standby_wakeup.get()); }

}  // namespace flare::io

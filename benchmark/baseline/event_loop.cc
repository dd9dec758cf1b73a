#include "benchmark/baseline/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "flare/base/clock.h"
#include "flare/io/epoll_wait.h"
#include "flare/rpc/start/runtime_flags.h"
#include "glog/logging.h"

namespace baseline {
namespace {

constexpr int kMaxEvents = 256;
constexpr std::uint32_t kInterest = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

int AddToEpoll(int epoll, int fd, std::uint32_t events, void* what) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = what;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

}  // namespace

void Watched::RunInLoop() { loop_->AdoptHere(std::unique_ptr<Watched>(this)); }

void Watched::AskAgain() {
  using Node = flare::IntrusiveListNode<ToReadAgain>;
  if (!Node::linked()) loop_->again_.PushBack(this);
}

void Watched::AskRoundEnd() {
  using Node = flare::IntrusiveListNode<AtRoundEnd>;
  if (!Node::linked()) loop_->round_end_.PushBack(this);
}

void Watched::CloseFd() {
  if (is_closed()) return;
  if (flare::IntrusiveListNode<ToReadAgain>::linked()) {
    loop_->again_.Remove(this);
  }
  if (flare::IntrusiveListNode<AtRoundEnd>::linked()) {
    loop_->round_end_.Remove(this);
  }
  fd_.Reset();  // Which takes it out of epoll, too.
  // relaxed: a hint.
  loop_->connections_.fetch_sub(1, std::memory_order_relaxed);
}

// Later, as a function of its own further up the stack may be the caller.
void Watched::Discard() {
  if (std::exchange(discarded_, true)) return;
  loop_->watched_.Remove(this);
  loop_->discarded_.PushBack(this);
}

void MustHaveDescriptor(bool has, const char* what) {
  if (has) return;
  PLOG(ERROR) << what << ": raise the limit of descriptors (ulimit -n), or "
              << "have fewer --threads";
  std::_Exit(1);  // Other threads may run.
}

EventLoop::EventLoop()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_up_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spin_(std::int64_t{FLAGS_flare_io_spin_us} * 1000) {
  MustHaveDescriptor(static_cast<bool>(epoll_), "epoll_create1");
  MustHaveDescriptor(static_cast<bool>(wake_up_), "eventfd");
  // With an edge for each write it needs no reading.
  PCHECK(AddToEpoll(epoll_.get(), wake_up_.get(), EPOLLIN | EPOLLET, nullptr) ==
         0)
      << "epoll_ctl";
}

EventLoop::~EventLoop() {
  // Tasks posted in the last moment, connections among them.
  EndWait();
  RunPosted();
  EndRound();
  while (Watched* const watched = watched_.PopFront()) {
    watched->CloseFd();
    delete watched;
  }
}

void EventLoop::Run() {
  prctl(PR_SET_TIMERSLACK, 1000);  // ns; as flare's workers.
  for (;;) {
    HandleEvents(BeginWait());
    EndWait();
    if (stopping_) return;
    RunPosted();
    Tick();
    EndRound();
  }
}

void EventLoop::Stop() {
  {
    flare::ScopedLock lock(mutex_);
    stopped_ = true;
  }
  Wake();
}

void EventLoop::Post(LoopTask* task) {
  bool wake;
  {
    flare::ScopedLock lock(mutex_);
    posted_.PushBack(task);
    // Once: until the loop has seen it, nobody else needs to.
    wake = std::exchange(waiting_, false);
  }
  if (wake) Wake();
}

void EventLoop::Adopt(std::unique_ptr<Watched> watched) {
  // relaxed: a hint.
  connections_.fetch_add(1, std::memory_order_relaxed);
  watched->loop_ = this;
  Post(watched.release());
}

void EventLoop::AdoptHere(std::unique_ptr<Watched> watched) {
  if (std::exchange(watched->loop_, this) == nullptr) {
    // relaxed: a hint.
    connections_.fetch_add(1, std::memory_order_relaxed);
  }
  Watched* const it = watched.release();
  watched_.PushBack(it);
  if (AddToEpoll(epoll_.get(), it->fd(), kInterest, it) != 0) {
    PLOG(ERROR) << "can't watch descriptor " << it->fd();
    it->CloseFd();
    it->Discard();
    return;
  }
  it->OnAdopted();
}

std::int64_t EventLoop::BeginWait() {
  const bool ticks = ticker_ != nullptr && ticker_->WantsTicks();
  flare::ScopedLock lock(mutex_);
  if (!posted_.empty() || stopped_ || !again_.empty()) return 0;
  waiting_ = true;
  if (!ticks) return flare::kNoDeadline;
  return flare::NowNs() + Ticker::kIntervalMs * flare::kNsPerMs;
}

void EventLoop::EndWait() {
  flare::ScopedLock lock(mutex_);
  waiting_ = false;
  to_run_.TakeAll(&posted_);
  stopping_ = stopped_;
}

void EventLoop::HandleEvents(std::int64_t deadline_ns) {
  // Those that ask again from here on mean the next round.
  std::size_t again = again_.size();
  epoll_event events[kMaxEvents];
  const int n = WaitForEvents(events, deadline_ns);
  if (n < 0) PCHECK(errno == EINTR) << "epoll_wait";
  for (int i = 0; i < n; ++i) {
    auto* const watched = static_cast<Watched*>(events[i].data.ptr);
    // One that is closed may have been by an earlier event of this round.
    if (watched == nullptr || watched->is_closed()) continue;
    watched->OnEvents(events[i].events);
  }
  for (; again != 0 && !again_.empty(); --again) {
    again_.PopFront()->OnEvents(EPOLLIN);
  }
}

// Awake for a while, if that is promising, as flare's workers.
int EventLoop::WaitForEvents(epoll_event* events, std::int64_t deadline_ns) {
  return spin_.Wait(deadline_ns, [&](std::int64_t until) {
    return flare::io::EpollWait(epoll_.get(), events, kMaxEvents, until);
  });
}

void EventLoop::RunPosted() {
  while (LoopTask* const task = to_run_.PopFront()) task->RunInLoop();
}

void EventLoop::Tick() {
  if (ticker_ == nullptr || !ticker_->WantsTicks()) return;
  const std::int64_t now = flare::NowNs();
  if (now < next_tick_ns_) return;
  next_tick_ns_ = now + Ticker::kIntervalMs * flare::kNsPerMs;
  ticker_->OnTick(now);
}

void EventLoop::EndRound() {
  while (Watched* const watched = round_end_.PopFront()) watched->OnRoundEnd();
  while (Watched* const watched = discarded_.PopFront()) delete watched;
}

void EventLoop::Wake() {
  const std::uint64_t one = 1;
  // It can't fail: the count doesn't get near its end.
  [[maybe_unused]] const ssize_t n = ::write(wake_up_.get(), &one, sizeof(one));
}

}  // namespace baseline

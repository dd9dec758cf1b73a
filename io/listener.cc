// Rules:
//  [LI1] Accepting happens in the reader's role (readiness.cc), so never twice
//        at once. Stop() stops the role; the last reader drains the backlog,
//        retires and closes the socket, and only then reports the end, as the
//        last thing it does with the object.
//  [LI2] The retry timer is armed and cancelled by the reader only. Its
//        callback signals the reader like an edge; the last reader cancels it.
#include "flare/io/listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/epoll_poller.h"
#include "glog/logging.h"

namespace flare::io {
namespace {

// Connections accepted in one run, before others get their turn.
constexpr int kBatch = 64;

// Connections accepted after Stop(), at most: were new ones to come as fast as
// they are accepted, stopping would have no end.
constexpr int kMaxDrained = 65536;

// When to look again after having run out of file descriptors or memory, or
// when nothing at all can be accepted.
constexpr std::int64_t kRetryNs = 50'000'000;

// How often to say so.
constexpr std::int64_t kComplainNs = 60'000'000'000;

// Where among `groups` a connection accepted in group `own` should live. Own
// means that its memory is near, so it is kept unless the least loaded group
// has clearly less: one in sixteen. With fewer than 16 a single connection
// decides, since the fullest group is done last.
std::size_t PickGroup(std::size_t own, const std::vector<std::size_t>& groups) {
  if (groups.size() == 1) return own;
  const std::size_t own_size = EpollPoller::OfGroup(own)->size();
  std::size_t best = own;
  std::size_t best_size = own_size;
  for (const std::size_t group : groups) {
    const std::size_t size = EpollPoller::OfGroup(group)->size();
    if (size < best_size) {
      best = group;
      best_size = size;
    }
  }
  return own_size > best_size + best_size / 16 ? best : own;
}

}  // namespace

Listener::Listener(UniqueFd fd, std::size_t group,
                   std::vector<std::size_t> groups, const OnAccept* on_accept)
    : Descriptor(std::move(fd)),
      group_(group),
      groups_(std::move(groups)),
      on_accept_(*on_accept) {
  task_.listener = this;
  task_.run = &Listener::AcceptTask;
  retry_.listener = this;
  retry_.set_callback([](fiber::Timer* timer) {
    Listener* const self = static_cast<RetryTimer*>(timer)->listener;
    if (self->reader_.Signal()) fiber::SubmitTo(self->group_, &self->task_);
  });
}

Status Listener::Start() {
  Status status = EpollPoller::OfGroup(group_)->Register(this);
  registered_ = status.ok();
  return status;
}

void Listener::SetBacklog(int backlog) {
  // It changes nothing else of a socket that listens already.
  PLOG_IF(ERROR, ::listen(fd(), backlog) != 0) << "listen on " << fd();
}

void Listener::Stop() {
  if (reader_.Stop()) fiber::SubmitTo(group_, &task_);
}

void Listener::OnEvents(std::uint32_t events, fiber::TaskList* ready) {
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && reader_.Signal()) {
    ready->PushBack(&task_);
  }
}

void Listener::AcceptTask(fiber::Task* task) {
  static_cast<Role*>(task)->listener->Run();
}

void Listener::Run() {
  for (;;) {
    switch (reader_.Begin()) {
      case Readiness::Turn::kStopped:
        Finish();
        return;
      case Readiness::Turn::kLeft:
        return;
      case Readiness::Turn::kBroken:  // Signalled elsewhere.
      case Readiness::Turn::kRead:
        break;
    }
    if (!AcceptSome()) {
      fiber::Submit(&task_);  // Still the reader.
      return;
    }
    if (reader_.Finish()) return;
  }
}

// False: there may be more.
bool Listener::AcceptSome() {
  int skipped = 0;
  for (int i = 0; i < kBatch; ++i) {
    switch (AcceptOne()) {
      case Outcome::kAccepted:
        break;
      case Outcome::kSkipped:
        if (fiber::GetLastError() != ECONNABORTED) ++skipped;
        break;
      case Outcome::kEmpty:
        return true;
      case Outcome::kExhausted:
        RetryLater(fiber::GetLastError());
        return true;
    }
  }
  if (skipped < kBatch) return false;
  // It isn't the connections: something forbids to accept any.
  RetryLater(fiber::GetLastError());
  return true;
}

Listener::Outcome Listener::AcceptOne() {
  sockaddr_storage address;
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  UniqueFd connection(
      ::accept4(fd(), generic, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!connection) {
    // In place of `errno`: on_accept_ may have moved this loop to another
    // thread.
    switch (fiber::GetLastError()) {
      case EAGAIN:
        return Outcome::kEmpty;
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        return Outcome::kExhausted;
      case EBADF:
      case EFAULT:
      case EINVAL:
      case ENOTSOCK:
      case EOPNOTSUPP:
        PLOG(FATAL) << "accept4 on descriptor " << fd();
      default:
        // EINTR, ECONNABORTED, and whatever error the network has left on the
        // new connection: that one is lost, the next may be fine.
        return Outcome::kSkipped;
    }
  }
  // relaxed: a counter on its own.
  accepted_.fetch_add(1, std::memory_order_relaxed);
  try {
    on_accept_(std::move(connection), Endpoint::FromSockaddr(generic, length),
               PickGroup(group_, groups_));
  } catch (const std::bad_alloc&) {
    // Closed, or about to be. The next may come when there is memory again.
    fiber::SetLastError(ENOMEM);
    return Outcome::kExhausted;
  }
  return Outcome::kAccepted;
}

// The connections stay in the backlog, so no edge will tell us of them again.
void Listener::RetryLater(int error) {
  const std::int64_t now = NowNs();
  if (now >= complain_at_ns_) {
    complain_at_ns_ = now + kComplainNs;
    const bool exhausted = error == EMFILE || error == ENFILE ||
                           error == ENOBUFS || error == ENOMEM;
    try {
      LOG(ERROR) << "accepting connections stalls: "
                 << StatusFromErrno(error, "accept").message()
                 << (exhausted ? "; raise the limit (ulimit -n) or lower the "
                                 "number of connections"
                               : "; does a security policy forbid it?");
    } catch (const std::bad_alloc&) {  // It would only be logged.
    }
  }
  if (retry_used_) fiber::CancelTimer(&retry_);  // [LI2]
  retry_used_ = true;
  fiber::ArmTimer(&retry_, now + kRetryNs);
}

// The last reader's end [LI1].
void Listener::Finish() {
  if (retry_used_) fiber::CancelTimer(&retry_);  // [LI2]
  if (registered_) {
    // relaxed: see LeaveBacklog.
    const bool leaves = leaves_backlog_.load(std::memory_order_relaxed);
    for (int i = 0; !leaves && i < kMaxDrained; ++i) {
      const Outcome outcome = AcceptOne();
      if (outcome == Outcome::kEmpty || outcome == Outcome::kExhausted) break;
    }
    EpollPoller::OfGroup(group_)->Retire(this);
  }
  CloseFd();
  finished_.Set();
}

}  // namespace flare::io
